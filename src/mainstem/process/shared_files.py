"""Files of an environment at one place in the cache, for all environments that have the same.

A class archive fits one Java and one class path, and takes more than a minute to make. pip gives every environment
files of its own; those of the first are linked into the cache, and from then on they serve all. A link takes no room,
and goes on to hold what it names when the environment is deleted.

    <room>/<digest>/                   the links
    <room>/<digest>/environments.txt   for whom: one directory a line
    <room>/<digest>.<letters>/         being made; that of a killed process is nobody's, and removed as such
    <room>/lock                        held by who makes or removes one
"""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_USERS = "environments.txt"


def share(room: Path, digest: str, own: Path, files: Mapping[str, int]) -> Path:
    """The directory `room`/`digest` with `files` (path below `own` -> size); made where it is missing or not whole.

    Raises:
        OSError: they cannot be linked there: it is another file system, or may not be written to.
    """
    shared = room / digest
    if not _serves(shared, own, files):
        with _one_at_a_time(room):
            if sizes(shared, _folders(files)) != files:
                _link(own, shared, files)
            if str(own) not in _users(shared):
                with (shared / _USERS).open("a") as users:
                    users.write(f"{own}\n")
    return shared


def remove_unused(room: Path) -> None:
    """Remove the shared directories of which every environment is gone; a room that cannot be written to is left."""
    if not room.is_dir():
        return
    with contextlib.suppress(OSError), _one_at_a_time(room):
        for shared in (path for path in room.iterdir() if path.is_dir()):
            if not any(Path(line).is_dir() for line in _users(shared)):
                shutil.rmtree(shared, ignore_errors=True)


def sizes(directory: Path, folders: Iterable[str]) -> dict[str, int]:
    """Path -> size of the files in some folders of a directory ("." is itself), not of what lies deeper."""
    return {
        str(Path(folder, each.name)): each.stat().st_size
        for folder in folders
        if (directory / folder).is_dir()
        for each in os.scandir(directory / folder)
        if each.is_file() and each.name != _USERS
    }


def _folders(files: Iterable[str]) -> set[str]:
    return {str(Path(name).parent) for name in files}


def _serves(shared: Path, own: Path, files: Mapping[str, int]) -> bool:
    """It is whole, and nobody removes it while `own` is there: then nothing has to be written, and no lock held."""
    return str(own) in _users(shared) and sizes(shared, _folders(files)) == files


def _link(own: Path, shared: Path, files: Iterable[str]) -> None:
    """Make `shared` whole or not at all."""
    new = shared.with_name(f"{shared.name}.{secrets.token_hex(4)}")
    try:
        for name in files:
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(own / name, new / name)
        if shared.is_dir():
            shutil.rmtree(shared)  # somebody has deleted some of it
        new.rename(shared)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _users(shared: Path) -> Iterator[str]:
    file = shared / _USERS
    yield from file.read_text().splitlines() if file.is_file() else ()


@contextmanager
def _one_at_a_time(room: Path) -> Iterator[None]:
    room.mkdir(parents=True, exist_ok=True)
    with (room / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go when the holder ends, however it ends
        yield
