import pytest

from mainstem.core.files import make_directory, sync_directory, write_atomically


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


def test_a_directory_that_is_made_is_durable_with_those_above_it(tmp_path, monkeypatch):
    """A power cut could take a log with all that it had acknowledged, where a file system keeps no more than asked."""
    synced = []
    monkeypatch.setattr("mainstem.core.files.sync_directory", synced.append)
    make_directory(tmp_path / "a" / "b")
    assert set(synced) == {tmp_path, tmp_path / "a"}
    make_directory(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_only_a_directory_can_be_synced_as_one(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError):
        sync_directory(file)
