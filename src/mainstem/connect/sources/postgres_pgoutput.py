r"""Decode PostgreSQL's logical replication messages (plugin `pgoutput`, protocol versions 1 and 2):
bytes in, values out.

    one message   type (1 byte), then by type:
      B begin     final LSN i64 | commit time i64 | xid u32
      M message   flags u8 | LSN i64 | prefix \0 | length i32 | content
      C commit    flags u8 | commit LSN i64 | end LSN i64 | commit time i64
      O origin    LSN i64 | name \0
      R relation  oid u32 | namespace \0 | name \0 | replica identity u8
                  | columns i16 x (flags u8 | name \0 | type oid u32 | typmod i32)
      Y type      oid u32 | namespace \0 | name \0
      I insert    oid u32 | 'N' tuple
      U update    oid u32 | ('K' tuple | 'O' tuple)? | 'N' tuple
      D delete    oid u32 | 'K' tuple | 'O' tuple
      T truncate  relations i32 | options u8 | oid u32 x relations
    tuple         columns i16 x ('n' | 'u' | ('t' | 'b') length i32 data)

Times are microseconds since 2000-01-01 on the wire and since 1970 in our values. Version 2 adds streaming of
transactions in progress, which we never ask for: a message then always belongs to the last begin. The server sends the
numbers big-endian. Specification: https://www.postgresql.org/docs/16/protocol-logicalrep-message-formats.html
"""

from collections.abc import Callable
from enum import Enum
from struct import Struct
from struct import error as struct_error
from typing import Final, Literal, TypeAlias

import msgspec

from mainstem.core import CorruptData

EPOCH_2000_US = 946_684_800_000_000

_BEGIN = Struct(">qqI")
_COMMIT = Struct(">Bqqq")
_MESSAGE = Struct(">Bq")
_COLUMN = Struct(">Ii")
_I64 = Struct(">q")
_U32 = Struct(">I")
_I32 = Struct(">i")
_I16 = Struct(">h")
_TRUNCATE = Struct(">iB")


class CorruptReplicationMessage(CorruptData):
    """Bytes that are no message of the protocol versions 1 and 2."""


class Unchanged(Enum):
    """The mark of a large value that an update did not touch: the server does not send it again."""

    VALUE = "unchanged"


UNCHANGED: Final = Unchanged.VALUE
Value: TypeAlias = bytes | Literal[Unchanged.VALUE] | None
"""A column's text as the server prints it, NULL, or not sent."""
Row: TypeAlias = list[Value]


class Begin(msgspec.Struct, frozen=True, gc=False):
    """The first message of a transaction; it is sent only after the transaction has committed."""

    commit_lsn: int
    committed_at_us: int
    xid: int


class Commit(msgspec.Struct, frozen=True, gc=False):
    """The last message of a transaction."""

    commit_lsn: int
    end_lsn: int  # the first byte after the transaction: where the next one may begin
    committed_at_us: int


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a session put into the log with `pg_logical_emit_message`."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The transaction came here by replication from elsewhere."""

    lsn: int
    name: str


class Column(msgspec.Struct, frozen=True, gc=False):
    """One column of a relation."""

    name: str
    type_oid: int
    type_modifier: int  # -1: none
    in_key: bool  # part of the replica identity; with FULL every column is


class Relation(msgspec.Struct, frozen=True):
    """A table's shape, sent before its first change and after each ALTER TABLE."""

    oid: int
    namespace: str
    name: str
    replica_identity: str  # d default, n nothing, f full, i an index
    columns: tuple[Column, ...]


class TypeName(msgspec.Struct, frozen=True, gc=False):
    """A type that is not built in, sent before the relation that uses it."""

    oid: int
    namespace: str
    name: str


class Insert(msgspec.Struct, frozen=True):
    """A new row."""

    oid: int
    after: Row


class Update(msgspec.Struct, frozen=True):
    """`key`: the old key columns, sent when they changed; `before`: the whole old row, with replica identity FULL."""

    oid: int
    key: Row | None
    before: Row | None
    after: Row


class Delete(msgspec.Struct, frozen=True):
    """A row that went: its key columns (the others null), or all of it with replica identity FULL."""

    oid: int
    key: Row | None
    before: Row | None


class Truncate(msgspec.Struct, frozen=True, gc=False):
    """Tables that were emptied."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


Decoded: TypeAlias = Begin | Commit | Message | Origin | Relation | TypeName | Insert | Update | Delete | Truncate


def decode(data: bytes) -> Decoded:
    """Decode one message, whole: what is left over is an error too.

    Raises:
        CorruptReplicationMessage: an unknown type, or bytes missing, left over or out of range.
    """
    try:
        decoder = _DECODERS.get(data[0])
        if decoder is None:
            raise CorruptReplicationMessage(f"replication message of unknown type {data[:1]!r}, {len(data)} bytes")
        value, end = decoder(data)
    except (struct_error, IndexError, ValueError) as error:
        raise CorruptReplicationMessage(f"replication message {data[:1]!r} of {len(data)} bytes: {error}") from None
    if end != len(data):
        raise CorruptReplicationMessage(
            f"replication message {data[:1]!r}: {len(data)} bytes, of which {len(data) - end} are left over"
        )
    return value


def format_lsn(lsn: int) -> str:
    """A position in the write-ahead log as PostgreSQL prints it: 5368709120 is `1/40000000`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def _text(data: bytes, position: int) -> tuple[str, int]:
    end = data.index(0, position)
    return data[position:end].decode(), end + 1


