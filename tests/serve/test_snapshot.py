import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from mainstem.serve import Index
from mainstem.serve.columns import TableShape
from mainstem.serve.key_value import KeyValueIndex
from mainstem.serve.search import SearchIndex
from mainstem.serve.snapshot import Manifest, restore, store, take
from mainstem.serve.sql import SqlIndex
from tests.serve.support import TOPIC, applied_after, copy, rows_of, write_snapshot
from tests.serve.test_sql import FLIGHT

CHANGES = rows_of(400)


def key_value(path: Path) -> Any:
    return KeyValueIndex.open(path, key_columns=["id"], versions=True)


def search(path: Path) -> Any:
    return SearchIndex.open(path, {"tailnum": "text"})


def sql(path: Path) -> Any:
    return SqlIndex.open(path, {TOPIC: TableShape(FLIGHT, "changelog")})


KINDS = [key_value, search, sql]


def ids(index: Any) -> list[int]:
    if isinstance(index, KeyValueIndex):
        return [found.row["id"] for found in index.scan(limit=1000).rows]
    if isinstance(index, SearchIndex):
        return sorted(hit.row["id"] for hit in index.search("*", limit=1000).hits)
    return [number for (number,) in index.query(f"SELECT id FROM {TOPIC} ORDER BY id").rows]


def to(index: Index, end: int) -> None:
    """Apply the changes that are missing up to `end`, and commit."""
    start = 0 if index.applied is None else index.applied.position[TOPIC][0]
    index.apply(CHANGES[start:end], applied_after(CHANGES[:end]))
    index.commit()


def snapshots(kind, path: Path, *ends: int) -> Path:
    index = kind(path / "live")
    for end in ends:
        to(index, end)
        write_snapshot(index, path / "snapshots")
    index.close()
    return path / "snapshots"


def position_of(kind, path: Path) -> int:
    """Where a restored index is; its rows are those of that position."""
    index = kind(path)
    end = index.applied.position[TOPIC][0]
    assert ids(index) == list(range(end))
    to(index, 400)
    assert ids(index) == list(range(400))
    index.close()
    return end


@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_is_restored_in_the_place_of_what_is_there(tmp_path, kind):
    taken = snapshots(kind, tmp_path, 100, 200, 300)
    assert [each.name for each in sorted(taken.iterdir())] == ["000000000002", "000000000003"]
    assert restore(taken, tmp_path / "live") == applied_after(CHANGES[:300])
    assert position_of(kind, tmp_path / "live") == 300
    assert restore(taken, tmp_path / "elsewhere" / "new") == applied_after(CHANGES[:300])
    assert position_of(kind, tmp_path / "elsewhere" / "new") == 300
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere", "live", "snapshots"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_commit_there_is_no_snapshot_and_nothing_to_restore(tmp_path, kind):
    index = kind(tmp_path / "live")
    assert write_snapshot(index, tmp_path / "snapshots") is None
    index.close()
    assert restore(tmp_path / "snapshots", tmp_path / "live") is None
    kind(tmp_path / "live").close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_is_stored_while_the_index_goes_on(tmp_path, kind):
    index = kind(tmp_path / "live")
    to(index, 100)
    taken = take(index)
    thread = threading.Thread(target=store, args=(*taken, tmp_path / "snapshots"))
    thread.start()
    for end in range(110, 400, 10):
        to(index, end)
    thread.join()
    index.close()
    assert restore(tmp_path / "snapshots", tmp_path / "restored") == applied_after(CHANGES[:100])
    assert position_of(kind, tmp_path / "restored") == 100
    assert [each.name for each in (tmp_path / "live").iterdir() if each.name == "staged"] == []


