"""Read a compacted topic to its end: the last value of every key is the state."""

import time
from typing import TypeVar

import msgspec

from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.reader import CommittedReader
from mainstem.client.topics import start_offsets
from mainstem.core import CorruptData
from mainstem.core.prepared import prepared

T = TypeVar("T")
BARRIER = b"mainstem.barrier"
"""The key of a record that says nothing, and whose offset is all that is wanted of it."""
NOT_OURS = "Mainstem writes no such record: look for who else writes to this topic"


def read_compacted(
    connection: Connection | str,
    topic: str,
    *,
    timeout_seconds: float = 75.0,
    decided: bool = False,
    linearizable: bool = False,
) -> dict[bytes, bytes]:
    """The last committed value of every key; a key whose last value is null is left out.

    Everything that was written before the call is taken into account, and what was undecided then is waited for: the
    open transaction of a stranger holds back the last stable offset, and stopping there would miss newer records of
    others that are committed already. The default is longer than a transaction of Kafka's clients may last unless they
    say otherwise (60 s). Whoever can do with what is `decided` now need not wait.

    A broker that is cut off from the others, and does not know yet that another leads, tells an end of before, and
    gives what it has. `linearizable` does not believe it: a record of our own is written first, which only the leader
    can acknowledge, and everything before it is read.

    Raises:
        UnknownTopic: there is no such topic.
        BrokerUnavailable: the end was not reached in time.
    """
    connection = Connection(connection) if isinstance(connection, str) else connection
    state: dict[bytes, bytes | None] = {}
    # What was deleted is no state any more: what is left is read from its start.
    starts = start_offsets(connection, topic)
    ends = append(connection, topic, [(BARRIER, None)]) if linearizable else {}
    with CommittedReader(connection, topic, starts, deleted="earliest", decided=decided, at_least=ends) as reader:
        deadline = time.monotonic() + timeout_seconds
        for messages in reader:
            for message in messages:
                state[message.key() or b""] = message.value()
            if reader.missing and time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"{topic}: not decided within {timeout_seconds:.0f} s up to {reader.missing} (partition: offset)",
                    hint="a transaction is open; the broker aborts it when its timeout has passed: try again then",
                )
    return {key: value for key, value in state.items() if value is not None}


def read_state(
    connection: Connection, topic: str, kind: type[T], *, decided: bool = False, linearizable: bool = False
) -> dict[str, T]:
    """What `read_compacted` gives, each value decoded from JSON.

    Raises:
        CorruptData: a value is no `kind`; the rest as `read_compacted`.
    """
    return {
        key.decode(errors="backslashreplace"): decode_state(topic, key, value, kind)
        for key, value in read_compacted(connection, topic, decided=decided, linearizable=linearizable).items()
    }


def decode_state(topic: str, key: bytes, value: bytes, kind: type[T]) -> T:
    """One value of a state.

    Raises:
        CorruptData: it is no `kind`.
    """
    try:
        return msgspec.json.decode(value, type=prepared(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(
            f"{topic}: key {key!r}: expected JSON as Mainstem writes it: {error}",
            hint=NOT_OURS,
        ) from error
