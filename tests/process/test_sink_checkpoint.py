import contextlib
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


def test_a_path_is_no_url(tmp_path):
    """Of a project in `a#b` the checkpoint was looked for in `a`, and each job failed at its first batch."""
    for name in ("a#b", "a?b", "a%41b", "a [b]"):
        assert Checkpoint(tmp_path / name).directory == Checkpoint(str(tmp_path / name)).directory == tmp_path / name
    assert Checkpoint("file:///a%20b").directory == Path("/a b")


@pytest.mark.parametrize("content", [None, "", "{}", '{"id": 5}', "torn{"])
def test_a_checkpoint_without_its_id_is_refused(directory, content):
    if content is None:
        (directory / "metadata").unlink()
    else:
        (directory / "metadata").write_text(content)
    with pytest.raises(SinkRefused, match="expected the id of a Spark query"):
        Checkpoint(directory).query_id()


@pytest.fixture
def synced(monkeypatch):
    """The paths that have been synced, in this order."""
    found, real = [], os.fsync

    def fsync(descriptor):
        found.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(sink_checkpoint.os, "fsync", fsync)
    return found


def test_plan_state_and_names_are_synced_once_and_the_ends_of_batches_are_not(directory, synced):
    """What a power cut can take back of a batch that the log has would need a new version of the job."""
    state = directory / "state" / "0" / "1"
    state.mkdir(parents=True)
    (directory / "commits").mkdir()
    for name in ("state/0/1/4.changelog", "state/0/1/.5.zip.tmp", "commits/2"):
        (directory / name).write_text("x")
    checkpoint = Checkpoint(directory)
    checkpoint.sync(3)
    files = [str(directory / name) for name in ("metadata", "offsets/.3.crc", "offsets/3", "state/0/1/4.changelog")]
    names = [str(directory / name) for name in ("offsets", "state", "state/0", "state/0/1", ".", "..")]
    assert sorted(synced[: len(files)]) == files
    assert sorted(synced[len(files) :]) == sorted(str(Path(name).resolve()) for name in names)

    del synced[:]
    (state / "5.changelog").write_text("y")
    (directory / "offsets" / "4").write_text("v1")
    checkpoint.sync(4)
    changed = {str(state / "5.changelog"), str(state), str(directory / "offsets" / "4"), str(directory / "offsets")}
    assert set(synced) == changed | {str(directory), str(directory.parent)}


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
        ("offsets/10", 10, "bring back an unchanged copy"),
        ("offsets/9", 10, "bring back an unchanged copy"),
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


@pytest.mark.parametrize("left", [b"", b"v1\n{", bytes(40)])
def test_what_a_power_cut_leaves_of_files_that_are_not_synced_is_removed(directory, left):
    """The plan of a batch that the log does not have, and the ends of those that it has: the log makes them good."""
    checkpoint = good(directory)
    for name in ("offsets/11", "offsets/.11.crc", "commits/9", "commits/10", "commits/.10.crc"):
        (directory / name).write_bytes(left)
    (directory / "commits" / "8").write_text('v1\n{"nextBatchWatermarkMs":0}')
    checkpoint.check(10)
    assert sorted(path.name for path in (directory / "commits").iterdir()) == ["8"]
    assert sorted(path.name for path in (directory / "offsets").iterdir()) == [".3.crc", "10", "3", "9"]


def injected(directory, *, whole):
    """A checkpoint whose batch 10 has read injection 8; `whole` of 9 and 10 are in the log of them too."""
    checkpoint, entries = good(directory), directory / "sources" / "mainstem_heartbeats"
    entries.mkdir(parents=True)
    for number, name in ((8, "8"), (9, "9.compact"), (10, "10")):
        if number in (8, *whole):
            (entries / name).write_text(f'v1\n{{"path":"file:///{number}.txt","timestamp":1,"batchId":{number}}}')
            (entries / f".{name}.crc").write_bytes(b"crc")
    for batch, read in ((10, 8), (11, 10)):
        (directory / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"flights":{{"0":5}}}}\n{{"logOffset":{read}}}')
    return checkpoint, entries


