import os
from pathlib import Path

import pytest

from mainstem.core.files import check_regular, make_directory, sync_directory, write_atomically


def test_the_content_is_replaced_and_no_neighbour_stays(tmp_path):
    path = tmp_path / "checkpoint"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_a_failed_write_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    write_atomically(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match=f"No space left on device: .{path}."):  # where, too
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_the_content_is_synced_before_the_file_has_its_name_and_the_name_on_return(tmp_path, monkeypatch):
    steps = []
    write, fsync, rename = os.write, os.fsync, Path.rename

    def written(descriptor, data):
        steps.append(f"write {bytes(data).decode()}")
        return write(descriptor, data)

    def synced(descriptor):
        fsync(descriptor)
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")

    def renamed(path, target):
        steps.append(f"rename {path.name} {target.name}")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", written)
        patch.setattr(os, "fsync", synced)
        patch.setattr(Path, "rename", renamed)
        write_atomically(tmp_path / "checkpoint", b"new")
    assert steps == [
        "write new",
        "sync checkpoint.new",
        "rename checkpoint.new checkpoint",
        f"sync {tmp_path.name}",
    ]


def test_a_directory_that_is_made_is_durable_with_those_above_it(tmp_path, monkeypatch):
    """A power cut could take a log with all that it had acknowledged, where a file system keeps no more than asked."""
    synced = []
    monkeypatch.setattr("mainstem.core.files.sync_directory", synced.append)
    make_directory(tmp_path / "a" / "b")
    assert set(synced) == {tmp_path, tmp_path / "a"}
    make_directory(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_what_may_wait_for_ever_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        check_regular(tmp_path / name)
    for name, reason in {"pipe": "Is a pipe", ".": "Is a directory", "nothing": "No such file"}.items():
        with pytest.raises(OSError, match=reason):
            check_regular(str(tmp_path / name))


def test_only_a_directory_can_be_synced_as_one(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError):
        sync_directory(file)
