"""Statements about time in `__mainstem.heartbeats`: what makes windows close when an input is idle or finished."""

import msgspec

from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.internal import HEARTBEATS, job_key
from mainstem.core import CorruptData


class Statement(msgspec.Struct, frozen=True, omit_defaults=True):
    """(a) By whoever writes `topic`: after `positions` (partition: next offset) nothing older than `event_time` (ms)
    follows; where `end`, nothing follows at all.
    """

    topic: str
    positions: dict[int, int]
    event_time: int
    end: bool = False

    @property
    def key(self) -> bytes:
        return self.topic.encode()


class Injection(msgspec.Struct, frozen=True):
    """(b) By a job's driver to its own query, once the query has processed all that a statement speaks of."""

    job: str
    version: str
    event_time: int

    @property
    def key(self) -> bytes:
        return job_key(self.job, self.version).encode()


def encode(heartbeat: Statement | Injection) -> bytes:
    return msgspec.json.encode(heartbeat)


def decode(value: bytes) -> Statement | Injection:
    """The statement or injection that `value` holds.

    Raises:
        CorruptData: it is neither.
    """
    try:
        if b'"positions"' in value:
            return msgspec.json.decode(value, type=Statement)
        return msgspec.json.decode(value, type=Injection)
    except msgspec.DecodeError as error:
        raise CorruptData(f"{HEARTBEATS}: expected a statement or an injection: {error}") from error


def write_heartbeats(connection: Connection, heartbeats: list[Statement | Injection]) -> None:
    """Append heartbeats outside of a transaction, after the data that they speak of; durable on return."""
    append(connection, HEARTBEATS, [(heartbeat.key, encode(heartbeat)) for heartbeat in heartbeats])
