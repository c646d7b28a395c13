import msgspec
import pytest

from mainstem import embedded
from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.internal import SCHEMAS
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.core import CorruptData
from mainstem.registry import avro
from mainstem.registry.reader import TypedReader, read_schemas

SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}'


@pytest.fixture(scope="module")
def connection():
    with embedded() as log:
        connection = Connection(log.bootstrap)
        ensure_internal_topics(connection)
        key = {"keytype": "SCHEMA", "subject": "t-value", "version": 1, "magic": 1}
        value = {"subject": "t-value", "version": 1, "id": 7, "schema": SCHEMA, "deleted": False}
        append(connection, SCHEMAS, [(msgspec.json.encode(key), msgspec.json.encode(value))])
        yield connection


def read(connection, topic, **options):
    with TypedReader(connection, topic, **options) as reader:
        return [(record.offset, record.key, record.value) for record in reader]


def test_schemas_come_from_the_log(connection):
    assert read_schemas(connection) == {7: SCHEMA}


def test_values_are_decoded_by_what_they_are(connection):
    ensure_topic(connection, "t", 1)
    values = [avro.encode(7, SCHEMA, {"n": 1}), b'{"j": 2}', b"text", b"\xff\xfe", None]
    append(connection, "t", [(b"k", value) for value in values])
    assert read(connection, "t") == [
        (0, "k", {"n": 1}),
        (1, "k", {"j": 2}),
        (2, "k", "text"),
        (3, "k", b"\xff\xfe"),
        (4, "k", None),
    ]
    assert [offset for offset, _, _ in read(connection, "t", start="3")] == [3, 4]
    assert read(connection, "t", start="end") == []


def test_a_schema_that_nobody_registered_is_corrupt_data(connection):
    ensure_topic(connection, "u", 1)
    append(connection, "u", [(None, b"\0\0\0\0\x63\x02")])
    with pytest.raises(CorruptData, match="u: expected schema 99"):
        read(connection, "u")
