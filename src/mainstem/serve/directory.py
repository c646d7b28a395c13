"""The directory of an index: whose it is, and what an engine's failure means.

    index.json   {"format": 2, "kind": …, "shape": …, "committed": true|false}
    lock         held by the process that has it open
    index/       the engine's own files

`index.json` is there before any file of the engine. `committed` says that something was committed once: where nothing
is found then, files are missing, and that must not look like an index that is new. Until then there is nothing to keep:
what an engine was making when it was killed is removed.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mainstem.core.errors import MainstemError
from mainstem.core.files import make_directory, write_atomically
from mainstem.core.prepared import prepared
from mainstem.serve.errors import IndexDamaged, IndexInUse, IndexUnavailable, OtherShape

FORMAT = 2
NAME = "index.json"

_REFUSED = tuple(
    os.strerror(number)
    for number in (
        errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOMEM,
    )
)  # fmt: skip
_BUGS = (TypeError, LookupError, AttributeError, AssertionError, NameError)


class Description(msgspec.Struct, frozen=True):
    """What `index.json` says."""

    format: int
    kind: str
    shape: Any
    committed: bool = False


class IndexDirectory:
    """Held by one owner from `open` to `close`."""

    def __init__(self, path: Path, lock: int, description: Description) -> None:
        self.path = path
        self.description = description
        self._lock = lock

    @property
    def files(self) -> Path:
        """Where the engine's files are."""
        return self.path / "index"

    @staticmethod
    def open(path: Path, kind: str, shape: Any) -> "IndexDirectory":
        """Open it, or begin it where there is nothing yet.

        Raises:
            OtherShape: it is an index of another kind, format or shape.
            IndexDamaged: there are files, and nothing says of what.
            IndexInUse: somebody has it open.
        """
        make_directory(path)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            wanted = Description(FORMAT, kind, msgspec.to_builtins(shape))
            directory = IndexDirectory(path, lock, _described(path, wanted))
            if not directory.description.committed:
                directory._write()
                shutil.rmtree(directory.files, ignore_errors=True)
                make_directory(directory.files)
        except BlockingIOError as error:
            os.close(lock)
            raise IndexInUse(f"{path}: somebody else has it open") from error
        except BaseException:
            os.close(lock)
            raise
        return directory

    def close(self) -> None:
        """Let others open it."""
        os.close(self._lock)

    def check_found(self, found: bool) -> None:
        """Whether the engine `found` a commit has to fit what was committed.

        Raises:
            IndexDamaged: there was one once.
        """
        if self.description.committed and not found:
            raise IndexDamaged(f"{self.path}: it was committed to, and no commit is found: files are missing")

    def committed(self) -> None:
        """Call it after a commit."""
        if not self.description.committed:
            self.description = msgspec.structs.replace(self.description, committed=True)
            self._write()

    def copy_description(self, into: Path) -> None:
        """Begin a snapshot of a committed index in `into`; the engine's files are still missing."""
        make_directory(into)
        description = msgspec.structs.replace(self.description, committed=True)
        write_atomically(into / NAME, msgspec.json.encode(description))

    def _write(self) -> None:
        write_atomically(self.path / NAME, msgspec.json.encode(self.description))

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What an engine raises, as an error of ours: engines tell their errors apart by texts only, if at all."""
        try:
            yield
        except (MainstemError, KeyboardInterrupt, SystemExit, *_BUGS):
            raise
        except BaseException as error:  # a panic of Rust is no Exception
            raise self.meaning(error) from error

    def meaning(self, error: BaseException) -> MainstemError:
        """An error of an engine as one of ours, to be raised."""
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, MemoryError) or any(each in text for each in _REFUSED):
            return IndexUnavailable(f"{self.path}: {text}")
        if "lock hold by current process" in text:  # a reader of the index that was closed has not ended yet
            return IndexInUse(f"{self.path}: {text}")
        return IndexDamaged(f"{self.path}: {text}")


def _described(path: Path, wanted: Description) -> Description:
    """What lies in the directory, which is `wanted`."""
    try:
        found = msgspec.json.decode((path / NAME).read_bytes(), type=prepared(Description))
    except FileNotFoundError:
        if strange := [each.name for each in path.iterdir() if each.name not in ("lock", NAME + ".new")]:
            raise IndexDamaged(f"{path}: there is {strange[0]}, and no {NAME}") from None
        return wanted
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IndexDamaged(f"{path / NAME}: {error}") from error
    if not found.committed:
        return wanted
    if (found.format, found.kind, found.shape) != (wanted.format, wanted.kind, wanted.shape):
        told = [
            f"format {each.format} {each.kind} {msgspec.json.encode(each.shape).decode()}" for each in (wanted, found)
        ]
        raise OtherShape(f"{path}: expected {told[0]}, found {told[1]}")
    return found
