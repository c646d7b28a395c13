import contextlib
import json
import time
from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.registry.errors import InvalidSchema
from mainstem.registry.schema import brief, canonical, fallbacks, is_change, parse, pointer_to, span

EPOCH = datetime(1970, 1, 1)


def record(*fields, **attributes):
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields), **attributes})


def fixed(size, logical, **more):
    return json.dumps({"type": "fixed", "name": "F", "size": size, "logicalType": logical, **more})


def test_a_record_is_read_with_places_defaults_and_logical_types():
    text = record(
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "price",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
            "default": None,
        },
        namespace="shop",
        mainstem="change",
    )
    order = parse(text)
    assert (order.name, order.short_name, order.attributes) == ("shop.Order", "Order", {"mainstem": "change"})
    ident, at, price = order.fields
    assert not ident.has_default
    assert str(at.type) == "long (timestamp-micros)"
    assert price.has_default
    assert price.default is None
    decimal = price.type.branches[1]
    assert (decimal.pointer, decimal.precision, decimal.scale) == ("/fields/2/type/1", 9, 2)


def test_a_recursive_schema_is_a_cycle():
    node = parse('{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"],"default":null}]}')
    assert node.fields[0].type.branches[1] is node


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "/: not JSON"),
        ("7", "/: a type is a name, an object or a list, found 7"),
        ('{"name":"x"}', "/: the attribute 'type' is missing"),
        (
            record({"name": "a", "type": "strng"}),
            "/fields/0/type: unknown type 'strng' (named types defined before it: Order)",
        ),
        (record({"name": "a b", "type": "int"}), "/fields/0/name: 'a b' is not a name"),
        (
            record({"name": "a", "type": "int"}, {"name": "a", "type": "int"}),
            "/fields/1: the field 'a' is defined twice",
        ),
        (record({"name": "a"}), "/fields/0: a field is an object with 'name' and 'type'"),
        (
            record({"name": "a", "type": "int", "default": "x"}),
            '/fields/0/default: the default is wrong: expected int, found "x"',
        ),
        (
            record({"name": "a", "type": "int", "default": 2**31}),
            "/fields/0/default: the default is wrong: expected int",
        ),
        (
            record({"name": "a", "type": ["null", "int"], "default": 1}),
            "/fields/0/default: the default is wrong: expected null",
        ),
        (
            record({"name": "a", "type": {"type": ["null", "string"]}}),
            """/fields/0/type/type: a type's 'type' is a name, found ["null", "string"]: write that in place of""",
        ),
        ('{"type":{"type":"array","items":"string"}}', "/type: a type's 'type' is a name, found {"),
        (
            record({"name": "a", "type": "double", "default": 10**400}),
            "/fields/0/default: the default is wrong: expected double, found 1000",
        ),
        (
            record({"name": "a", "type": "long", "default": 10**400}),
            "/fields/0/default: the default is wrong: expected long, found 1000",
        ),
        ('["null",["int"]]', "/1: a union directly inside a union"),
        ('["int","int"]', "/1: the union holds 'int' twice"),
        ("[]", "/: a union needs at least one type"),
        ('{"type":"array"}', "/: the attribute 'items' of an array is missing"),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "/symbols/1: the symbol 'A' is no name or is there twice"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "/default: the default 'B' is not a symbol"),
        ('{"type":"fixed","name":"F","size":-1}', "/: a fixed needs a 'size' in bytes, found -1"),
        ('{"type":"fixed","name":"1F","size":1}', "/name: '1F' is not a name"),
        ('{"type":"bytes","logicalType":"decimal"}', "/: a decimal needs precision > 0"),
        (fixed(2, "decimal", precision=5), "/: a fixed of 2 bytes holds decimals of at most 4 digits, found 5"),
        (fixed(0, "decimal", precision=1), "/: a fixed of 0 bytes holds decimals of at most 0 digits, found 1"),
        (fixed(10**400, "decimal", precision=10**400), "/: a fixed of 1000"),
        (fixed(8, "uuid"), "/: a uuid on a fixed takes 16 bytes, found 8"),
        (fixed(3, "duration"), "/: a duration on a fixed takes 12 bytes, found 3"),
        ('{"type":"int","logicalType":"timestamp-micros"}', "/logicalType: timestamp-micros annotates long, not int"),
        ('{"type":"record","name":"R","fields":{}}', "/: a record needs a list 'fields'"),
        ('{"type":"record","fields":[]}', "/: a record needs a 'name'"),
        (record({"name": "o", "type": {"type": "enum", "name": "Order", "symbols": []}}), "'Order' is defined twice"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text, message):
    with pytest.raises(InvalidSchema) as error:
        parse(text)
    assert message in str(error.value)


