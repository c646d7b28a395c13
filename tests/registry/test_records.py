import pytest

from mainstem.core import CorruptData
from mainstem.registry.records import (
    BARRIER_KEY,
    NOOP_KEY,
    Key,
    Reference,
    SchemaValue,
    decode_key,
    decode_object,
    decode_schema,
    given_id,
    schema_key,
    schema_value,
    subject_key,
)


def test_keys_are_byte_for_byte_those_of_confluent():
    """Compaction keeps the last value per key: another order of the attributes would be another key."""
    assert schema_key("test-value", 1) == b'{"keytype":"SCHEMA","subject":"test-value","version":1,"magic":1}'
    assert subject_key("CONFIG", None) == b'{"keytype":"CONFIG","subject":null,"magic":0}'
    assert subject_key("MODE", "s") == b'{"keytype":"MODE","subject":"s","magic":0}'
    assert subject_key("DELETE_SUBJECT", "s") == b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}'
    assert NOOP_KEY == b'{"keytype":"NOOP","magic":0}' != BARRIER_KEY
    assert decode_key(NOOP_KEY) == decode_key(BARRIER_KEY)


def test_values_are_those_of_confluent():
    value = SchemaValue("test-value", 1, 1, '"string"')
    assert schema_value(value) == b'{"subject":"test-value","version":1,"id":1,"schema":"\\"string\\"","deleted":false}'


def test_values_come_back_also_with_what_other_registries_add():
    value = SchemaValue(
        "s", 2, 7, '"int"', "AVRO", (Reference("Address", "a", 1),), {"properties": {"owner": "x"}}, None, deleted=True
    )
    assert decode_schema(schema_value(value)) == value
    foreign = b'{"subject":"s","version":1,"id":1,"md5":"x","schema":"\\"int\\"","schemaTags":[],"deleted":false}'
    assert decode_schema(foreign) == SchemaValue("s", 1, 1, '"int"')
    assert decode_key(schema_key("s", 3)) == Key("SCHEMA", "s", 3, 1)


@pytest.mark.parametrize(
    ("data", "schema_id"),
    [
        (b'{"id":7,"references":null}', 7),
        (b'{"id":"7"}', 0),
        (b'{"id":-7}', 0),
        (b'{"id":2147483648}', 0),
        (b"[]", 0),
        (b"", 0),
        (b'{"x":' + b"[" * 5000, 0),
    ],
)
def test_the_id_of_a_value_that_is_otherwise_unreadable(data, schema_id):
    assert given_id(data) == schema_id


@pytest.mark.parametrize("call", [decode_key, decode_schema, decode_object])
@pytest.mark.parametrize("data", [b"", b"{", b"7", b"\xff", b"[]", b'{"keytype":"\xff"}', b'{"x":' + b"[" * 5000])
def test_other_bytes_are_corrupt_data(call, data):
    with pytest.raises(CorruptData, match="_schemas: expected"):
        call(data)
