"""Small files that are either the old or the new version after a crash, never a mixture."""

import errno
import os
import stat
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable: a created or renamed file is lost without it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """One that is there is fine. What is missing above it is made, too, and all their names are durable on return."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)


def why_no_directory(error: OSError) -> str:
    """Why nothing can be written to what should be a directory; the system's words for a file there mislead."""
    if error.errno not in (errno.EEXIST, errno.ENOTDIR):
        return error.strerror or str(error)
    path = None if error.filename is None else Path(error.filename)
    return "found a link to nothing" if path and path.is_symlink() and not path.exists() else "found a file"


def check_regular(path: Path | str) -> os.stat_result:
    """What the system says of a file. What may block who opens it is refused: a named pipe waits for who writes to it.

    Raises:
        OSError: there is nothing at `path`, or no file; `strerror` says what.
    """
    found = Path(path).stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "Is a pipe, a socket or a device", str(path))
    return found


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of `path`; on return it survives a crash of the machine.

    1. write a neighbour, 2. sync it, 3. rename it over `path`, 4. sync the directory.
    """
    neighbour = path.with_name(path.name + ".new")
    descriptor = os.open(neighbour, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)  # the kernel names no file to whom it refuses a write
        raise
    finally:
        os.close(descriptor)
    neighbour.rename(path)
    sync_directory(path.parent)
