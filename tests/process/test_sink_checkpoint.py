import json
import os
from pathlib import Path

import pytest

from mainstem.core import UserError
from mainstem.process import sink_checkpoint
from mainstem.process.sink_checkpoint import Checkpoint
from mainstem.process.sink_decision import SinkRefused


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": "the-query"}))
    (tmp_path / "offsets" / "3").write_text("v1")
    (tmp_path / "offsets" / ".3.crc").write_bytes(b"crc")
    return tmp_path


def test_the_query_id_is_sparks(directory):
    assert Checkpoint(directory).query_id() == Checkpoint(f"file://{directory}").query_id() == "the-query"


@pytest.mark.parametrize("content", [None, "", "{}", '{"id": 5}', "torn{"])
def test_a_checkpoint_without_its_id_is_refused(directory, content):
    if content is None:
        (directory / "metadata").unlink()
    else:
        (directory / "metadata").write_text(content)
    with pytest.raises(SinkRefused, match="expected the id of a Spark query"):
        Checkpoint(directory).query_id()


def test_the_plan_its_checksum_and_the_names_are_synced(directory, monkeypatch):
    synced, real = [], os.fsync

    def fsync(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(sink_checkpoint.os, "fsync", fsync)
    Checkpoint(directory).sync(3)
    names = [str(directory / name) for name in ("offsets/3", "offsets/.3.crc", "metadata", "offsets")]
    assert synced == [*names, str(directory), str(directory.parent)]


def test_a_plan_that_is_missing_is_refused(directory):
    with pytest.raises(SinkRefused, match="the plan of the batch is missing"):
        Checkpoint(directory).sync(4)


def test_an_object_store_is_refused_at_once():
    with pytest.raises(UserError, match="expected a directory of a local file system, found s3a:"):
        Checkpoint("s3a://bucket/checkpoint")


def good(directory):
    (directory / "commits").mkdir()
    for number in (9, 10):
        (directory / "offsets" / str(number)).write_text('v1\n{"batchWatermarkMs":0}\n{"flights":{"0":5}}')
        (directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return Checkpoint(directory)


def test_a_whole_checkpoint_is_passed_and_so_is_an_empty_one(directory, tmp_path):
    good(directory).check(10)
    Checkpoint(tmp_path / "new").check(-1)


@pytest.mark.parametrize(
    ("name", "committed", "says"),
    [
        ("metadata", 10, "bring back an unchanged copy"),
        ("offsets/10", 9, "batch 10 is not in the log yet"),
        ("offsets/10", 10, "bring back an unchanged copy"),
        ("offsets/9", 10, "bring back an unchanged copy"),
        ("commits/10", 10, "batch 10 is run again"),
        ("commits/10", 9, "bring back an unchanged copy"),
    ],
)
@pytest.mark.parametrize("left", [0, 5])
def test_a_file_that_was_cut_is_named_with_its_repair(directory, name, committed, says, left):
    checkpoint = good(directory)
    (directory / name).write_bytes((directory / name).read_bytes()[:left])
    with pytest.raises(SinkRefused) as refused:
        checkpoint.check(committed)
    assert str(directory / name) in str(refused.value)
    assert says in refused.value.hint


def test_a_failure_of_spark_names_the_file_that_is_damaged(directory):
    checkpoint, state = Checkpoint(directory), directory / "state" / "0" / "1" / "7.changelog"
    assert checkpoint.damaged(f"FSError: Checksum error: file:{state} at 0 exp: 1 got: 2") == state
    state_store = "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state."
    assert checkpoint.damaged(f"{state_store} Caused by: java.io.EOFException: ended") == directory / "state"
    assert checkpoint.damaged(f"{state_store} Caused by: java.io.IOException: No space left on device") is None
    assert checkpoint.damaged(f"no space left on device: {state}") is None