def test_an_enum_of_many_symbols_is_read_within_seconds():
    """A gateway that reads one answers nobody else meanwhile:
    it was minutes, for a schema below the limit of its size.
    """
    symbols = [f"S{number}" for number in range(50_000)]
    kind = {"type": "enum", "name": "E", "symbols": symbols}
    text = record({"name": "all", "type": {"type": "array", "items": kind}, "default": symbols})
    started = time.monotonic()
    assert len(parse(text).fields[0].default) == 50_000
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("size", "logical", "more"),
    [(16, "uuid", {}), (12, "duration", {}), (2, "decimal", {"precision": 4}), (8, "x", {})],
)
def test_a_fixed_of_the_size_that_its_logical_type_takes(size, logical, more):
    parse(fixed(size, logical, **more))
    assert parse(fixed(1, logical, **more), lenient=True).logical == ""


def test_a_type_of_no_namespace_may_be_used_inside_of_one():
    """The specification does not find it, but Java does."""
    address = {"type": "record", "name": "Address", "namespace": "", "fields": []}
    text = record({"name": "a", "type": address}, {"name": "b", "type": "Address"}, namespace="shop")
    assert [field.type.name for field in parse(text).fields] == ["Address", "Address"]
    assert fallbacks(text) == {"shop.Address": "Address"}


def test_an_unknown_logical_type_is_ignored_as_the_specification_says():
    assert parse('{"type":"string","logicalType":"postcode"}').logical == ""


def test_types_of_references_may_be_used():
    address = '{"type":"record","name":"Address","namespace":"shop","fields":[{"name":"city","type":"string"}]}'
    customer = record({"name": "address", "type": "shop.Address"})
    with pytest.raises(InvalidSchema):
        parse(customer)
    assert parse(customer, [address]).fields[0].type.fields[0].name == "city"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"type": "string"}', '"string"'),
        ("string", '"string"'),
        ('{"name":"E","type":"enum","symbols":["A"]}', '{"type": "enum", "symbols": ["A"], "name": "E"}'),
        (
            '{"type":"fixed","name":"a.b.F","size":4}',
            '{"type":"fixed","name":"F","namespace":"a.b","size":4}',
        ),
        (
            '{"type":"record","name":"R","namespace":"a","fields":[{"type":"a.R","name":"f","order":"ascending"}]}',
            '{"type":"record","name":"a.R","fields":[{"name":"f","type":"R"}]}',
        ),
    ],
)
def test_two_ways_to_write_a_schema_are_one(one, other):
    assert canonical(one) == canonical(other)


def test_a_type_may_have_a_primitives_name_in_a_namespace_only():
    """Its canonical form lost the namespace, and with it the type."""
    word = {"type": "enum", "name": "string", "symbols": ["A"]}
    fields = [{"name": "a", "type": word}, {"name": "b", "type": "shop.string"}, {"name": "c", "type": "string"}]
    text = record(*fields, namespace="shop")
    for each in (text, canonical(text)):
        assert [str(field.type) for field in parse(each).fields] == ["enum shop.string", "enum shop.string", "string"]
    with pytest.raises(InvalidSchema, match=r"^/name: 'string' is the name of a primitive type"):
        parse(json.dumps(word))
    assert parse(json.dumps(word), lenient=True).name == "string"


def test_docs_defaults_and_custom_attributes_are_kept():
    text = record(
        {"name": "a", "type": "int", "default": 1, "doc": "why", "unit": "m"}, doc="an order", mainstem="change"
    )
    assert json.loads(canonical(text)) == json.loads(text)


