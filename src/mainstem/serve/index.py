"""The words that all indexes share: what is applied to one, how far it is, how its rows are told.

An index keeps its position inside its own commits. After a crash rows and position agree, whatever was lost, and the
records after that position are read again.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from mainstem.client.progress import NextOffsets, Read
from mainstem.core import MainstemError
from mainstem.core.prepared import prepared

MOST_BYTES = 64 << 20
"""Of an answer, about, whatever rows it has."""

Row = dict[str, Any]
"""Column -> value, as `registry.avro.decode` gives them."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """What one record does to an index: it sets the row of its key, or, with None, deletes it. One that `truncates`
    deletes all rows of its topic's partition, which are those of records before it.

    Attributes:
        key: the text of the record's key, by which its row is found again; it may be empty. None: it has none, or its
            topic is a stream: its row is one of its own.
        told_key: the text of the key of a stream's record, which is told with its row and finds nothing.
    """

    topic: str
    partition: int
    offset: int
    key: str | None
    row: Row | None
    truncates: bool = False
    told_key: str | None = None


def after_truncates(changes: Sequence[Change]) -> list[Change]:
    """What is left of changes once their truncates are done: of what one of them deletes, the deletion of its key,
    which may have had a row in another partition.
    """
    left: list[Change] = []
    emptied: set[tuple[str, int]] = set()
    for change in reversed(changes):
        place = (change.topic, change.partition)
        if change.truncates:
            emptied.add(place)
        elif place not in emptied:
            left.append(change)
        elif change.key is not None:
            left.append(Change(change.topic, change.partition, change.offset, change.key, None))
    return left[::-1]


class Applied(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far an index is, and in which log; a part of its every commit. A field of another name is none of ours: with
    its default in the place of what was written, a position would be believed that is not the one.
    """

    log: str  # the cluster's id
    topic_ids: dict[str, str] = {}
    reads: dict[str, dict[int, Read]] = {}  # topic -> partition -> from where to where it was read, and the books
    records: NextOffsets = {}  # after the last record: what lies between there and `position` are markers

    @property
    def position(self) -> NextOffsets:
        """Topic -> partition -> next offset."""
        return {
            topic: {partition: read.end for partition, read in reads.items()} for topic, reads in self.reads.items()
        }

    def encode(self) -> bytes:
        """As JSON, to lie in an index's commit."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes | str) -> "Applied":
        """The other way; what is no such JSON is a `msgspec.MsgspecError`."""
        return msgspec.json.decode(data, type=prepared(Applied))


class Index(Protocol):
    """One thread applies; others may read at the same time, and see a whole commit or nothing of it.

    After an error, other than that of rows that do not fit, the index is at `applied`, whatever was pending; go on from
    there, having opened it again.
    """

    @property
    def path(self) -> Path:
        """Its directory."""
        ...

    @property
    def failure(self) -> MainstemError | None:
        """Why it answers nobody any more, as a reader has found; it is to be opened again."""
        ...

    @property
    def applied(self) -> Applied | None:
        """What is committed, and what readers see; None: nothing was ever committed."""
        ...

    @property
    def pending(self) -> bool:
        """Whether there is something that waits for `commit`: always False where `apply` commits."""
        ...

    def apply(self, changes: Sequence[Change], applied: Applied) -> None:
        """Lay `changes`, in their order, over the rows: all or nothing. `applied` is where that leads to.

        On return a crash of the process takes nothing of it and readers see it, except where `pending` says that
        this waits for `commit`.

        Raises:
            UnfitChanges: rows that it cannot hold; apply the others.
        """
        ...

    def commit(self) -> None:
        """Make what is pending durable and visible."""
        ...

    def snapshot(self, directory: Path) -> None:
        """Copy what is committed into `directory`, which is made; it can be opened as an index. Called by the thread
        that applies.
        """
        ...

    def close(self) -> None:
        """Give back files and threads; what is pending is not committed."""
        ...


_TEXT = frozenset({str})


def to_json(value: Any) -> Any:
    """A value or a row for `msgspec.json.encode`, which writes it as docs/json.md says of `mainstem tail`.

    Numbers that JSON has not are texts as PostgreSQL writes them; a Decimal is a text, bytes are base64, times are
    ISO 8601. Keys are texts, as JSON has no others: those of values as they are written.
    """
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            names = value if _TEXT.issuperset(map(type, value)) else map(_name, value)
            return dict(zip(names, map(to_json, value.values()), strict=True))  # a comprehension has a frame of its own
        case list() | tuple():
            return list(map(to_json, value))
    return value


def _name(key: Any) -> Any:
    """A key for msgspec, which takes texts, numbers, times and the like, and no others: SQL has maps of all types."""
    told = to_json(key)
    if told is None or isinstance(told, bool | list):
        return msgspec.json.encode(told).decode()
    return told
