"""`up.json` in the data directory: what a running `mainstem up` says of itself, for the other commands.

    {"format": 1, "pid": 4711, "project": "...", "bootstrap": "127.0.0.1:9092", "gateway": "http://127.0.0.1:9600",
     "started_at": 1760000000.0, "children": [{"name": "log", "state": "running", "pid": 4712, ...}]}

The file is a hint: whether `up` runs is told by the lock beside it.
"""

from pathlib import Path

import msgspec

from mainstem.core.files import write_atomically
from mainstem.core.locks import DirectoryInUse, DirectoryLock
from mainstem.standalone.supervisor import ChildState

FORMAT = 1


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
    if not (data / "lock").exists():
        return False
    try:
        DirectoryLock(data).release()
    except DirectoryInUse:
        return True
    return False
