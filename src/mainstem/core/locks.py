"""A directory belongs to one process at a time."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from mainstem.core.errors import UserError
from mainstem.core.files import make_directory, why_no_directory
from mainstem.core.forks import keep_from_forks

ASKED_FOR_S = 0.25  # many times as long as somebody who asks holds it, see `is_held`


class DirectoryInUse(UserError):
    """Another live process holds the directory."""


class UnusableDirectory(UserError):
    """The directory cannot be made or written to."""


class DirectoryLock:
    """An advisory lock on `directory`/`name`, held until `release` or the end of the process, however it ends; a fork
    does not hold it.

    The file names the holder's process id for people; the kernel's lock is what counts, so a file left by a
    killed process holds nobody up. That needs no room on the disk: what a full one keeps can be deleted under it.

    Raises:
        DirectoryInUse: another process holds it.
        UnusableDirectory: it cannot be made or written to.
    """

    def __init__(self, directory: Path, name: str = "lock") -> None:
        path = directory / name
        try:
            make_directory(directory)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UnusableDirectory(
                f"{directory}: expected a directory to write to: {why_no_directory(error)}",
                hint="choose another directory",
            ) from None
        keep_from_forks(self)
        if not self._take():
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip() or "unknown"
            self.release()
            own = holder == str(os.getpid())
            hint = "that is this program: close what has it" if own else "stop that process"
            raise DirectoryInUse(
                f"{directory}: in use by process {holder}", hint=f"{hint}, or choose another directory"
            )
        name_of_holder = f"{os.getpid()}\n".encode()
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, name_of_holder, 0)
            os.ftruncate(self._descriptor, len(name_of_holder))

    def _take(self) -> bool:
        deadline = time.monotonic() + ASKED_FOR_S
        while not _flock(self._descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def descriptors(self) -> Iterable[int]:
        """Of the lock's file, while it is held."""
        return [self._descriptor] if self._descriptor >= 0 else []

    def release(self) -> None:
        """Let others have it; nothing happens where it is not held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


@contextlib.contextmanager
def hold(directory: Path, name: str, seconds: float) -> Iterator[None]:
    """Hold a lock that others hold for short times, one after the other.

    Raises:
        DirectoryInUse: another process has held it for all of the time.
        UnusableDirectory: as `DirectoryLock`.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            lock = DirectoryLock(directory, name)
            break
        except DirectoryInUse:
            if time.monotonic() > deadline:
                raise
    with lock:
        yield


def is_held(directory: Path, name: str = "lock") -> bool:
    """Whether a process holds the lock now. Any number may ask at once, and nobody has to be allowed to write.

    Raises:
        OSError: the lock cannot be read.
    """
    try:
        descriptor = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return not _flock(descriptor, fcntl.LOCK_SH)  # shared: those who ask are not in each other's way
    finally:
        os.close(descriptor)


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
