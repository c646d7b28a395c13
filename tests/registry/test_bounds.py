import io
import json

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.registry.bounds import DEEPEST, FREE, needs_walk, walk

LIST = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
NOTHING = {"type": "record", "name": "Nothing", "fields": []}
EVERY_KIND = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": "long"},
        {"name": "short", "type": "float"},
        {"name": "long", "type": "double"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "bytes", "type": "bytes"},
        {"name": "word", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "nothing", "type": "null"},
        {"name": "map", "type": {"type": "map", "values": "E"}},
        {"name": "children", "type": {"type": "array", "items": "R"}},
    ],
}
rows = st.deferred(
    lambda: st.fixed_dictionaries(
        {
            "flag": st.booleans(),
            "small": st.integers(-(2**31), 2**31 - 1),
            "large": st.integers(-(2**63), 2**63 - 1),
            "short": st.floats(width=32),
            "long": st.floats(),
            "text": st.none() | st.text(max_size=5),
            "bytes": st.binary(max_size=100),
            "word": st.sampled_from("AB"),
            "hash": st.binary(min_size=3, max_size=3),
            "nothing": st.none(),
            "map": st.dictionaries(st.text(max_size=2), st.sampled_from("AB"), max_size=2),
            "children": st.lists(rows, max_size=1),
        }
    )
)


def parsed(tree):
    names = {}
    return fastavro.parse_schema(json.loads(json.dumps(tree)), named_schemas=names), names


@given(rows)
def test_a_value_is_walked_through_to_its_end_and_no_further(row):
    schema, names = parsed(EVERY_KIND)
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, row)
    walk(schema, names, buffer.getvalue())
    with pytest.raises(EOFError):
        walk(schema, names, buffer.getvalue()[:-1])


def chain(length, first):
    """Records of which each has the one before it; the last of them is the value."""
    fields = [{"name": "f0", "type": ["null", {"type": "record", "name": "A0", "fields": first}]}]
    for number in range(1, length):
        inner = [{"name": "a", "type": f"A{number - 1}"}, {"name": "b", "type": f"A{number - 1}"}]
        kind = {"type": "record", "name": f"A{number}", "fields": inner}
        fields.append({"name": f"f{number}", "type": ["null", kind]})
    return {"type": "record", "name": "Chain", "fields": fields}


@pytest.mark.parametrize(
    ("tree", "needed"),
    [
        ("null", False),
        (NOTHING, False),
        (["null", NOTHING], False),
        ({"type": "map", "values": "null"}, False),
        ({"type": "array", "items": "long"}, False),
        ({"type": "array", "items": ["null", "string"]}, False),
        (chain(20, [{"name": "x", "type": "int"}]), False),
        ({"type": "array", "items": "null"}, True),
        ({"type": "array", "items": NOTHING}, True),
        ({"type": "map", "values": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}}, True),
        (chain(20, []), True),
        (chain(DEEPEST, [{"name": "x", "type": "int"}]), True),
        (LIST, True),
        (EVERY_KIND, True),
    ],
)
def test_few_schemas_need_it(tree, needed):
    assert needs_walk(*parsed(tree)) is needed


def test_depth_has_an_end():
    links = DEEPEST // 2 - 2
    walk(*parsed(LIST), b"\2" * links + b"\0")
    for more in (10, 100_000):
        with pytest.raises(ValueError, match=f"^nested more than {DEEPEST} levels deep$"):
            walk(*parsed(LIST), b"\2" * (links + more) + b"\0")


@pytest.mark.parametrize(
    ("tree", "data"),
    [
        ({"type": "array", "items": "null"}, b"\xfe" + b"\xff" * 8 + b"\1\0"),  # 2**63 - 1 of them
        ({"type": "array", "items": "null"}, b"\xff" * 9 + b"\1\0\0"),  # as a block with its size
        ({"type": "array", "items": NOTHING}, b"\x80\x80\x80\1\0"),
        (chain(40, []), b"\0" * 39 + b"\2"),
    ],
)
def test_parts_that_take_no_byte_come_in_no_great_number(tree, data):
    with pytest.raises(
        ValueError, match=f"^expected at most {FREE + 10 * len(data)} parts in {len(data)} bytes, found"
    ):
        walk(*parsed(tree), data)


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("string", b"\1", "expected a length in bytes, found -1"),
        (["null", "int"], b"\1", "expected one of 2 branches of a union, found number -1"),
        (["null", "int"], b"\4", "expected one of 2 branches of a union, found number 2"),
        ("long", b"\x80" * 1_000_000, "a number of more than 10 bytes"),
    ],
)
def test_numbers_that_lead_nowhere(kind, data, message):
    with pytest.raises(ValueError, match=message):
        walk(*parsed(kind), data)