names = st.sampled_from(["A", "B", "shop.C"])
leaves = st.sampled_from(["null", "int", "string"])
types = st.recursive(
    leaves | st.builds(lambda t: {"type": t}, leaves),
    lambda inner: st.one_of(
        st.builds(lambda t: {"type": "array", "items": t}, inner),
        st.builds(lambda t: {"values": t, "type": "map"}, inner),
        st.builds(
            lambda name, t: {"name": name, "type": "record", "fields": [{"type": t, "name": "f"}]},
            st.integers(0, 10**9).map("R{}".format),
            inner,
        ),
    ),
)


@given(types)
def test_canonical_text_is_a_fixed_point_and_means_the_same(tree):
    once = canonical(json.dumps(tree))
    assert canonical(once) == once


@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda t: (
            st.lists(t)
            | st.dictionaries(
                st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "default", "x"]), t
            )
        ),
    ),
    st.booleans(),
)
def test_any_json_is_a_schema_or_an_invalid_one(tree, lenient):
    text = json.dumps(tree)
    with contextlib.suppress(InvalidSchema):
        parse(text, lenient=lenient)
        canonical(text)


def test_what_is_stored_is_read_leniently():
    fields = [
        {"name": "größe", "type": {"type": "string", "logicalType": "date"}, "default": 7},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal"}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A-1"], "default": "B"}},
    ]
    day, fare, letter = parse(record(*fields), lenient=True).fields
    assert (day.type.logical, day.default) == ("", 7)
    assert (fare.type.logical, fare.type.precision) == ("", 0)
    assert (letter.type.symbols, letter.type.symbol_default) == (("A-1",), None)
    for field in fields:
        with pytest.raises(InvalidSchema):
            parse(record(field))


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"string","fields":5}',
        '{"type":"string","items":{"type":["null"]},"values":7}',
        record({"name": "a", "type": "double", "default": 10**300}),
        record({"name": "a", "type": "int", "default": 1.0}),
    ],
)
def test_what_is_a_schema_has_a_canonical_form(text):
    parse(text)
    assert canonical(canonical(text)) == canonical(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (record({"name": "a", "type": "int"}, doc="\ud800"), "/: a text holds one half of a surrogate pair"),
        (record({"name": "a", "type": "double", "default": float("nan")}), "/: a number is NaN, or further"),
        (record({"name": "a", "type": "double", "unit": 1}).replace("1}", "1e999}"), "/: a number is NaN, or further"),
    ],
)
def test_what_json_cannot_say_has_no_canonical_form(text, message):
    with pytest.raises(InvalidSchema) as error:
        canonical(text)
    assert str(error.value).startswith(message)


def test_a_message_about_half_a_character_can_be_sent():
    with pytest.raises(InvalidSchema) as error:
        parse(record({"name": "a", "type": "int", "default": "\ud800"}))
    assert str(error.value).encode().endswith(b'expected int, found "\\ud800"')


def test_pointers_are_escaped():
    assert pointer_to("/a", "b/c~d", 0) == "/a/b~1c~0d/0"


def test_dates_and_timestamps_are_of_the_years_1_to_9999():
    days = span("date")
    assert (EPOCH.date() + timedelta(days[0]), EPOCH.date() + timedelta(days[-1])) == (date.min, date.max)
    for logical in ("timestamp-micros", "local-timestamp-micros"):
        first, last = (EPOCH + timedelta(microseconds=span(logical)[place]) for place in (0, -1))
        assert (first, last) == (datetime.min, datetime.max)
    assert span("timestamp-millis")[-1] == span("timestamp-micros")[-1] // 1000
    assert span("timestamp-nanos") == range(-(2**63), 2**63)
    assert span("time-millis") == range(86_400_000)


def test_a_change_record_is_told_by_its_attribute():
    assert is_change(record({"name": "op", "type": "string"}, mainstem="change"))
    assert not is_change(record({"name": "id", "type": "long"}))
    assert not is_change('"string"')
    assert not is_change("string")
    assert not is_change('syntax = "proto3"; message Flight {}')
    assert not is_change("[" * 100_000)


def test_of_a_value_only_the_beginning_is_read_for_a_message():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    assert brief(nested) == "[" * 57 + "..."
    assert brief(["\ud800" * 60]) == '["' + "\\ud800" * 9 + "\\..."
    assert brief({"a": [1, "é", None]}) == '{"a": [1, "é", null]}'
