"""The records of a replicated service: JSON, one struct each, told apart by `type`.

A record with a field more is read by older nodes, who pass it over: only what may be passed over is ever added so.
Anything else is a new `type`, and an older node stops where it reads one. docs/formats/replication.md has them all.
"""

from typing import Any

import msgspec

from mainstem.replicate.errors import TooLarge, Unreadable

LARGEST_BYTES = 512 * 1024
"""Of a record: well below the 1 MiB that a topic takes by default."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Who asks, and which of its requests it is: the same one is carried out once, however often it is sent.

    `client` was given by the service; `number` is the client's own, from 1, each request one more than the one before.
    """

    client: int
    number: int


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the service says to an operation: a `value`, or the `error` why it is not carried out.

    `unknown`: neither, since nobody knows whether the request was carried out before.
    """

    value: Any = None
    error: str = ""
    unknown: bool = False


class Claim(msgspec.Struct, frozen=True, tag="claim"):
    """A node wants to be the primary; the offset of this record is its term. `author` is one run of node `node`."""

    node: str
    author: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The primary of `term` is there: what it says when there is nothing else, and the barrier of its reads."""

    term: int
    seq: int


class Result(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    """What the primary of `term` has carried out: the changes of the state, and the answer."""

    term: int
    seq: int
    answer: Answer
    changes: Any = None
    request: Request | None = None


class Admission(msgspec.Struct, frozen=True, tag="admission"):
    """The primary of `term` knows a client more; the offset of this record is the client's id."""

    term: int
    seq: int


class Operation(msgspec.Struct, frozen=True, tag="operation", omit_defaults=True):
    """Every node carries it out, in the order of the log. `number`: of what `author` has appended, rising."""

    author: str
    number: int
    operation: Any
    request: Request | None = None


class Opening(msgspec.Struct, frozen=True, tag="opening"):
    """Every node knows a client more; the offset of this record is the client's id."""

    author: str
    number: int


class Barrier(msgspec.Struct, frozen=True, tag="barrier"):
    """Says nothing: whoever reads it back has read all that was in the log before."""

    author: str
    number: int


class Digest(msgspec.Struct, frozen=True, tag="digest"):
    """What `node` has after the operation at `offset`: hashes of its state and of each answer since its last digest."""

    node: str
    offset: int
    state: str
    answers: list[str]


Led = Beat | Result | Admission
"""What only a primary writes."""
Shared = Operation | Opening | Barrier | Digest
"""What every node writes where all of them carry out operations."""
Record = Claim | Led | Shared

_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_ENCODER = msgspec.json.Encoder()


def encode(record: Record) -> bytes:
    """The value of a record; its key is empty.

    Raises:
        TooLarge: it has more than LARGEST_BYTES.
    """
    value = _ENCODER.encode(record)
    if len(value) > LARGEST_BYTES:
        raise TooLarge(f"expected records of at most {LARGEST_BYTES} bytes, found {len(value)}", hint="split it")
    return value


def decode(offset: int, value: bytes | None) -> Record:
    """The record at `offset`.

    Raises:
        Unreadable: it is none of ours.
    """
    try:
        return _DECODER.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(
            f"offset {offset}: expected a record of a replicated service: {error}",
            hint="is a newer version writing to this topic, or somebody else?",
        ) from error