@pytest.mark.parametrize("how", ["flipped", "cut", "longer", "missing"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_one_is_refused_and_the_one_before_it_taken(tmp_path, kind, how):
    """Whatever file of it."""
    whole = snapshots(kind, tmp_path, 100, 200)
    newest = whole / "000000000002"
    files = [path.relative_to(newest) for path in sorted(newest.rglob("*")) if path.is_file() and path.stat().st_size]
    assert len(files) >= 3
    for number, name in enumerate(files):
        damaged = copy(whole, tmp_path / f"damaged {number}")
        damage(damaged / newest.name / name, how)
        with capture_logs() as logs:
            assert restore(damaged, tmp_path / str(number)) == applied_after(CHANGES[:100])
        refused = [each for each in logs if each["event"] == "snapshot_refused"]
        assert [each["snapshot"] for each in refused] == [str(damaged / newest.name)]
        assert position_of(kind, tmp_path / str(number)) == 100
        damage(
            damaged / "000000000001" / name if (damaged / "000000000001" / name).is_file() else manifest(damaged), how
        )
        assert restore(damaged, tmp_path / str(number)) is None
        assert position_of(kind, tmp_path / str(number)) == 400  # it was left alone
        assert not list(tmp_path.glob("*.restored"))


def manifest(directory: Path) -> Path:
    return directory / "000000000001" / "manifest.json"


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 0x80
    elif how == "cut":
        del data[-1]
    else:
        data += b"x"
    path.write_bytes(data)
    if how == "missing":
        path.unlink()


def test_a_snapshot_does_not_share_its_bytes_with_the_index(tmp_path):
    """A table that the disk damages under the index would be damaged in every snapshot that links to it."""
    taken = snapshots(key_value, tmp_path, 100)
    inodes = {path.stat().st_ino for path in (tmp_path / "live").rglob("*")}
    assert inodes.isdisjoint({path.stat().st_ino for path in taken.rglob("*")})


def test_one_that_was_not_finished_is_none(tmp_path, monkeypatch):
    taken = snapshots(key_value, tmp_path, 100)
    index = key_value(tmp_path / "live")
    to(index, 200)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("mainstem.serve.snapshot.write_atomically", full)
        with pytest.raises(OSError, match="No space left"):
            write_snapshot(index, taken)
    assert restore(taken, tmp_path / "restored") == applied_after(CHANGES[:100])
    write_snapshot(index, taken)
    index.close()
    assert restore(taken, tmp_path / "restored") == applied_after(CHANGES[:200])
    assert sorted(each.name for each in taken.iterdir()) == ["000000000001", "000000000002"]


def test_files_are_durable_before_the_manifest_and_all_before_the_number(tmp_path, monkeypatch):
    steps = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        steps.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        steps.append(f"rename {self.name} {target.name}")
        return rename(self, target)

    index = key_value(tmp_path / "live")
    to(index, 100)
    taken = take(index)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    made = store(*taken, tmp_path)
    index.close()
    written = steps.index("rename manifest.json.new manifest.json")
    numbered = steps.index("rename new 000000000001")
    files = {path.name for path in made.rglob("*") if path.is_file()} - {"manifest.json"}
    assert files <= set(steps[:written])
    assert {"new", "index"} <= set(steps[written:numbered])
    assert steps[numbered + 1] == tmp_path.name


def test_no_byte_of_a_manifest_may_change(tmp_path):
    """A position that is a digit off would be believed."""
    taken = snapshots(key_value, tmp_path, 100)
    path = manifest(taken)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert restore(taken, tmp_path / "restored") is None, whole[place : place + 20]
    path.write_bytes(whole)
    assert restore(taken, tmp_path / "restored") is not None


@pytest.mark.parametrize("name", ["/etc/passwd", "../../live/index.json"])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path, name):
    taken = snapshots(key_value, tmp_path, 100)
    path = manifest(taken)
    made = msgspec.json.decode(path.read_bytes(), type=Manifest)
    made.files[name] = made.files["index.json"]
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(made, sha256=made.hash())))
    with capture_logs() as logs:
        assert restore(taken, tmp_path / "restored") is None
    assert "is no file of a snapshot" in logs[0]["reason"]


def test_what_a_manifest_says(tmp_path):
    taken = snapshots(key_value, tmp_path, 100)
    tree = msgspec.json.decode(manifest(taken).read_bytes())
    assert (tree["format"], tree["kind"], tree["log"]) == (1, "key-value", "log")
    assert tree["applied"]["reads"] == {TOPIC: {"0": {"to": 100}}}
    index_json = (taken / "000000000001" / "index.json").read_bytes()
    assert tree["files"]["index.json"]["size"] == len(index_json)
