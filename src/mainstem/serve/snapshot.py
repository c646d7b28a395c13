"""Copies of an index from which a lost one is restored; the log leads on from there.

    <directory>/000000000007/manifest.json    {format, kind, log, applied, files: name -> size, sha256; sha256}
                             index.json …     the index, as `Index.snapshot` makes it
    <directory>/new                           one that is being written

Every file is synced before the manifest is written, and all of it before the directory gets its number: a snapshot with
a number is whole, unless the disk has changed it since, which its hashes tell. The files are copies, on whatever disk:
what damages the index does not damage them.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from mainstem.core.errors import CorruptData
from mainstem.core.files import make_directory, sync_directory, write_atomically
from mainstem.core.logging import get_logger
from mainstem.core.prepared import prepared
from mainstem.serve.directory import NAME, Description
from mainstem.serve.index import Applied, Index

log = get_logger()

FORMAT = 1
KEPT = 2
MANIFEST = "manifest.json"
_CHUNK = 1 << 20


class File(msgspec.Struct, frozen=True):
    """What a file of a snapshot has to be."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What is in a snapshot; `sha256` is that of the manifest itself, with an empty text in its place."""

    format: int
    kind: str
    log: str
    applied: Applied
    files: dict[str, File]
    sha256: str = ""

    def hash(self) -> str:
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, sha256=""))).hexdigest()


class _Damaged(CorruptData):
    """A snapshot is not what its manifest says."""


def take(index: Index) -> tuple[Path, Applied] | None:
    """Hold on to what is committed, beside the index: files that no longer change are linked, not copied."""
    staged = index.path / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    if index.applied is None:
        return None
    index.snapshot(staged)
    return staged, index.applied


def store(staged: Path, applied: Applied, directory: Path) -> Path:
    """Copy what was taken to a snapshot of its own, and forget it.

    1. copy, hash and sync the files, 2. write the manifest, 3. sync the names, 4. give it its number, 5. remove old
    ones.
    """
    make_directory(directory)
    new = directory / "new"
    shutil.rmtree(new, ignore_errors=True)
    files = {name: _copied(staged / name, new / name) for name in _names(staged)}
    kind = msgspec.json.decode((staged / NAME).read_bytes(), type=prepared(Description)).kind
    manifest = Manifest(FORMAT, kind, applied.log, applied, files)
    manifest = msgspec.structs.replace(manifest, sha256=manifest.hash())
    write_atomically(new / MANIFEST, msgspec.json.encode(manifest))
    _sync_names(new)
    numbers = _numbers(directory)
    made = directory / f"{max(numbers, default=0) + 1:012}"
    new.rename(made)
    sync_directory(directory)
    for number in numbers[: len(numbers) + 1 - KEPT]:
        shutil.rmtree(directory / f"{number:012}")
    shutil.rmtree(staged)
    return made


def restore(directory: Path, into: Path) -> Applied | None:
    """Put the newest whole snapshot in the place of the index `into`, which nobody has open, and say where it is.

    None: there is none, and the index is to be built from the log; `into` is as it was.
    """
    for number in reversed(_numbers(directory)):
        snapshot = directory / f"{number:012}"
        beside = into.with_name(into.name + ".restored")
        shutil.rmtree(beside, ignore_errors=True)
        try:
            manifest = _read_manifest(snapshot)
            _copy_checked(manifest, snapshot, beside)
        except _Damaged as error:
            log.warning("snapshot_refused", snapshot=str(snapshot), reason=str(error))
            shutil.rmtree(beside, ignore_errors=True)
            continue
        _sync_names(beside)
        _replace(into, beside)
        log.info("snapshot_restored", snapshot=str(snapshot), position=manifest.applied.position)
        return manifest.applied
    return None


def _read_manifest(snapshot: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode((snapshot / MANIFEST).read_bytes(), type=prepared(Manifest))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Damaged(f"{MANIFEST}: {error}") from error
    if manifest.format != FORMAT:
        raise _Damaged(f"{MANIFEST}: expected format {FORMAT}, found {manifest.format}")
    if manifest.sha256 != manifest.hash():
        raise _Damaged(f"{MANIFEST}: its content is not the one that was written")
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise _Damaged(f"{MANIFEST}: {name!r} is no file of a snapshot")
    return manifest


def _copy_checked(manifest: Manifest, snapshot: Path, target: Path) -> None:
    for name, file in manifest.files.items():
        if _copied(snapshot / name, target / name) != file:
            raise _Damaged(f"{name}: its content is not the one that was written")


def _copied(source: Path, target: Path) -> File:
    """Copy a file, durable on return, and say what it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as file:
        for chunk in _chunks(source):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return File(size, digest.hexdigest())


def _chunks(source: Path) -> Iterator[bytes]:
    try:
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise _Damaged(f"{source.name}: {error.strerror}") from error


def _replace(into: Path, beside: Path) -> None:
    """`beside` becomes `into`. After a crash in between there is no `into`, and it is restored again."""
    old = into.with_name(into.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    make_directory(into.parent)
    with contextlib.suppress(FileNotFoundError):
        into.rename(old)
    beside.rename(into)
    sync_directory(into.parent)
    shutil.rmtree(old, ignore_errors=True)


def _names(directory: Path) -> list[str]:
    return sorted(each.relative_to(directory).as_posix() for each in directory.rglob("*") if each.is_file())


def _numbers(directory: Path) -> list[int]:
    """Of the snapshots that are there, the oldest first."""
    if not directory.is_dir():
        return []
    return sorted(int(each.name) for each in directory.iterdir() if each.name.isdecimal() and len(each.name) == 12)


def _sync_names(directory: Path) -> None:
    for each in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        sync_directory(each)
