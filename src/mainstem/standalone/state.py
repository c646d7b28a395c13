"""What stands in the data directory about itself.

`mainstem.json` says that it is one, and of which format: `{"format": 1}`. A program refuses a larger format than its own.

`up.json` is what a running `mainstem up` says of itself, for the other commands:

    {"format": 1, "pid": 4711, "project": "...", "bootstrap": "127.0.0.1:9092", "gateway": "http://127.0.0.1:9600",
     "started_at": 1760000000.0, "children": [{"name": "log", "state": "running", "pid": 4712, ...}]}

It is a hint: whether `up` runs is told by the lock beside it.
"""

from pathlib import Path

import msgspec

from mainstem.core import UserError
from mainstem.core.files import write_atomically
from mainstem.core.locks import is_held
from mainstem.standalone.supervisor import ChildState

FORMAT = 1
DIRECTORY_FORMAT = 1

LAYOUT = {"log": "log", "logs": "logs", "spark": "spark", "tables": "tables"}
"""What lies where below a data directory."""

EMPTY = {"lock", "mainstem.json.new", "lost+found"}
"""What an empty directory may hold: our lock, what a crash left of the marker, and what a mounted disk brings."""


class NotOurDirectory(UserError):
    """The directory holds something else, or data of a later program."""


class Marker(msgspec.Struct, frozen=True):
    """The content of `mainstem.json`."""

    format: int


def marker_file(data: Path) -> Path:
    return data / "mainstem.json"


def check_directory(data: Path) -> None:
    """Refuse what is no data directory of ours, or has a later format.

    Raises:
        NotOurDirectory: it has no marker, or one that this program does not know.
    """
    try:
        marker = msgspec.json.decode(marker_file(data).read_bytes(), type=Marker)
    except (OSError, msgspec.DecodeError):
        raise NotOurDirectory(
            f"{data}: expected a data directory of Mainstem, found no {marker_file(data).name}"
        ) from None
    if marker.format > DIRECTORY_FORMAT:
        raise NotOurDirectory(
            f"{data}: data directory of format {marker.format}, this program knows {DIRECTORY_FORMAT}",
            hint="use the version of Mainstem that wrote it, or a later one",
        )


def claim_directory(data: Path) -> None:
    """Make `data` a data directory, where it is empty or of a program that left no marker yet. Call it under its lock.

    Raises:
        NotOurDirectory: it holds something else: `mainstem clean` would delete that one day.
    """
    if not marker_file(data).exists() and (state_file(data).exists() or {p.name for p in data.iterdir()} <= EMPTY):
        write_atomically(marker_file(data), msgspec.json.encode(Marker(DIRECTORY_FORMAT)))
    try:
        check_directory(data)
    except NotOurDirectory as error:
        error.hint = error.hint or "give --data an empty directory or a new one"
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


def state_file(data: Path) -> Path:
    return data / "up.json"


def save(data: Path, state: UpState) -> None:
    write_atomically(state_file(data), msgspec.json.encode(state))


def load(data: Path) -> UpState | None:
    """The last state, or None where nothing has run or the file is of another format."""
    try:
        return msgspec.json.decode(state_file(data).read_bytes(), type=UpState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def is_up(data: Path) -> bool:
    """Whether a `mainstem up` holds this data directory now."""
    return is_held(data)
