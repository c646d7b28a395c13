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
