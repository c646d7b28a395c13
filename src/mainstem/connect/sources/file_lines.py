"""Where a file source is in its file, whether a file is still the same one, and what its bytes hold.
Reads, never writes.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import xxhash
from msgspec import Meta

FINGERPRINT_BYTES = 1024
REMEMBERED = 16
_COMPARED_BYTES = 1 << 20
_BOTH_WRITTEN_NS = 600_000_000_000
# What a rotation puts behind the name: a number or a time, `.1`, `-20240501`, `.2024-05-01_12`, `.1714521600`. Anything
# else beside the file is somebody's copy, a checksum, an editor's swap file.
_ROTATED = re.compile(r"[.-][0-9]+(?:[-_.:T][0-9]+)*")
_MOST_LINES = 20_000
"""In one chunk: a transaction of a million empty lines takes longer than it may."""
NO_HEAD = xxhash.xxh64_intdigest(b"")


class Head(msgspec.Struct, frozen=True):
    """What a file is known by."""

    inode: int
    bytes: Annotated[int, Meta(ge=0, le=FINGERPRINT_BYTES)]
    hash: int


class FilePosition(msgspec.Struct, frozen=True):
    """How far a file was read. A file is known by its inode and the hash of its first bytes: an inode alone is given to
    the next file when the old one is deleted, and the first bytes alone are shared by many logs.
    """

    inode: int
    position: Annotated[int, Meta(ge=0)] = 0  # the next byte to read: the start of a line, or of a piece of a long one
    # How many of the first bytes are in `head_hash`: at most what was read already.
    head_bytes: Annotated[int, Meta(ge=0, le=FINGERPRINT_BYTES)] = 0
    head_hash: int = NO_HEAD
    in_long_line: bool = False
    ended: bool = False
    done: tuple[Head, ...] = ()  # files that were read to their end, the last 16: they may lie beside it for weeks


class Line(msgspec.Struct, frozen=True):
    """A line without its end, where it starts, or a piece of one that is too long (`whole` is false)."""

    position: int
    data: bytes
    whole: bool = True


class Chunk(msgspec.Struct, frozen=True):
    """What was read at once: lines, where to go on, and whether that is in the middle of a long line."""

    lines: list[Line]
    position: int
    in_long_line: bool


def open_file(path: Path) -> BinaryIO:
    """Opened for reading; a pipe that nobody writes to would never come back."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def head_hash(file: BinaryIO, size: int) -> int:
    """A hash of the first `size` bytes."""
    return xxhash.xxh64_intdigest(os.pread(file.fileno(), size, 0))


def start(file: BinaryIO, after: FilePosition | None = None) -> FilePosition:
    """The beginning of `file`, which came after another one."""
    done = () if after is None else after.done
    # Without a head, an inode alone would also fit the file that gets it next.
    if after is not None and after.head_bytes:
        done = (*done, Head(after.inode, after.head_bytes, after.head_hash))[-REMEMBERED:]
    return FilePosition(os.fstat(file.fileno()).st_ino, done=done)


def moved(file: BinaryIO, before: FilePosition, chunk: Chunk) -> FilePosition:
    """The position after `chunk`; the fingerprint grows with it until it covers `FINGERPRINT_BYTES`."""
    size = min(FINGERPRINT_BYTES, chunk.position)
    known = before.head_hash if size == before.head_bytes else head_hash(file, size)
    return msgspec.structs.replace(
        before,
        position=chunk.position,
        head_bytes=size,
        head_hash=known,
        in_long_line=chunk.in_long_line,
        ended=False,
    )


def is_same(file: BinaryIO, position: FilePosition) -> bool:
    """Whether `file` is the one that `position` speaks of and still has all that was read."""
    return os.fstat(file.fileno()).st_ino == position.inode and has_content(file, position)


def has_content(file: BinaryIO, position: FilePosition) -> bool:
    """Whether `file` begins like the one that `position` speaks of, and has all that was read of it."""
    return (
        os.fstat(file.fileno()).st_size >= position.position
        and head_hash(file, position.head_bytes) == position.head_hash
    )


def read_lines(file: BinaryIO, at: FilePosition, *, size: int, max_line: int, at_end: bool) -> Chunk:
    """The whole lines in the next `size` bytes, or the first of them where there are very many.

    Args:
        file: opened for reading.
        at: where to read on.
        size: at most so many bytes; at least `max_line`.
        max_line: what is longer comes in pieces of at most so many bytes that are not `whole`.
        at_end: nothing more is ever written: the last line counts although its end is missing.
    """
    assert size > max_line
    data = os.pread(file.fileno(), size, at.position)
    is_last = at_end and len(data) < size
    lines: list[Line] = []
    begin, in_long_line = 0, at.in_long_line
    while True:
        stop = data.find(b"\n", begin)
        end = len(data) if stop < 0 else stop
        waits = stop < 0 and not (end - begin > max_line or (end > begin and is_last))
        if waits or len(lines) >= _MOST_LINES:
            return Chunk(lines, at.position + begin, in_long_line)
        is_long = in_long_line or end - begin > max_line
        is_ended = stop >= 0 or is_last
        line = _stripped(data[begin:end]) if is_ended else data[begin:end]
        lines += _pieces(at.position + begin, line, max_line) if is_long else [Line(at.position + begin, line)]
        begin, in_long_line = end + (stop >= 0), not is_ended


