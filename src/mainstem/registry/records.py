"""The records of the `_schemas` topic, in Confluent's format:
an existing registry's topic can be taken over, and ours given away.

    key                                                         value
    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}    {"subject","version","id","schema","deleted", ...}
    {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}        {"subject","version"}: up to this version, soft
    {"keytype":"CONFIG","subject":null | "s","magic":0}         {"compatibilityLevel", ...}
    {"keytype":"MODE","subject":null | "s","magic":0}           {"mode"}
    {"keytype":"NOOP","magic":0}                                ours: {"max_id": n}, so that no id comes back

A null value removes what the key stands for. JSON without spaces, keys in the order above: the bytes of a key decide
what compaction keeps. Only NOOP's value is ours; Confluent's reader skips that key whatever its value is.
"""

import json
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from mainstem.core.errors import CorruptData
from mainstem.core.prepared import prepared

T = TypeVar("T")
KeyType = Literal["SCHEMA", "DELETE_SUBJECT", "CLEAR_SUBJECT", "CONFIG", "MODE", "NOOP"]


class Key(msgspec.Struct, frozen=True):
    """What a record is about; `subject` None is the whole registry."""

    keytype: str
    subject: str | None = None
    version: int | None = None
    magic: int = 0


class Reference(msgspec.Struct, frozen=True):
    """A schema that this one uses: the named type `name`, found as `version` of `subject`."""

    name: str
    subject: str
    version: int


class SchemaValue(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One version of a subject."""

    subject: str
    version: int
    id: int
    schema: str
    schema_type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    deleted: bool = False


class DeletedSubject(msgspec.Struct, frozen=True):
    """Of a DELETE_SUBJECT record: the last version that is deleted."""

    version: int = 2**31 - 1


class Mode(msgspec.Struct, frozen=True):
    """Of a MODE record."""

    mode: str = "READWRITE"


class Noop(msgspec.Struct, frozen=True):
    """Of a NOOP record, ours: the highest id that was given."""

    max_id: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0


class _Id(msgspec.Struct):
    id: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0


def schema_key(subject: str, version: int) -> bytes:
    """The key of a SCHEMA record, as Confluent's registry writes it."""
    return _json({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def subject_key(keytype: KeyType, subject: str | None) -> bytes:
    """The key of a CONFIG, MODE or DELETE_SUBJECT record."""
    return _json({"keytype": keytype, "subject": subject, "magic": 0})


NOOP_KEY = b'{"keytype":"NOOP","magic":0}'
BARRIER_KEY = b'{"keytype":"NOOP", "magic":0}'
"""Of a record that says nothing, and whose offset is all that is wanted of it. Its bytes make it another key than that
of our NOOP, whose value must stay.
"""


def schema_value(value: SchemaValue) -> bytes:
    """The value of a SCHEMA record."""
    # `deleted` is always there in Confluent's records; omit_defaults would leave it out.
    return _json(msgspec.to_builtins(value) | {"deleted": value.deleted})


def object_value(value: dict[str, Any]) -> bytes:
    """The value of a CONFIG, MODE or DELETE_SUBJECT record."""
    return _json(value)


# What decoding bytes of anybody's ends in: no JSON or of another type, no UTF-8, nested too deep.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_key(data: bytes | None) -> Key:
    """Raises CorruptData: not a key of this topic."""
    try:
        return msgspec.json.decode(data or b"", type=prepared(Key))
    except _UNREADABLE as error:
        raise CorruptData(f"_schemas: expected a key with a keytype, found {(data or b'')[:80]!r}: {error}") from error


def decode_schema(data: bytes) -> SchemaValue:
    """Raises CorruptData: not the value of a schema."""
    return _decoded(data, SchemaValue, "a schema's value")


def decode_deleted_subject(data: bytes) -> DeletedSubject:
    """Raises CorruptData: not the value of a DELETE_SUBJECT record."""
    return _decoded(data, DeletedSubject, "the last deleted version of a subject")


def decode_mode(data: bytes) -> Mode:
    """Raises CorruptData: not the value of a MODE record."""
    return _decoded(data, Mode, "a mode")


def decode_noop(data: bytes) -> Noop:
    """Raises CorruptData: not the value of one of our NOOP records."""
    return _decoded(data, Noop, "the highest id")


def given_id(data: bytes) -> int:
    """The id that a schema's value gives away, also where the rest of it cannot be read; 0 if there is none."""
    try:
        return msgspec.json.decode(data, type=prepared(_Id)).id
    except _UNREADABLE:
        return 0


def decode_object(data: bytes) -> dict[str, Any]:
    """Raises CorruptData: not a JSON object."""
    return _decoded(data, dict[str, Any], "an object")


def _decoded(data: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(data, type=prepared(kind))
    except _UNREADABLE as error:
        raise CorruptData(f"_schemas: expected {what}, found {data[:80]!r}: {error}") from error


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
