import msgspec
import pytest
from structlog.testing import capture_logs

from mainstem import embedded
from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.internal import SCHEMAS
from mainstem.client.reader import CommittedReader
from mainstem.client.topics import end_offsets, ensure_internal_topics, ensure_topic
from mainstem.core import CorruptData
from mainstem.registry import avro
from mainstem.registry import reader as reader_module
from mainstem.registry.reader import TypedReader, read_schemas
from tests.support.records import append_with_strange_header

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


def test_a_record_that_no_registry_wrote_holds_up_nobody(connection):
    """It stopped the lakehouse of all topics, and `tail`."""
    key = msgspec.json.encode({"keytype": "SCHEMA", "subject": "x", "version": 1, "magic": 1})
    strange = [b"x", b'"x"', b'{"keytype":"\xff"}', b'{"x":' + b"[" * 5000, key]
    before = read_schemas(connection)
    append(connection, SCHEMAS, [(each, b'{"subject":"x"}') for each in strange])
    with capture_logs() as logs:
        assert read_schemas(connection) == before
    assert [each["event"] for each in logs] == ["registry_record_unreadable"] * len(strange)
    append(connection, SCHEMAS, [(each, None) for each in strange])


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
    with pytest.raises(CorruptData, match=r"^u-0 offset 0: expected schema 99"):
        read(connection, "u")


def test_schemas_are_read_again_for_an_unknown_id_where_there_are_others_since(connection, monkeypatch):
    """Values that begin with a zero and are no Avro cost a reading of all schemas each: `tail` gave a few a second."""
    calls = []
    monkeypatch.setattr(reader_module, "read_schemas", lambda log: (calls.append(1), read_schemas(log))[1])
    ensure_topic(connection, "zeros", 1)
    append(connection, "zeros", [(None, b"\0\0\0\x01" + bytes([n])) for n in range(50)])
    with TypedReader(connection, "zeros", raw=True, follow=True) as reader:
        records = iter(reader)
        assert all(next(records).undecoded for _ in range(50))
        assert len(calls) == 1
        key = {"keytype": "SCHEMA", "subject": "zeros-value", "version": 1, "magic": 1}
        value = {"subject": "zeros-value", "version": 1, "id": 256, "schema": SCHEMA, "deleted": False}
        append(connection, SCHEMAS, [(msgspec.json.encode(key), msgspec.json.encode(value))])
        append(connection, "zeros", [(None, avro.encode(256, SCHEMA, {"n": 1}))])
        assert next(records).value == {"n": 1}
    assert len(calls) == 2


def test_one_look_for_schemas_tells_of_all_records_that_came_together(connection, monkeypatch):
    """Each record took two requests to see that there was nothing new."""

    class AllTogether(CommittedReader):
        def __iter__(self):
            yield [message for messages in super().__iter__() for message in messages]

    looks = []
    monkeypatch.setattr(reader_module, "CommittedReader", AllTogether)
    monkeypatch.setattr(reader_module, "end_offsets", lambda *at: (looks.append(at[1]), end_offsets(*at))[1])
    ensure_topic(connection, "many", 1)
    append(connection, "many", [(None, b"\0\0\1" + n.to_bytes(2, "big")) for n in range(1000)])
    with TypedReader(connection, "many", raw=True) as reader:
        assert sum(bool(record.undecoded) for record in reader) == 1000
    assert looks == [SCHEMAS]


def test_an_odd_record_does_not_end_a_raw_reader(connection):
    ensure_topic(connection, "odd", 1)
    texts = {8: '{"type": "record"', 9: '{"type": "record", "name": "C", "fields": [{"name": "a", "type": "Address"}]}'}
    for number, text in texts.items():
        key = {"keytype": "SCHEMA", "subject": "odd-value", "version": number, "magic": 1}
        value = {"subject": "odd-value", "version": number, "id": number, "schema": text, "deleted": False}
        append(connection, SCHEMAS, [(msgspec.json.encode(key), msgspec.json.encode(value))])
    values = [b"[" * 5000, b"\0\0\0\0\x08\x02", b"\0\0\0\0\x09\x02", b"end"]
    append(connection, "odd", [(b"k", value) for value in values])
    with TypedReader(connection, "odd", raw=True) as reader:
        records = list(reader)
    assert [record.value for record in records] == ["[" * 5000, *values[1:3], "end"]
    assert [record.undecoded[:28] for record in records] == [
        "",
        *(f"schema {n} cannot be read with" for n in (8, 9)),
        "",
    ]
    with pytest.raises(CorruptData, match=r"^odd-0 offset 1: schema 8 cannot be read with: InvalidSchema: /: not JSON"):
        read(connection, "odd", start="1")


def test_a_record_whose_headers_cannot_be_read_is_read_without_them(connection):
    ensure_topic(connection, "headers", 1)
    append_with_strange_header(connection, "headers", b"text")
    with TypedReader(connection, "headers") as reader:
        assert [(record.value, record.headers) for record in reader] == [("text", {})]
