"""What stands in the data directory about itself.

`mainstem.json` says that it is one, of which format, and since the first start of which project and with which log:

    {"format":1,"project":"/srv/shop","name":"shop","log":"5L6g3nShT-eMCtK--X86sw","id":"1f0c..."}

What jobs, sources and sinks keep there is true of that project and that log alone, so others are refused. `log` is the
cluster id; `id` tells this directory from others, where two projects of one name share a log. A program refuses a
larger format than its own. `{"format":0}` stands in one that is being deleted, to the last: `up` refuses what a crash
has left of it.

`up.json` is what a running `mainstem up` says of itself, for the other commands:

    {"format": 1, "pid": 4711, "project": "...", "bootstrap": "127.0.0.1:9092", "gateway": "http://127.0.0.1:9600",
     "started_at": 1760000000.0, "options": ["--gateway", "127.0.0.1:9600"],
     "children": [{"name": "log", "state": "running", "pid": 4712, ...}]}

It is a hint: whether `up` runs is told by the lock beside it. It stays when `up` ends: `options` are the addresses and
the master as they were given, so that others can say how the same node is started again.
"""

import contextlib
import errno
import os
import uuid
from pathlib import Path

import msgspec

from mainstem.core import UserError
from mainstem.core.config import PROJECT_FILE
from mainstem.core.files import write_atomically
from mainstem.core.locks import is_held
from mainstem.core.prepared import prepared
from mainstem.standalone.supervisor import ChildState

FORMAT = 1
DIRECTORY_FORMAT = 1
BEING_DELETED = 0

LAYOUT = {"log": "log", "logs": "logs", "spark": "spark", "tables": "tables", "serve": "serve"}
"""What lies where below a data directory."""

EMPTY = {"lock", "mainstem.json.new", "lost+found"}
"""What an empty directory may hold: our lock, what a crash left of the marker, and what a mounted disk brings."""


class NotOurDirectory(UserError):
    """The directory holds something else, or data of a later program."""


class OtherProject(UserError):
    """The data directory belongs to another project."""


class OtherLog(UserError):
    """What the data directory holds was made with another log."""


class Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of `mainstem.json`; "" is not known yet."""

    format: int
    project: str = ""  # its directory when it was last started
    name: str = ""
    log: str = ""  # cluster id
    id: str = ""


def marker_file(data: Path) -> Path:
    return data / "mainstem.json"


def check_directory(data: Path, hint: str = "give --data the directory that `mainstem up` was given") -> Marker:
    """Refuse what is no data directory of ours, or has a later format; its marker. `hint` is for one that has none.

    Raises:
        NotOurDirectory: it has no marker, or one that this program does not know.
    """
    try:
        marker = msgspec.json.decode(marker_file(data).read_bytes(), type=prepared(Marker))
    except (OSError, msgspec.DecodeError):
        raise NotOurDirectory(
            f"{data}: expected a data directory of Mainstem, found no {marker_file(data).name}", hint=hint
        ) from None
    if marker.format > DIRECTORY_FORMAT:
        raise NotOurDirectory(
            f"{data}: data directory of format {marker.format}, this program knows {DIRECTORY_FORMAT}",
            hint="use the version of Mainstem that wrote it, or a later one",
        )
    return marker


def claim_directory(data: Path) -> None:
    """Make `data` a data directory, where it is empty or of a program that left no marker yet. Call it under its lock.

    Raises:
        NotOurDirectory: it holds something else: `mainstem clean` would delete that one day. Or what a `mainstem
            clean` that was interrupted has left.
    """
    if not marker_file(data).exists() and (state_file(data).exists() or is_empty(data)):
        write_atomically(marker_file(data), msgspec.json.encode(Marker(DIRECTORY_FORMAT)))
    marker = check_directory(data, hint="give --data an empty directory or a new one")
    if marker.format == BEING_DELETED:
        raise NotOurDirectory(
            f"{data}: expected a whole data directory, found one that was being deleted",
            hint="`mainstem clean` deletes the rest",
        )


def check_project(data: Path, project: Path, name: str) -> Marker:
    """Refuse the data directory of another project; one that was moved, with its data or without, is the same.

    Args:
        data: has a marker.
        project: its directory.
        name: as its settings say; else that of its directory.

    Raises:
        OtherProject: the project that was started with it is there still, and is another.
    """
    marker, project = check_directory(data), project.resolve()
    before = Path(marker.project)
    is_default = name == project.name and marker.name == before.name  # two in directories of one name are two
    if (
        not marker.project
        or before == project
        or data.resolve().parent == project
        or (marker.name == name and not is_default)
        or not (before / PROJECT_FILE).is_file()
    ):
        return marker
    raise OtherProject(
        f"{data}: expected the data directory of the project {project}, found that of {before}",
        hint="give each project a directory of its own: --data or MAINSTEM_DATA names it, without them it is PROJECT/.mainstem",
    )


def bind_project(data: Path, project: Path, name: str) -> Marker:
    """Write down that `data` belongs to this project, and give it an id, unless that is known. Call it under its lock.

    Raises:
        OtherProject: it belongs to another.
    """
    marker = check_project(data, project, name)
    bound = msgspec.structs.replace(marker, project=str(project.resolve()), name=name, id=marker.id or uuid.uuid4().hex)
    return _write(data, marker, bound)


def check_log(data: Path, found: str, place: str, hint: str) -> None:
    """Refuse another log than the one that all in `data` was made with.

    Args:
        data: has a marker.
        found: cluster id; "" where there is no log yet.
        place: where it was found.
        hint: how the other one is named.

    Raises:
        OtherLog: it is another.
    """
    expected = check_directory(data).log
    if expected not in ("", found):
        raise OtherLog(
            f"{data}: expected the log {expected}, with which all in it was made, found {found or 'none'} {place}",
            hint=f"{hint}; or give --data a new directory, to begin anew",
        )


def bind_log(data: Path, found: str) -> None:
    """Write down with which log what is in `data` was made, unless that is known. Call it under its lock."""
    marker = check_directory(data)
    if not marker.log:
        _write(data, marker, msgspec.structs.replace(marker, log=found))


def _write(data: Path, before: Marker, marker: Marker) -> Marker:
    if marker != before:
        write_atomically(marker_file(data), msgspec.json.encode(marker))
    return marker


def is_empty(data: Path) -> bool:
    """Whether nothing of anybody's is in `data`: what else an empty one may hold are empty directories,
    as for a mount.
    """
    return all(
        path.name in EMPTY or (path.is_dir() and {each.name for each in path.iterdir()} <= {"lost+found"})
        for path in data.iterdir()
    )


def delete_directory(data: Path) -> None:
    """Delete all that is in the data directory `data`, then itself. Call it under its locks.

    1. mark it as being deleted, 2. delete everything but the marker, the lock last, 3. the marker, 4. the directory. A
    second call finishes what a crash has interrupted. Links are not followed, except for `data` itself; that one and
    mount points are emptied and stay.
    """
    marker = marker_file(data)
    _overwrite(marker, msgspec.json.encode(Marker(BEING_DELETED)))
    for path in data.iterdir():
        if path.name not in (marker.name, "lock", "lost+found"):
            _delete(path)
    (data / "lock").unlink(missing_ok=True)
    marker.unlink()
    with contextlib.suppress(OSError):  # it is a link, a mount point, or in use again
        data.rmdir()


def _overwrite(path: Path, content: bytes) -> None:
    """In place: what is to be deleted may fill the disk, and there is no room for a second file."""
    with path.open("r+b", buffering=0) as file:
        file.write(content)
        file.truncate()
        os.fsync(file.fileno())


def _delete(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        return path.unlink()
    for each in path.iterdir():
        if each.name != "lost+found":
            _delete(each)
    try:
        path.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:  # a mount point
            raise


class UpState(msgspec.Struct):
    """What `mainstem up` last wrote."""

    pid: int
    project: str
    bootstrap: str
    gateway: str
    started_at: float
    children: list[ChildState] = []
    format: int = FORMAT
    options: list[str] = []

    @property
    def own_log(self) -> bool:
        """Whether the log is a process of `up`, and not a Kafka that runs without it."""
        return "--bootstrap" not in self.options


def state_file(data: Path) -> Path:
    return data / "up.json"


def save(data: Path, state: UpState) -> None:
    """Replace the file as a whole; `load` reads it."""
    write_atomically(state_file(data), msgspec.json.encode(state))


def load(data: Path) -> UpState | None:
    """The last state, or None where nothing has run or the file is of another format."""
    try:
        return msgspec.json.decode(state_file(data).read_bytes(), type=prepared(UpState))
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def is_up(data: Path) -> bool:
    """Whether a `mainstem up` holds this data directory now."""
    return is_held(data)
