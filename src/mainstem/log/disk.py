"""The seam between the log and the operating system: tests fail the next write here, or lose what was not synced."""

import errno
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

from mainstem.core import files

Buffer = bytes | bytearray | memoryview

# Linux takes 1024 pieces per call (IOV_MAX).
_MOST_PIECES = 1024
_MOST_BYTES = 2**18  # of one write: a large one gets large pages, of which a host may have taken the memory back

_CACHESTAT = 451  # its number on every architecture

_tells: dict[int, bool] = {}
"""Of file systems (by device): whether the system finds in memory what was just written. Of overlayfs it finds none."""

_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h: begin to write pages that are dirty and not on their way; wait for none


class File(Protocol):
    """An open file; every call names its position. It is closed when nobody refers to it any more."""

    path: Path

    def write(self, pieces: list[Buffer], position: int) -> None:
        """Write all pieces one after the other from `position`; raises OSError when the disk refuses."""
        ...

    def read(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def read_cached(self, buffer: memoryview, position: int) -> int:
        """Read into `buffer` without waiting for the disk; the number of bytes, -1 where that is not possible."""
        ...

    def cached_share(self, size: int, position: int) -> float | None:
        """How much of that is in memory, from 0 to 1; None where the system does not tell. Unlike a read that must not
        wait, it does not make the system read ahead.
        """
        ...

    def send(self, descriptor: int, size: int, position: int) -> int:
        """Give bytes to a socket that does not block; how many it takes, 0 or less where it takes none or that cannot
        be.
        """
        ...

    def read_around_cache(self, buffer: memoryview, position: int, block: int) -> int:
        """Read into `buffer`; the number of bytes, fewer only at the end of the file. Where that can be, the system
        keeps nothing of it and reads nothing ahead, and the disk has one block at a time to do, which ends at a
        multiple of its size: position, sizes and memory are multiples of 4 KB for that.
        """
        ...

    def sync(self) -> None:
        """On return, what was written survives a crash of the machine (fdatasync)."""
        ...

    def begin_writeback(self, position: int, size: int) -> None:
        """Let the system begin to bring these bytes to the disk: a hint, which promises nothing and may wait."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or, with zeros, extend to `size` bytes; durable after `sync`."""
        ...

    def size(self) -> int:
        """In bytes."""
        ...


class Disk(Protocol):
    """What the log asks of a file system: every call may block, and raises OSError when the disk refuses."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; with `create`, a missing file is made (durable after `sync_directory`)."""
        ...

    def read_file(self, path: Path) -> bytes:
        """All of it; raises FileNotFoundError where there is none."""
        ...

    def write_atomically(self, path: Path, data: bytes) -> None:
        """Replace the file's content, durably; a crash leaves the old or the new."""
        ...

    def write_file(self, path: Path, data: bytes) -> None:
        """Write a file that can be derived again: not synced."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Within one directory, over what has the name `new`; durable after `sync_directory`."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file; a missing one is fine. Durable after `sync_directory`."""
        ...

    def set_time(self, path: Path, time_ms: int) -> None:
        """When a file was last changed, for whoever else reads it; a crash may lose it."""
        ...

    def make_directory(self, path: Path) -> None:
        """One that is there is fine. Durable after `sync_directory` of its parent."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and the files in it."""
        ...

    def list(self, path: Path) -> list[Path]:
        """What is in a directory, sorted."""
        ...

    def file_size(self, path: Path) -> int:
        """In bytes; raises FileNotFoundError where there is none."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a file or a directory is there."""
        ...

    def is_directory(self, path: Path) -> bool:
        """Whether it is one, and there."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make durable which names the directory has; EMFILE and ENFILE: it was not opened, and no sync failed."""
        ...


class SystemFile:
    """A file of the operating system."""

    __slots__ = ("__weakref__", "_descriptor", "_device", "_nowait", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._device = os.fstat(descriptor).st_dev
        self._nowait = True

    def write(self, pieces: list[Buffer], position: int) -> None:
        try:
            for step in _steps(pieces):
                position += _write_all(self._descriptor, step, position)
        except OSError as error:
            raise self._named(error) from None
        if self._device not in _tells and position:
            _tells[self._device] = self._cached_pages(1, position - 1) == 1

    def read(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def read_cached(self, buffer: memoryview, position: int) -> int:
        if not self._nowait:
            return -1
        try:
            return os.preadv(self._descriptor, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return -1
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            self._nowait = False
            return -1

    def cached_share(self, size: int, position: int) -> float | None:
        if not _tells.get(self._device, True) or (found := self._cached_pages(size, position)) < 0:
            return None
        pages = (position + size - 1) // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
        return min(1.0, found / max(pages, 1))

    def _cached_pages(self, size: int, position: int) -> int:
        """How many are in memory; negative where that is not told."""
        cached_pages = _cachestat()
        return -1 if cached_pages is None else cached_pages(self._descriptor, position, size)

    def send(self, descriptor: int, size: int, position: int) -> int:
        try:
            return os.sendfile(descriptor, self._descriptor, position, size)
        except (AttributeError, OSError):  # full, gone, or no such call here: what is left is read and written
            return -1

    def read_around_cache(self, buffer: memoryview, position: int, block: int) -> int:
        found = self._read_directly(buffer, position, block)
        while found < len(buffer) and (more := os.preadv(self._descriptor, [buffer[found:]], position + found)):
            found += more
        return found

    def _read_directly(self, buffer: memoryview, position: int, block: int) -> int:
        """So much as can be; nothing where the system, or the file system, has no such reads."""
        try:
            direct = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            try:
                return _read_blocks(direct, buffer, position, block)
            finally:
                os.close(direct)
        except AttributeError:
            return 0
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise
            return 0

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._named(error) from None

    def begin_writeback(self, position: int, size: int) -> None:
        sync_file_range = _sync_file_range()
        if sync_file_range is not None:
            sync_file_range(self._descriptor, position, size, _SYNC_FILE_RANGE_WRITE)

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._named(error) from None

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def _named(self, error: OSError) -> OSError:
        """With the file, which the system does not name to who has it open."""
        error.filename = str(self.path)
        return error

    def __del__(self) -> None:
        os.close(self._descriptor)


class SystemDisk:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SystemFile(path, os.open(path, flags, 0o644))

    def read_file(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_atomically(self, path: Path, data: bytes) -> None:
        files.write_atomically(path, data)

    def write_file(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def set_time(self, path: Path, time_ms: int) -> None:
        os.utime(path, ns=(time_ms * 1_000_000,) * 2)

    def make_directory(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def list(self, path: Path) -> list[Path]:
        return sorted(path.iterdir())

    def file_size(self, path: Path) -> int:
        return path.stat().st_size

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def remove_tree(self, path: Path) -> None:
        for entry in sorted(path.iterdir()):  # a partition's id goes last: without it, nobody knows whose the rest is
            entry.unlink()
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        files.sync_directory(path)


def _read_blocks(descriptor: int, buffer: memoryview, position: int, block: int) -> int:
    """The number of bytes, up to the first block that is not whole."""
    found = 0
    while found < len(buffer):
        size = min(block - (position + found) % block, len(buffer) - found)
        count = os.preadv(descriptor, [buffer[found : found + size]], position + found)
        found += count
        if count < size:
            break
    return found


def _steps(pieces: list[Buffer]) -> Iterator[list[Buffer]]:
    """The same bytes in lists of so many pieces and bytes as one write takes."""
    step: list[Buffer] = []
    room = _MOST_BYTES
    for piece in pieces:
        view, size = piece, len(piece)
        while size > room:
            view = memoryview(view)
            yield [*step, view[:room]]
            view, size, step, room = view[room:], size - room, [], _MOST_BYTES
        step.append(view)
        room -= size
        if len(step) == _MOST_PIECES:
            yield step
            step, room = [], _MOST_BYTES
    if step:
        yield step


def _write_all(descriptor: int, pieces: list[Buffer], position: int) -> int:
    total = sum(map(len, pieces))
    done = os.pwritev(descriptor, pieces, position)
    while done < total:  # a short write: a signal, or the disk is nearly full
        rest = memoryview(b"".join(pieces))[done:]
        written = os.pwrite(descriptor, rest, position + done)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += written
    return total


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux's, which Python does not offer; None elsewhere. What it returns is of no account: it is for hints."""
    from ctypes import CDLL, c_int, c_longlong, c_uint  # 4 ms, which a start does not need

    try:
        function = CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = [c_int, c_longlong, c_longlong, c_uint]
    function.restype = c_int
    return function


@cache
def _cachestat() -> Callable[[int, int, int], int] | None:
    """How many pages of a descriptor's bytes (position, size) are in the page cache, negative where that is not told:
    Linux 6.5 and later (https://man7.org/linux/man-pages/man2/cachestat.2.html); None elsewhere.
    """
    if sys.platform != "linux":
        return None
    from ctypes import POINTER, PyDLL, Structure, byref, c_long, c_uint, c_uint64

    class Range(Structure):
        """Which part of a file; all of it where `length` is 0."""

        _fields_ = (("offset", c_uint64), ("length", c_uint64))

    class Found(Structure):
        """Pages of it, by what they are."""

        _fields_ = tuple((name, c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted"))

    try:
        call = PyDLL(None).syscall  # for so short a call the interpreter's lock is kept
    except (AttributeError, OSError, TypeError):
        return None
    call.argtypes = [c_long, c_uint, POINTER(Range), POINTER(Found), c_uint]
    call.restype = c_long

    def cached_pages(descriptor: int, position: int, size: int) -> int:
        found = Found()
        if call(_CACHESTAT, descriptor, byref(Range(position, size)), byref(found), 0) != 0:
            return -1
        return int(found.cached)

    return cached_pages
