"""Two topics compared: against a model of plain dictionaries and lists."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.client.append import append
from mainstem.client.topics import ensure_topic, stable_offsets
from mainstem.process import compare as module
from mainstem.process.compare import ColumnDifference, Comparison, Example, Side, compare, same, table_differences
from mainstem.registry import avro
from tests.support.properties import examples

NUMBERS = iter(range(10_000))


def schema(name, **columns):
    fields = [{"name": column, "type": kind} for column, kind in columns.items()]
    return json.dumps({"type": "record", "name": name, "fields": fields})


@pytest.fixture
def put(log_connection, live_registry):
    """Write rows of (key, row or None) to a topic of its own; what is compared of it."""

    def write(records, text, partitions=2):
        name = f"compared{next(NUMBERS)}"
        ensure_topic(log_connection, name, partitions)
        schema_id = live_registry.register(f"{name}-value", text)
        values = [(key, None if row is None else avro.encode(schema_id, text, row)) for key, row in records]
        if values:
            append(log_connection, name, values)
        return Side(name, stable_offsets(log_connection, {name: partitions})[name])

    return write


def row(n, mean):
    return {"n": n, "mean": mean}


def test_tables_are_compared_by_the_last_row_of_each_key(log_connection, put):
    nan = float("nan")
    one, two = schema("one", n="long", mean="double"), schema("two", n="long", mean="double")
    left = put([(b"a", row(1, 1.0)), (b"b", row(1, 1.0)), (b"b", row(2, 2.0)), (b"c", row(3, 3.0)), (b"d", row(4, nan)),
                (b"e", row(5, 5.0)), (b"e", None), (b"f", row(6, 0.1 + 0.2))], one)  # fmt: skip
    right = put([(b"a", row(1, 1.0)), (b"b", row(2, 2.5)), (b"c", row(3, 3.0)), (b"c", None), (b"d", row(4, nan)),
                 (b"e", row(5, 5.0)), (b"f", row(7, 0.3))], two, partitions=3)  # fmt: skip
    found = compare(log_connection, left, right, keyed=True, limit=3)
    assert (found.equal, found.added, found.removed, found.changed) == (2, 1, 1, 2)
    assert found.columns == [ColumnDifference("mean", 2), ColumnDifference("n", 1)]  # numbers exactly
    assert found.examples == [
        Example("changed", "b", row(2, 2.0), row(2, 2.5)),
        Example("removed", "c", row(3, 3.0), None),
        Example("added", "e", None, row(5, 5.0)),
    ]
    raw = {each.key: (each.left is None, each.right is None) for each in table_differences(log_connection, left, right)}
    assert raw == {b"b": (False, False), b"c": (False, True), b"e": (True, False), b"f": (False, False)}


def test_only_what_lies_before_the_ends_is_compared(log_connection, put):
    text = schema("row", n="long")
    side = put([(b"a", {"n": 1}), (b"a", {"n": 2})], text, partitions=1)
    before = Side(side.topic, {0: 1})
    assert compare(log_connection, before, side, keyed=True).changed == 1
    assert compare(log_connection, before, before, keyed=True) == Comparison(equal=1)
    assert compare(log_connection, Side(side.topic, {0: 0}), side, keyed=True).added == 1


def test_columns_that_one_has_alone_are_told_and_the_others_compared(log_connection, put):
    left = put([(b"a", {"n": 1, "old": "x"}), (b"b", {"n": 2, "old": "y"})], schema("one", n="int", old="string"))
    right = put(
        [(b"a", {"n": 1.0, "new": True}), (b"b", {"n": 2.5, "new": True})], schema("two", n="double", new="boolean")
    )
    found = compare(log_connection, left, right, keyed=True, limit=0)
    assert (found.equal, found.changed, found.examples) == (1, 1, [])
    assert found.columns == [
        ColumnDifference("n", 1),
        ColumnDifference("new", 2, "right"),
        ColumnDifference("old", 2, "left"),
    ]
    assert [each.key for each in table_differences(log_connection, left, right)] == [b"a", b"b"]  # to be written anew
    streams = compare(log_connection, left, right, keyed=False)
    assert (streams.equal, streams.changed) == (1, 1)


def test_streams_are_compared_as_bags_and_what_is_left_of_a_key_is_paired(log_connection, put):
    text = schema("row", n="long")
    left = put([(b"a", {"n": 1}), (b"a", {"n": 1}), (b"a", {"n": 2}), (b"b", {"n": 3}), (None, {"n": 4})], text)
    right = put([(b"a", {"n": 2}), (b"a", {"n": 1}), (b"a", {"n": 9}), (None, {"n": 5}), (None, {"n": 4})], text)
    found = compare(log_connection, left, right, keyed=False)
    assert (found.equal, found.added, found.removed, found.changed) == (3, 1, 1, 1)
    assert [(each.kind, each.key, each.left, each.right) for each in found.examples] == [
        ("added", None, None, {"n": 5}),
        ("changed", "a", {"n": 1}, {"n": 9}),
        ("removed", "b", {"n": 3}, None),
    ]


def test_values_without_a_schema_are_compared_as_they_are(log_connection):
    sides = []
    for values in ([b"1", b'{"x": 1, "y": 2}', b"\0bin"], [b"2", b'{"x": 1, "y": 3}', b"\0bin"]):
        name = f"compared{next(NUMBERS)}"
        ensure_topic(log_connection, name, 1)
        append(log_connection, name, [(bytes([97 + n]), value) for n, value in enumerate(values)])
        sides.append(Side(name, {0: 3}))
    found = compare(log_connection, *sides, keyed=True)
    assert (found.equal, found.changed) == (1, 2)
    assert [(each.column, each.rows) for each in found.columns] == [("value", 1), ("y", 1)]


ROWS = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.none() | st.integers(0, 3)), max_size=12)


@settings(max_examples=examples(15), deadline=None)
@given(ROWS, ROWS, st.integers(1, 4))
def test_as_a_model_says(log_connection, live_registry, left, right, files):
    text, sides = schema("row", n="long"), []
    for records in (left, right):
        name = f"compared{next(NUMBERS)}"
        ensure_topic(log_connection, name, 1)
        schema_id = live_registry.register(f"{name}-value", text)
        values = [(key, None if n is None else avro.encode(schema_id, text, {"n": n})) for key, n in records]
        if values:
            append(log_connection, name, values)
        sides.append(Side(name, {0: len(values)}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS_OF_A_FILE", 12 // files)
        table = compare(log_connection, *sides, keyed=True)
        stream = compare(log_connection, *sides, keyed=False)
    one, two = ({key: n for key, n in dict(each).items() if n is not None} for each in (left, right))
    both = one.keys() & two.keys()
    assert table.equal == sum(one[key] == two[key] for key in both)
    assert table.changed == len(both) - table.equal
    assert (table.added, table.removed) == (len(two.keys() - one.keys()), len(one.keys() - two.keys()))
    left, right = ([each for each in records if each[1] is not None] for records in (left, right))
    bags = Counter(left), Counter(right)
    assert stream.equal == (bags[0] & bags[1]).total()
    assert stream.equal + stream.removed + stream.changed == len(left)
    assert stream.equal + stream.added + stream.changed == len(right)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (2**53 + 1, float(2**53), False),
        (True, 1, False),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
        ([1, {"a": float("nan")}], [1, {"a": float("nan")}], True),
        ([1], [1, 2], False),
        ({"a": 1}, {"b": 1}, False),
        (None, 0, False),
    ],
)
def test_values_are_compared_exactly(one, other, equal):
    assert same(one, other) is equal
    assert same(other, one) is equal
