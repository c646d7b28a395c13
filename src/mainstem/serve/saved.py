"""Which indexes of a node answer: `current.json` in its directory.

    {"format": 1, "log": …, "as_of": 41,
     "views": {"delays": [{"directory": "delays@2", "topics": …, "versions": …}, …], …}}

Of each view the first one answers, the others are kept for the way back. The file is replaced as a whole, so that what
a cutover moves is moved in all views, or in none, whenever the node is killed.
"""

from pathlib import Path

import msgspec

from mainstem.core.files import make_directory, write_atomically
from mainstem.core.logging import get_logger
from mainstem.core.prepared import prepared
from mainstem.serve.targets import Target

log = get_logger()

FORMAT = 1
NAME = "current.json"


class Kept(msgspec.Struct, frozen=True):
    """One index of a view: the name of its directory, and what it is made of."""

    directory: str
    topics: dict[str, str]
    versions: dict[str, str] = {}

    @property
    def target(self) -> Target:
        return Target(self.topics, self.versions)


class Saved(msgspec.Struct, frozen=True):
    """The file.

    Attributes:
        log: id of the log that the indexes are of.
        as_of: offset of the last record of current versions that counts.
    """

    log: str
    as_of: int = -1
    views: dict[str, list[Kept]] = {}
    format: int = FORMAT


def save(directory: Path, saved: Saved) -> None:
    """Replace the file; durable on return."""
    make_directory(directory)
    write_atomically(directory / NAME, msgspec.json.format(msgspec.json.encode(saved)))


def load(directory: Path, log_id: str) -> Saved:
    """What the file says; of another log, or where there is none, nothing: views then begin with what is current."""
    path = directory / NAME
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=prepared(Saved))
    except FileNotFoundError:
        return Saved(log_id)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("saved_views_unreadable", path=str(path), error=str(error))
        return Saved(log_id)
    return saved if (saved.format, saved.log) == (FORMAT, log_id) else Saved(log_id)
