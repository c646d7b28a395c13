"""A directory belongs to one process at a time."""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType

from mainstem.core.errors import UserError


class DirectoryInUse(UserError):
    """Another live process holds the directory."""


class UnusableDirectory(UserError):
    """The directory cannot be made or written to."""


class DirectoryLock:
    """An advisory lock on `directory`/`name`, held until `release` or the end of the process, however it ends.

    The file names the holder's process id for people; the kernel's lock is what counts, so a file left by a
    killed process holds nobody up. That needs no room on the disk: what a full one keeps can be deleted under it.

    Raises:
        DirectoryInUse: another process holds it.
        UnusableDirectory: it cannot be made or written to.
    """

    def __init__(self, directory: Path, name: str = "lock") -> None:
        path = directory / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UnusableDirectory(
                f"{directory}: expected a directory to write to: {error.strerror}", hint="choose another with --data"
            ) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise DirectoryInUse(
                f"{directory}: in use by process {holder}",
                hint="stop that process, or choose another directory with --data",
            ) from None
        name_of_holder = f"{os.getpid()}\n".encode()
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, name_of_holder, 0)
            os.ftruncate(self._descriptor, len(name_of_holder))

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
