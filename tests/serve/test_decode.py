import json
from types import SimpleNamespace

import pytest

from mainstem.client.catalog import TopicEntry
from mainstem.core import CorruptData
from mainstem.registry import avro
from mainstem.serve.decode import Decoder
from mainstem.serve.index import Change

ROW = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
CHANGE = {
    "type": "record",
    "name": "Change",
    "mainstem": "change",
    "fields": [
        {"name": "op", "type": "string"},
        {"name": "after", "type": ["null", ROW], "default": None},
    ],
}
SCHEMAS = {1: json.dumps(ROW), 2: json.dumps(CHANGE)}


def message(value, key=b"k", offset=7):
    return SimpleNamespace(partition=lambda: 1, offset=lambda: offset, key=lambda: key, value=lambda: value)


def decoder(kind="changelog"):
    return Decoder("t", TopicEntry(kind), SCHEMAS.__getitem__)


def test_a_row_and_a_change_record_are_the_row_that_they_lead_to():
    rows = decoder()
    value = avro.encode(1, SCHEMAS[1], {"id": 5})
    assert rows.change(message(value)) == Change("t", 1, 7, "k", {"id": 5})
    update = avro.encode(2, SCHEMAS[2], {"op": "u", "after": {"id": 6}})
    assert rows.change(message(update)).row == {"id": 6}
    delete = avro.encode(2, SCHEMAS[2], {"op": "d", "after": None})
    assert rows.change(message(delete)).row is None
    assert rows.change(message(None)).row is None
    assert rows.schema_ids == {1, 2}


def test_a_truncate_is_one_of_a_changelog():
    truncate = avro.encode(2, SCHEMAS[2], {"op": "t", "after": None})
    assert decoder().change(message(truncate, key=b"\0truncate")) == Change("t", 1, 7, "", None, truncates=True)
    assert not decoder("stream").change(message(truncate)).truncates


def test_of_a_stream_all_records_are_kept_whatever_their_key():
    assert decoder("stream").change(message(b'{"id": 5}')) == Change("t", 1, 7, "", {"id": 5})


def test_what_is_no_record_is_one_column():
    assert decoder().change(message(b"[1, 2]")).row == {"value": [1, 2]}
    assert decoder().change(message(b"text")).row == {"value": "text"}


def test_what_cannot_be_decoded_is_told():
    with pytest.raises(CorruptData):
        decoder().change(message(b"\0\0\0\0\1"))
    with pytest.raises(CorruptData, match="expected a key of text"):
        decoder().change(message(b"{}", key=b"\xff"))