def _row(data: bytes, position: int) -> tuple[Row, int]:
    (count,) = _I16.unpack_from(data, position)
    position += 2
    row: Row = []
    add, unpack_length = row.append, _I32.unpack_from
    for _ in range(count):
        kind = data[position]
        if kind == 0x74:  # t: text; b, binary, comes only where it was asked for
            start = position + 5
            position = start + unpack_length(data, position + 1)[0]
            if not start <= position <= len(data):
                raise ValueError("a column's length runs past the end")
            add(data[start:position])
        elif kind == 0x6E:  # n
            add(None)
            position += 1
        elif kind == 0x75:  # u
            add(UNCHANGED)
            position += 1
        else:
            raise ValueError(f"a column of kind {kind:#x}")
    return row, position


def _begin(data: bytes) -> tuple[Begin, int]:
    lsn, time, xid = _BEGIN.unpack_from(data, 1)
    return Begin(lsn, time + EPOCH_2000_US, xid), 1 + _BEGIN.size


def _commit(data: bytes) -> tuple[Commit, int]:
    _, lsn, end_lsn, time = _COMMIT.unpack_from(data, 1)
    return Commit(lsn, end_lsn, time + EPOCH_2000_US), 1 + _COMMIT.size


def _message(data: bytes) -> tuple[Message, int]:
    flags, lsn = _MESSAGE.unpack_from(data, 1)
    prefix, position = _text(data, 1 + _MESSAGE.size)
    (length,) = _I32.unpack_from(data, position)
    position += 4
    return Message(bool(flags & 1), lsn, prefix, data[position : position + length]), position + length


def _origin(data: bytes) -> tuple[Origin, int]:
    (lsn,) = _I64.unpack_from(data, 1)
    name, position = _text(data, 9)
    return Origin(lsn, name), position


def _relation(data: bytes) -> tuple[Relation, int]:
    (oid,) = _U32.unpack_from(data, 1)
    namespace, position = _text(data, 5)
    name, position = _text(data, position)
    identity = chr(data[position])
    (count,) = _I16.unpack_from(data, position + 1)
    position += 3
    columns = []
    for _ in range(count):
        flags = data[position]
        column, position = _text(data, position + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, position)
        position += _COLUMN.size
        columns.append(Column(column, type_oid, modifier, bool(flags & 1)))
    return Relation(oid, namespace or "pg_catalog", name, identity, tuple(columns)), position


def _type(data: bytes) -> tuple[TypeName, int]:
    (oid,) = _U32.unpack_from(data, 1)
    namespace, position = _text(data, 5)
    name, position = _text(data, position)
    return TypeName(oid, namespace or "pg_catalog", name), position


def _insert(data: bytes) -> tuple[Insert, int]:
    (oid,) = _U32.unpack_from(data, 1)
    _expect(data, 5, b"N")
    after, position = _row(data, 6)
    return Insert(oid, after), position


def _update(data: bytes) -> tuple[Update, int]:
    (oid,) = _U32.unpack_from(data, 1)
    position, key, before = 5, None, None
    if data[5] == 0x4B:  # K
        key, position = _row(data, 6)
    elif data[5] == 0x4F:  # O
        before, position = _row(data, 6)
    _expect(data, position, b"N")
    after, position = _row(data, position + 1)
    return Update(oid, key, before, after), position


def _delete(data: bytes) -> tuple[Delete, int]:
    (oid,) = _U32.unpack_from(data, 1)
    _expect(data, 5, b"KO")
    row, position = _row(data, 6)
    return (Delete(oid, row, None) if data[5] == 0x4B else Delete(oid, None, row)), position


def _truncate(data: bytes) -> tuple[Truncate, int]:
    count, options = _TRUNCATE.unpack_from(data, 1)
    position = 1 + _TRUNCATE.size
    end = position + 4 * count
    if count < 0 or end > len(data):
        raise ValueError(f"{count} relations")
    oids = tuple(_U32.unpack_from(data, at)[0] for at in range(position, end, 4))
    return Truncate(oids, bool(options & 1), bool(options & 2)), end


def _expect(data: bytes, position: int, kinds: bytes) -> None:
    if data[position] not in kinds:
        raise ValueError(f"expected a tuple of kind {kinds!r}, found {data[position : position + 1]!r}")


_DECODERS: dict[int, Callable[[bytes], tuple[Decoded, int]]] = {
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("B"): _begin,
    ord("C"): _commit,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("T"): _truncate,
    ord("M"): _message,
    ord("O"): _origin,
}
