"""Statements about time in `__mainstem.heartbeats`: what makes windows close when an input is idle or finished."""

import msgspec

from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.internal import HEARTBEATS
from mainstem.client.topics import end_offsets, topic_ids
from mainstem.core import CorruptData
from mainstem.core.prepared import prepared


class Statement(msgspec.Struct, frozen=True, omit_defaults=True):
    """By whoever writes `topic`: nothing older than `event_time` (ms) follows after `positions`.

    `positions`: partition to next offset. Where `end`, nothing follows at all. Of a topic with another id that has the
    name now, it says nothing.
    """

    topic: str
    positions: dict[int, int]
    event_time: int
    end: bool = False
    topic_id: str = ""  # empty in those of older versions: they count for the name

    @property
    def key(self) -> bytes:
        """The key of its record: the topic, of which the last statement counts."""
        return self.topic.encode()


def statement_about(connection: Connection, topic: str, event_time: int, *, end: bool) -> Statement:
    """The statement about what is in `topic` now, by its only writer, whose transactions are committed.

    The positions are high watermarks. A commit is answered before its markers are written: the last stable offset may
    still lie before what was just committed, and a job would close its windows without it.
    """
    # First: positions of a topic made anew are not those of this one.
    topic_id = topic_ids(connection, [topic]).get(topic, "")
    return Statement(topic, end_offsets(connection, topic), event_time, end, topic_id)


def encode(statement: Statement) -> bytes:
    """The value of its record; `decode` reads it."""
    return msgspec.json.encode(statement)


def decode(value: bytes) -> Statement:
    """The statement that `value` holds.

    Raises:
        CorruptData: it is none.
    """
    try:
        return msgspec.json.decode(value, type=prepared(Statement))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"{HEARTBEATS}: expected a statement: {error}") from error


def write_heartbeats(connection: Connection, statements: list[Statement]) -> None:
    """Append statements outside of a transaction, after the data that they speak of; durable on return."""
    append(connection, HEARTBEATS, [(statement.key, encode(statement)) for statement in statements])
