"""A process that applies changes to an index is killed with SIGKILL, over and over: the rows are those of the position
that the index says, which is never behind what it had said before.
"""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstem.serve import Change
from mainstem.serve.snapshot import restore
from tests.crash.index_writer import change, count_of, open_index
from tests.support.repository import ROOT

WRITER = "tests.crash.index_writer"


def run_and_kill(kind: str, *directories: Path, until: str, seconds: float) -> dict[str, int]:
    """How many changes a writer said that it has applied, and that its last snapshot has. It is killed `seconds` after
    it said the word `until`; "": after it was started.
    """
    command, said = [sys.executable, "-m", WRITER, kind, *map(str, directories)], {"": 1}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            while not said.get(until):
                said |= heard(process.stdout.readline())
                assert process.poll() is None, "it ended by itself"
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGKILL)
        for line in process.stdout:
            said |= heard(line)
    assert process.returncode == -signal.SIGKILL, "it ended by itself"
    return said


def heard(line: str) -> dict[str, int]:
    """A line of the writer; one that the kill has cut short says nothing."""
    what, _, count = line.partition(" ")
    return {what: int(count)} if count.endswith("\n") else {}


class Fold:
    """The rows that the first `count` changes lead to."""

    def __init__(self) -> None:
        self.count = 0
        self.rows: dict[int, Change] = {}

    def to(self, count: int) -> dict[int, Change]:
        if count < self.count:
            self.count, self.rows = 0, {}
        for number in range(self.count, count):
            made = change(number)
            if made.row is None:
                self.rows.pop(int(made.key), None)
            else:
                self.rows[int(made.key)] = made
        self.count = count
        return self.rows


PAST = Fold()  # made once: each check would else begin with the first change


def check_key_value(index: Any, rows: dict[int, Change], count: int) -> None:
    """Now, and as of the position in the middle."""
    page = index.scan(limit=1000)
    assert [(found.row, found.partition, found.offset) for found in page.rows] == [
        (made.row, made.partition, made.offset) for _, made in sorted(rows.items())
    ]
    past, at = PAST.to(count // 2), dict.fromkeys(range(3), count // 2)
    assert [found.row for found in index.scan(limit=1000, at=at).rows] == [past[key].row for key in sorted(past)]


def check_search(index: Any, rows: dict[int, Change], count: int) -> None:
    found = index.search("*", limit=1000)
    assert found.total == len(rows)
    assert sorted((hit.row["id"], hit.offset, hit.row["n"]) for hit in found.hits) == [
        (key, made.offset, made.offset) for key, made in sorted(rows.items())
    ]
    for word in ("red", "green"):
        assert index.search(f"word:{word}").total == sum(made.row["word"] == word for made in rows.values())


def check_changelog(index: Any, rows: dict[int, Change], count: int) -> None:
    table = index.query("SELECT id, n, word, _partition, _offset FROM t ORDER BY id", limit=1000).rows
    assert table == [
        (key, made.row["n"], made.row["word"], made.partition, made.offset) for key, made in sorted(rows.items())
    ]


def check_stream(index: Any, rows: dict[int, Change], count: int) -> None:
    table = index.query("SELECT _offset, id FROM t ORDER BY _offset", limit=count + 1).rows
    every = (change(number) for number in range(count))
    assert table == [(made.offset, int(made.key)) for made in every if made.row is not None]


CHECKS: dict[str, Callable[[Any, dict[int, Change], int], None]] = {
    "key-value": check_key_value,
    "search": check_search,
    "changelog": check_changelog,
    "stream": check_stream,
}


def kill_loop(kind: str, directory: Path, times: int, seed: int) -> int:
    draw, fold, before = random.Random(seed), Fold(), 0
    for _ in range(times):
        until = draw.choice(["", "opened", "applied", "applied"])
        said = run_and_kill(kind, directory, until=until, seconds=draw.uniform(0.0, 0.4)).get("applied", 0)
        index = open_index(kind, directory)
        try:
            count = count_of(index)
            assert count >= max(before, said), "it has lost what it had applied"
            CHECKS[kind](index, fold.to(count), count)
        finally:
            index.close()
        before = count
    return before


@pytest.mark.parametrize("kind", CHECKS)
def test_rows_and_position_agree_after_kills(tmp_path, kind):
    assert kill_loop(kind, tmp_path, times=20, seed=1) > 0


@pytest.mark.timeout(1200)  # 200 starts of Python; beside other work each takes seconds
@pytest.mark.long
@pytest.mark.parametrize("kind", CHECKS)
def test_rows_and_position_agree_after_many_kills(tmp_path, kind):
    assert kill_loop(kind, tmp_path, times=200, seed=2) > 0


@pytest.mark.parametrize("kind", ["key-value", "search", "changelog"])
def test_a_snapshot_is_whole_whenever_its_writer_is_killed(tmp_path, kind):
    """The index goes on from the last one that was said to be written, or one that came after it."""
    draw, before = random.Random(3), 0
    for number in range(6):
        directories = (tmp_path / "live", tmp_path / "snapshots")
        until = "applied" if number % 3 == 2 else "snapshot"
        said = run_and_kill(kind, *directories, until=until, seconds=draw.uniform(0.0, 0.4)).get("snapshot", before)
        restored = restore(tmp_path / "snapshots", tmp_path / f"restored {number}")
        assert restored is not None
        index = open_index(kind, tmp_path / f"restored {number}")
        try:
            assert index.applied == restored
            assert count_of(index) >= max(said, before)
            before = count_of(index)
            CHECKS[kind](index, Fold().to(before), before)
        finally:
            index.close()