@pytest.mark.parametrize("left", [None, b"", b"v1", b'v1\n{"path":', bytes(40)])
@pytest.mark.parametrize("name", ["9.compact", "10"])
@pytest.mark.parametrize("planned", [True, False])
def test_what_a_power_cut_leaves_of_injections_that_the_log_does_not_have_is_removed(directory, left, name, planned):
    """Spark ended at each start, and there had never been a copy to bring back. It finds the injections again."""
    checkpoint, entries = injected(directory, whole={9, 10})
    checkpoint.check(10)
    assert {path.name for path in entries.glob("[0-9]*")} == {"8", "9.compact", "10"}  # whole: as Spark has planned it
    assert (directory / "offsets" / "11").exists()
    (entries / name).unlink() if left is None else (entries / name).write_bytes(left)
    if not planned:
        (directory / "offsets" / "11").unlink()
    checkpoint.check(10)
    assert {path.name for path in entries.iterdir()} == {"8", ".8.crc"}
    assert {path.name for path in (directory / "offsets").glob("[0-9]*")} == {"3", "9", "10"}


@pytest.mark.parametrize("why", ["the log has them", "the checkpoint is ahead of the log", "it was rolled back"])
def test_injections_that_the_log_does_not_make_good_are_left(directory, why):
    checkpoint, entries = injected(directory, whole={9})
    committed = {"the log has them": 10, "the checkpoint is ahead of the log": 9, "it was rolled back": 12}[why]
    (directory / "offsets" / "11").unlink()
    (entries / ("8" if committed == 10 else "9.compact")).write_bytes(b"")
    checkpoint.check(committed)
    assert {path.name for path in entries.glob("[0-9]*")} == {"8", "9.compact"}


@pytest.mark.parametrize("name", ["metadata", "sources/0/0", "state/0/0/_metadata/metadata"])
@pytest.mark.parametrize("committed", [-1, 0])
def test_what_a_power_cut_leaves_of_the_first_start_is_removed(tmp_path, name, committed):
    """The job asked for a copy of what had never been whole. With a commit in the log, nothing of it is removed so."""
    directory = tmp_path / "checkpoint"
    for each, content in (("metadata", '{"id":"the-query"}'), ("offsets/0", 'v1\n{}\n{"flights":{"0":5}}'),
                          ("sources/0/0", "v1\n{}"), ("state/0/0/_metadata/metadata", "v1\n{}")):  # fmt: skip
        (directory / each).parent.mkdir(parents=True, exist_ok=True)
        (directory / each).write_text(content)
    checkpoint = Checkpoint(directory)
    checkpoint.check(-1)
    assert checkpoint.started() == "the-query"
    (directory / name).write_bytes(b"")
    if committed == 0:
        with contextlib.suppress(SinkRefused):
            checkpoint.check(0)
    else:
        (directory / "commits").mkdir()
        (directory / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
        with contextlib.suppress(SinkRefused):  # it has run, and so on another log
            checkpoint.check(-1)
        assert (directory / "sources").exists()
        (directory / "commits" / "0").unlink()
        checkpoint.check(-1)
        assert checkpoint.started() is None
    assert directory.exists() is (committed == 0)


def test_a_hole_is_refused(directory):
    """Spark goes by the newest plan, and ended at each start because the one before it did not exist."""
    checkpoint = good(directory)
    (directory / "offsets" / "9").unlink()
    with pytest.raises(SinkRefused, match=r"offsets/9: the plan of a batch is missing") as refused:
        checkpoint.check(10)
    assert "bring back an unchanged copy" in refused.value.hint


def test_a_failure_of_spark_names_the_file_that_is_damaged(directory):
    checkpoint, state = Checkpoint(directory), directory / "state" / "0" / "1" / "7.changelog"
    assert checkpoint.damaged(f"FSError: Checksum error: file:{state} at 0 exp: 1 got: 2") == state
    state_store = "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state."
    assert checkpoint.damaged(f"{state_store} Caused by: java.io.EOFException: ended") == directory / "state"
    schema = "java.io.EOFException at org.apache.spark.sql.execution.streaming.state.SchemaHelper$SchemaV2Reader.read"
    assert checkpoint.damaged(schema) == directory / "state"
    assert checkpoint.damaged("java.io.EOFException at org.apache.kafka.clients.NetworkClient.poll") is None
    assert checkpoint.damaged(f"{state_store} Caused by: java.io.IOException: No space left on device") is None
    assert checkpoint.damaged(f"no space left on device: {state}") is None
    for reason in ("Too many open files", "No space left on device", "Read-only file system", "Permission denied"):
        assert checkpoint.damaged(f"java.io.FileNotFoundException: {state}.tmp ({reason})") is None
