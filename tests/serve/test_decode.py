import json
from types import SimpleNamespace

import msgspec
import pytest

from mainstem.client.catalog import TopicEntry
from mainstem.core import CorruptData
from mainstem.registry import avro
from mainstem.serve.decode import DEEPEST, Decoder
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
    assert decoder().change(message(truncate, key=b"\0truncate")) == Change("t", 1, 7, None, None, truncates=True)
    assert not decoder("stream").change(message(truncate)).truncates


def test_of_a_stream_all_records_are_kept_whatever_their_key():
    rows = decoder("stream")
    assert rows.change(message(b'{"id": 5}')) == Change("t", 1, 7, None, {"id": 5}, told_key="k")
    assert rows.change(message(b'{"id": 5}', key=b"\xff")).told_key is None


@pytest.mark.parametrize(("key", "text"), [(None, None), (b"", ""), (b"\0", "\0"), (b"x\0", "x\0")])
def test_an_empty_key_is_a_key_and_none_is_none(key, text):
    change = decoder().change(message(b'{"id": 5}', key=key))
    assert (change.key, change.told_key) == (text, None)
    assert decoder("stream").change(message(b'{"id": 5}', key=key)).told_key == text


def test_what_is_no_record_is_one_column():
    assert decoder().change(message(b"[1, 2]")).row == {"value": [1, 2]}
    assert decoder().change(message(b"text")).row == {"value": "text"}


@pytest.mark.parametrize("row", [{"x": 1}, {"op": None, "after": None}, {"op": "u", "after": 5}, 5])
def test_a_change_record_of_another_kind_is_none(row):
    kinds = {type(None): "null", int: "int", str: "string"}
    schema: object = "int"
    if isinstance(row, dict):
        fields = [{"name": name, "type": kinds[type(value)]} for name, value in row.items()]
        schema = {"type": "record", "name": "R", "mainstem": "change", "fields": fields}
    else:
        schema = {"type": "int", "mainstem": "change"}
    text = json.dumps(schema)
    odd = Decoder("t", TopicEntry("changelog"), {9: text}.__getitem__)
    with pytest.raises(CorruptData, match="expected a change record"):
        odd.change(message(avro.encode(9, text, row)))


def test_json_that_is_too_deep_is_told():
    deep = b"[" * DEEPEST + b"1" + b"]" * DEEPEST
    assert decoder().change(message(deep)).row is not None
    assert decoder().change(message(b'{"x": %s}' % msgspec.json.encode("[" * 500))).row is not None
    for deeper in (b"[%s]" % deep, b'{"x": %s}' % deep):
        with pytest.raises(CorruptData, match="inside of each other"):
            decoder().change(message(deeper))


def test_what_cannot_be_decoded_is_told():
    with pytest.raises(CorruptData):
        decoder().change(message(b"\0\0\0\0\1"))
    with pytest.raises(CorruptData, match="expected a key of text"):
        decoder().change(message(b"{}", key=b"\xff"))
