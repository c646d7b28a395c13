"""Random histories of a log directory against a model of what must be there, and what may be, after each start.

Several partitions share a journal, plain and compacted ones, whose trust in the page cache is switched on and off.
`history.py` tells what happens to them. A seed that went wrong is run again by adding it to `SEEDS`.
"""

from random import SystemRandom

import pytest

from mainstem.core.logging import configure
from mainstem.log import checkpointer
from mainstem.log import round as rounds
from tests.log.history import play

SEEDS = [
    *range(60),
    76,
    456,
    5375,
    5658,
    6271,
    20048,
    601674,
    602045,
    607229,
    190118,
    803605,
    293282849,
    1003162,
    375934139,
    319806944,
    40415284,
]
A_BLOCK = 250


@pytest.fixture(autouse=True)
def log_says_nothing():
    """Of what it meets all the time here: a failure's steps tell more."""
    configure("tests", level="critical")
    yield
    configure("tests", level="warning")


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_promised_is_there(tmp_path, seed):
    play(seed, tmp_path / "node")


@pytest.mark.parametrize("seed", range(100, 130))
def test_what_was_promised_is_there_with_frames_placed_and_indexes_one_by_one(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(rounds, "_LARGE", 1)
    monkeypatch.setattr(checkpointer, "_AT_ONCE", 1)
    play(seed, tmp_path / "node")


@pytest.mark.long
@pytest.mark.parametrize("block", range(8))
def test_what_was_promised_is_there_in_many_histories(tmp_path, monkeypatch, block):
    if block % 2:
        monkeypatch.setattr(rounds, "_LARGE", 1)
        monkeypatch.setattr(checkpointer, "_AT_ONCE", 1)
    first = SystemRandom().randrange(10**9)
    print(f"block {block}: seeds {first} to {first + A_BLOCK - 1}")
    for seed in range(first, first + A_BLOCK):
        play(seed, tmp_path / str(seed))
