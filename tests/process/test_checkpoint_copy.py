"""The copy of a checkpoint follows what changes in it, file by file, in parts."""

import os

import pytest

from mainstem.process.checkpoint_copy import PART_BYTES, CheckpointCopy, split_key, write_part


class Written:
    """What a transaction has, as its writer is given it."""

    def __init__(self):
        self.records = []

    def append(self, partition, keys, values, headers, timestamp_ms):
        assert (partition.topic, partition.partition, headers) == ("copies", 0, None)
        self.records += zip(keys, values, strict=True)

    def flush(self):
        pass


def sent(copy, *, commit=True):
    written = Written()
    copy.send(written, 0)
    if commit:
        copy.committed()
    return [(split_key(key), value) for key, value in written.records]


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "checkpoint"
    for name, data in {"metadata": b"{}", "offsets/0": b"v1", "state/0/1/1.changelog": b"", "commits/0": b"v1"}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


def test_what_is_new_is_sent_and_what_is_gone_is_taken_back(checkpoint):
    copy = CheckpointCopy(checkpoint, "copies")
    assert {name for (name, _), _ in sent(copy)} == {"metadata", "offsets/0", "state/0/1/1.changelog"}
    assert sent(copy) == []
    (checkpoint / "offsets" / "1").write_bytes(b"v1")
    (checkpoint / "state/0/1/1.changelog").unlink()
    assert [(key, value is None) for key, value in sent(copy, commit=False)] == [
        (("offsets/1", 0), False),
        (("state/0/1/1.changelog", 0), True),
    ]
    assert len(sent(copy)) == 2  # that transaction was aborted
    assert sent(CheckpointCopy(checkpoint, "copies")) == []  # another process goes on where this one was
    (checkpoint.parent / "copied.json").write_text("{")
    assert {name for (name, _), _ in sent(CheckpointCopy(checkpoint, "copies"))} == {
        "metadata",
        "offsets/0",
        "offsets/1",
    }


def test_large_files_come_in_parts_in_any_order_and_may_become_smaller(checkpoint, tmp_path):
    large = checkpoint / "state/0/1/2.zip"
    data = os.urandom(2 * PART_BYTES + 5)
    large.write_bytes(data)
    copy = CheckpointCopy(checkpoint, "copies")
    parts = [(part, value) for (name, part), value in sent(copy) if name == "state/0/1/2.zip"]
    assert [part for part, _ in parts] == [0, 1, 2]
    for part, value in reversed(parts):
        write_part(tmp_path / "back" / "2.zip", part, value)
    assert (tmp_path / "back" / "2.zip").read_bytes() == data
    large.write_bytes(b"small")
    ((_, value), (second, gone), (third, _)) = sent(copy)
    assert (second, third, gone) == (("state/0/1/2.zip", 1), ("state/0/1/2.zip", 2), None)
    write_part(tmp_path / "back" / "2.zip", 0, value)
    assert (tmp_path / "back" / "2.zip").read_bytes() == b"small"
