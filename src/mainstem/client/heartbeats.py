"""Statements about time in `__mainstem.heartbeats`: what makes windows close when an input is idle or finished."""

import msgspec

from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.internal import HEARTBEATS
from mainstem.core import CorruptData


class Statement(msgspec.Struct, frozen=True, omit_defaults=True):
    """By whoever writes `topic`: after `positions` (partition: next offset) nothing older than `event_time` (ms)
    follows; where `end`, nothing follows at all. Of a topic with another id that has the name now, it says nothing.
    """

    topic: str
    positions: dict[int, int]
    event_time: int
    end: bool = False
    topic_id: str = ""  # empty in those of older versions: they count for the name

    @property
    def key(self) -> bytes:
        return self.topic.encode()


def encode(statement: Statement) -> bytes:
    return msgspec.json.encode(statement)


def decode(value: bytes) -> Statement:
    """The statement that `value` holds.

    Raises:
        CorruptData: it is none.
    """
    try:
        return msgspec.json.decode(value, type=Statement)
    except msgspec.DecodeError as error:
        raise CorruptData(f"{HEARTBEATS}: expected a statement: {error}") from error


def write_heartbeats(connection: Connection, statements: list[Statement]) -> None:
    """Append statements outside of a transaction, after the data that they speak of; durable on return."""
    append(connection, HEARTBEATS, [(statement.key, encode(statement)) for statement in statements])
