"""Instances of kio's classes, drawn by hypothesis, and what kio itself makes of them."""

import datetime
from dataclasses import fields, is_dataclass

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from mainstem.wire import codec
from mainstem.wire.fields import take_apart

EVERY = [(api, version) for api in sorted(api_key_map) for version in codec.supported_versions(api)]


class Buffer(bytearray):
    """What kio's writers write to."""

    write = bytearray.extend


def written_by_kio(entity) -> bytes:
    buffer = Buffer()
    entity_writer(type(entity))(buffer, entity)
    return bytes(buffer)


def read_by_kio(kind, body):
    entity, size = entity_reader(kind)(bytes(body), 0)
    assert size == len(body)
    return entity


def as_dict(entity):
    if is_dataclass(entity):
        return {field.name: as_dict(getattr(entity, field.name)) for field in fields(entity)}
    if isinstance(entity, tuple):
        return [as_dict(each) for each in entity]
    return entity


def whole_numbers(bits: int):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


PRIMITIVES = {
    "int8": whole_numbers(8),
    "int16": whole_numbers(16),
    "int32": whole_numbers(32),
    "int64": whole_numbers(64),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8),
    "error_code": st.sampled_from(ErrorCode),
    "uuid": st.uuids().filter(lambda each: each.int != 0),
    "timedelta_i32": whole_numbers(32).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(0, 10**13).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 10**9).map(lambda s: datetime.datetime.fromtimestamp(s, datetime.UTC)),
}


def values(kind: type):
    """Instances of a kio class."""
    return st.builds(kind, **{field.name: field_values(field) for field in fields(kind)})


def field_values(field):
    item, is_array, optional = take_apart(field.type)
    one = values(item) if is_dataclass(item) else PRIMITIVES[field.metadata["kafka_type"]]
    if is_array:
        return st.lists(one, max_size=2).map(tuple) | (st.none() if optional else st.nothing())
    return one | st.none() if optional and "tag" not in field.metadata else one