def _pieces(position: int, line: bytes, size: int) -> Iterator[Line]:
    """A long line in records that the quarantine takes, however much of it was read at once."""
    for begin in range(0, len(line), size):
        yield Line(position + begin, line[begin : begin + size], whole=False)


def _stripped(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line


def forerunners(path: Path, since: FilePosition) -> Iterator[Path]:
    """What `path` was called before it was rotated: the file of `since` first, then those that came after it,
    oldest first.

    The file of `since` has its inode, whatever it is called; or it is a copy, made before the original was cut
    (logrotate's `copytruncate`): then the first 1024 bytes must agree. Others are known by the name that a rotation
    gives. Compressed files are left out: a position in them means nothing.

    Raises:
        OSError: one of the files beside it, or their directory, cannot be read.
    """
    found = [
        (each, stat.st_ino)
        for each, stat in sorted(_beside(path), key=lambda each: _age(path, *each))
        if _is_rotated(path, each) or (since.head_bytes and stat.st_ino == since.inode)
    ]
    copy_counts = since.head_bytes == FINGERPRINT_BYTES
    for same in (is_same, has_content) if copy_counts else (is_same,):
        for number, (each, inode) in enumerate(found):
            with each.open("rb") as file:
                if same(file, since):
                    yield each
                    later = (name for name, other in found[number + 1 :] if other not in (inode, since.inode))
                    yield from (name for name in later if not _was_done(name, since))
                    return


def unordered(path: Path, old: Path, since: FilePosition) -> Path | None:
    """A rotated file that may have come after `old`, although its time is before; None where there is none.

    That can be told where `old`, the file of `since`, is later than the one at `path`, which came after it: the clock
    was set back, or `old` was touched. Some minutes say nothing: a server may write to both for a while.
    """
    try:
        newest = path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    time_ns = old.stat().st_mtime_ns
    if time_ns - newest <= _BOTH_WRITTEN_NS:
        return None
    for each, stat in _beside(path):
        if each != old and _is_rotated(path, each) and stat.st_mtime_ns < time_ns and not _was_done(each, since):
            return each
    return None


def _beside(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files whose names begin with that of `path`."""
    for each in path.parent.iterdir():  # Path.glob passes over a directory that it may not list
        if each.name.startswith((f"{path.name}.", f"{path.name}-")) and each.is_file():
            yield each, each.stat()


def _age(path: Path, each: Path, stat: os.stat_result) -> tuple[int, int, Path]:
    """Oldest first. Of the same moment, which is a second to some file systems, `.2` is older than `.1`."""
    number = each.name.removeprefix(path.name)[1:]
    return stat.st_mtime_ns, -int(number) if number.isdecimal() and len(number) < 4 else 0, each


def _is_rotated(path: Path, name: Path) -> bool:
    return _ROTATED.fullmatch(name.name.removeprefix(path.name)) is not None


def original(path: Path, copy: Path, since: FilePosition) -> Path | None:
    """The file that was read already and whose bytes are those of `copy`; None where it is none.

    Files of less than 1024 bytes may be equal by chance.
    """
    read = {since.inode, *(head.inode for head in since.done)}
    with copy.open("rb") as file:
        inode = os.fstat(file.fileno()).st_ino
        for each, stat in _beside(path):
            if stat.st_ino in read - {inode}:
                with each.open("rb") as other:
                    if _is_copy(file, other):
                        return each
    return None


def is_rewritten(path: Path, old: BinaryIO, new: BinaryIO) -> bool:
    """Whether `new` took the place of `old` at `path` and begins with all of it, as after rsync or an editor, which
    replace a file to add to it. Where the old one has a rotation's name both only begin alike.
    """
    before = os.fstat(old.fileno())
    if any(stat.st_ino == before.st_ino and _is_rotated(path, each) for each, stat in _beside(path)):
        return False
    return os.fstat(new.fileno()).st_size >= before.st_size and _is_copy(old, new)


def _is_copy(file: BinaryIO, other: BinaryIO) -> bool:
    """Whether one of the two begins with all of the other."""
    size = min(os.fstat(file.fileno()).st_size, os.fstat(other.fileno()).st_size)
    return size >= FINGERPRINT_BYTES and all(
        os.pread(file.fileno(), min(_COMPARED_BYTES, size - place), place)
        == os.pread(other.fileno(), min(_COMPARED_BYTES, size - place), place)
        for place in range(0, size, _COMPARED_BYTES)
    )


def _was_done(path: Path, position: FilePosition) -> bool:
    with path.open("rb") as file:
        inode = os.fstat(file.fileno()).st_ino
        return any(head.inode == inode and head_hash(file, head.bytes) == head.hash for head in position.done)
