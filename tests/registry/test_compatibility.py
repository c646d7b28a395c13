import io
import json
import time
from datetime import UTC, datetime
from decimal import Decimal

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.registry.compatibility import Level, _Comparison, can_read, check
from mainstem.registry.errors import InvalidSchema
from mainstem.registry.schema import parse
from tests.support.properties import examples


def record(*fields, name="R", **attributes):
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": n, "type": t, **more} for n, t, more in fields],
        **attributes,
    }


def enum(*symbols, **more):
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size, name="F"):
    return {"type": "fixed", "name": name, "size": size}


def decimal(precision, scale):
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def logical(kind, name):
    return {"type": kind, "logicalType": name}


def problems(reader, writer):
    return [str(problem) for problem in can_read(parse(json.dumps(reader)), parse(json.dumps(writer)))]


A = ("a", "int", {})
READABLE = [
    ("long", "int"),
    ("double", "int"),
    ("float", "long"),
    ("double", "float"),
    ("bytes", "string"),
    ("string", "bytes"),
    (record(A, ("b", "string", {"default": "x"})), record(A)),
    (record(A), record(A, ("b", "string", {}))),
    (record(("new", "int", {"aliases": ["a"]})), record(A)),
    (record(A, name="New", aliases=["R"]), record(A)),
    (record(A, namespace="x"), record(A, namespace="y")),
    (["null", "int"], "int"),
    ("int", ["int"]),
    (["null", "long"], ["int", "null"]),
    (["null", "string", record(A)], ["null", record(A)]),
    (enum("A", "B"), enum("A")),
    (enum("A", default="A"), enum("A", "B")),
    (fixed(4), fixed(4)),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    ({"type": "map", "values": ["null", "int"]}, {"type": "map", "values": "int"}),
    (decimal(12, 2), decimal(10, 2)),
    ("bytes", decimal(10, 2)),
    ("long", logical("long", "timestamp-micros")),
]
BROKEN = [
    ("int", "long", "TYPE_MISMATCH at /: expected int, the writer has long"),
    (
        record(A, ("b", "int", {})),
        record(A),
        "READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1: the field 'b' has no default",
    ),
    (record(("a", "string", {})), record(A), "TYPE_MISMATCH at /fields/0/type: expected string, the writer has int"),
    (record(A, name="Q"), record(A), "NAME_MISMATCH at /: expected Q, the writer has R"),
    ("int", ["null", "int"], "TYPE_MISMATCH at /: expected int, the writer has null"),
    (
        ["null", "int"],
        ["null", "int", "string"],
        "MISSING_UNION_BRANCH at /: the writer's string fits none of the union of null, int",
    ),
    (enum("A"), enum("A", "B", "C"), "MISSING_ENUM_SYMBOLS at /symbols: the writer's symbols B, C are unknown"),
    (fixed(5), fixed(4), "FIXED_SIZE_MISMATCH at /: expected 5 bytes, the writer has 4"),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "TYPE_MISMATCH at /items"),
    (
        decimal(10, 4),
        decimal(10, 2),
        "LOGICAL_TYPE_MISMATCH at /: expected bytes (decimal 10,4), the writer has bytes (decimal 10,2)",
    ),
    (decimal(8, 2), decimal(10, 2), "LOGICAL_TYPE_MISMATCH"),
    (decimal(10, 2), "bytes", "LOGICAL_TYPE_MISMATCH"),
    (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), "LOGICAL_TYPE_MISMATCH"),
    (logical("string", "uuid"), "string", "LOGICAL_TYPE_MISMATCH"),
    ("long", logical("int", "date"), "no promotion between logical types"),
    (["null", enum("A")], enum("A", "B"), "MISSING_ENUM_SYMBOLS at /1/symbols"),
]


@pytest.mark.parametrize(("reader", "writer"), READABLE)
def test_readable(reader, writer):
    assert problems(reader, writer) == []


@pytest.mark.parametrize(("reader", "writer", "reason"), BROKEN)
def test_broken_with_its_place_and_reason(reader, writer, reason):
    (problem,) = problems(reader, writer)
    assert reason in problem
    assert "\n" not in problem


def test_every_problem_is_told_not_only_the_first():
    new = record(("a", "string", {}), ("b", "int", {}), ("c", "int", {}))
    assert len(problems(new, record(A))) == 3


def test_a_recursive_schema_ends_and_its_break_is_found():
    def tree(kind):
        return record(("value", kind, {}), ("next", ["null", "R"], {}))

    assert problems(tree("long"), tree("int")) == []
    assert "TYPE_MISMATCH at /fields/0/type" in problems(tree("int"), tree("long"))[0]


def test_a_union_of_types_with_one_short_name_reads_its_own_data():
    """The first branch of that short name was taken, and any change elsewhere was refused."""
    a, b = (
        record((field, kind, {}), name="X", namespace=space)
        for field, kind, space in (("f", "int", "a"), ("g", "string", "b"))
    )
    assert problems([a, b], [a, b]) == []
    assert problems([a, b], [b, a]) == []
    assert problems([a, b], [{**b, "namespace": "c"}]) != []  # by the short name, which the first has


def test_what_was_taken_for_granted_inside_a_failed_record_is_not_believed_later():
    """`Box` is readable only if `R` is; `R` fails; the second use of `Box` must not be called readable."""

    def schema(kind):
        box = record(("inner", ["null", "R"], {}), name="Box")
        return record(("box", box, {}), ("value", kind, {}), ("again", "Box", {}))

    found = can_read(parse(json.dumps(schema("int"))), parse(json.dumps(schema("string"))))
    assert found


def test_levels():
    v1, v2, v3 = (
        parse(json.dumps(each))
        for each in (record(A), record(A, ("b", "int", {"default": 0})), record(A, ("b", "int", {})))
    )
    old = [(1, v1), (2, v2)]
    assert check(v3, old, Level.BACKWARD) == []
    (reason,) = check(v3, old, Level.BACKWARD_TRANSITIVE)
    assert reason.startswith(
        "the new schema cannot read data of version 1: READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1"
    )
    assert check(v3, old, Level.FORWARD_TRANSITIVE) == []
    assert check(v3, old, Level.FULL_TRANSITIVE) == [reason]
    assert check(v1, [(3, v3)], Level.BACKWARD) == []
    (reason,) = check(v1, [(3, v3)], Level.FORWARD)
    assert reason.startswith("readers with version 3 cannot read data of the new schema")
    assert check(parse('"int"'), old, Level.NONE) == []


# -- the property: what we call readable, fastavro reads

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL = [
    decimal(6, 2), decimal(9, 2), decimal(9, 3), logical("string", "uuid"), logical("int", "date"), logical("long", "timestamp-millis"),
    logical("long", "timestamp-micros"), logical("int", "time-millis"), logical("long", "time-micros"),
]  # fmt: skip
DEFAULTS = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2,
    "float": 0.5,
    "double": 1.5,
    "bytes": "b",
    "string": "s",
}


@st.composite
def schemas(draw, depth=2, taken=None):
    """A schema; names come from a small pool, so that two schemas are often about the same types."""
    taken = set() if taken is None else taken
    kinds = ["primitive", "primitive", "logical"] + (
        ["record", "record", "enum", "fixed", "array", "map", "union"] if depth else []
    )
    kind = draw(st.sampled_from(kinds))
    free = [name for name in ("P", "Q", "R") if name not in taken]
    if kind in {"record", "enum", "fixed"} and not free:
        kind = "primitive"
    if kind in {"record", "enum", "fixed"}:
        name = draw(st.sampled_from(free))
        taken.add(name)
    match kind:
        case "primitive":
            return draw(st.sampled_from(PRIMITIVES))
        case "logical":
            return draw(st.sampled_from(LOGICAL))
        case "array":
            return {"type": "array", "items": draw(schemas(depth=depth - 1, taken=taken))}
        case "map":
            return {"type": "map", "values": draw(schemas(depth=depth - 1, taken=taken))}
        case "union":
            found = [draw(schemas(depth=0, taken=taken)) for _ in range(draw(st.integers(1, 3)))]
            if free and draw(st.booleans()):
                found.append(draw(schemas(depth=depth - 1, taken=taken)))
            branches, seen = [], set()
            for branch in found:
                label = (
                    branch
                    if isinstance(branch, str)
                    else branch.get("name", branch["type"])
                    if isinstance(branch, dict)
                    else "union"
                )
                if label not in seen and label != "union":
                    seen.add(label)
                    branches.append(branch)
            return branches or ["null"]
        case "enum":
            symbols = draw(st.lists(st.sampled_from("ABC"), min_size=1, unique=True))
            more = {"default": symbols[0]} if draw(st.booleans()) else {}
            return {"type": "enum", "name": name, "symbols": symbols, **more}
        case "fixed":
            return {"type": "fixed", "name": name, "size": draw(st.integers(1, 3))}
        case _:
            fields = []
            for field in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4)):
                inner = draw(schemas(depth=depth - 1, taken=taken))
                more = {"default": DEFAULTS[inner]} if isinstance(inner, str) and draw(st.booleans()) else {}
                if draw(st.integers(0, 4)) == 0:
                    more["aliases"] = [draw(st.sampled_from("abcd"))]
                fields.append({"name": field, "type": inner, **more})
            return {"type": "record", "name": name, "fields": fields}


@st.composite
def evolved(draw, tree):
    """`tree` with a few of the changes that teams make."""
    if draw(st.integers(0, 7)) == 0:
        return draw(schemas(depth=1))
    if isinstance(tree, str):
        wider = {
            "int": ["long", "double", "float"],
            "long": ["double", "float"],
            "float": ["double"],
            "string": ["bytes"],
            "bytes": ["string"],
        }
        choice = draw(st.integers(0, 3))
        if choice == 0:
            return draw(st.sampled_from(wider.get(tree, [tree])))
        return ["null", tree] if choice == 1 and tree != "null" else tree
    if isinstance(tree, list):
        result = [draw(evolved(branch)) for branch in tree]
        result = [branch for branch in result if not isinstance(branch, list)] or tree
        labels = [b if isinstance(b, str) else b.get("name", b["type"]) for b in result]
        return draw(st.permutations(result)) if len(set(labels)) == len(labels) else tree
    tree = dict(tree)
    match tree["type"]:
        case "record":
            fields = [{**f, "type": draw(evolved(f["type"]))} for f in tree["fields"] if draw(st.integers(0, 5))]
            fields = [
                {k: v for k, v in f.items() if k != "default"}
                | ({"default": DEFAULTS[f["type"]]} if "default" in f and isinstance(f["type"], str) else {})
                for f in fields
            ]
            free = [n for n in "abcdef" if n not in {f["name"] for f in fields}]
            if free and draw(st.booleans()):
                kind = draw(st.sampled_from(PRIMITIVES))
                fields.append({"name": free[-1], "type": kind, "default": DEFAULTS[kind]})
            tree["fields"] = draw(st.permutations(fields))
        case "enum":
            tree["symbols"] = draw(st.lists(st.sampled_from("ABCD"), min_size=1, unique=True))
            tree.pop("default", None)
            if draw(st.booleans()):
                tree["default"] = tree["symbols"][-1]
        case "array":
            tree["items"] = draw(evolved(tree["items"]))
        case "map":
            tree["values"] = draw(evolved(tree["values"]))
        case "fixed":
            tree["size"] = draw(st.sampled_from([tree["size"], 1]))
        case _:
            return draw(st.sampled_from([tree, tree["type"], tree]))
    return tree


def instances(node):
    """Values of a parsed schema, as fastavro takes them."""
    match node.logical or node.kind:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "int":
            return st.integers(-(2**31), 2**31 - 1)
        case "long":
            return st.integers(-(2**63), 2**63 - 1)
        case "float":
            return st.floats(width=32, allow_nan=False, allow_infinity=False)
        case "double":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "bytes":
            # a reader that takes bytes for a string decodes them: only UTF-8 can be read, on every implementation
            return st.text(max_size=8).map(str.encode)
        case "string":
            return st.text(max_size=8)
        case "uuid":
            return st.uuids().map(str)
        case "decimal":
            limit = 10**node.precision - 1
            return st.integers(-limit, limit).map(lambda n: Decimal(n).scaleb(-node.scale))
        case "date":
            return st.dates()
        case "time-millis":
            return st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))
        case "time-micros":
            return st.times()
        case "timestamp-millis" | "timestamp-micros":
            return st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(
                lambda t: t.replace(tzinfo=UTC, microsecond=t.microsecond // 1000 * 1000)
            )
        case "fixed":
            return st.binary(min_size=node.size, max_size=node.size)
        case "enum":
            return st.sampled_from(node.symbols)
        case "array":
            return st.lists(instances(node.items), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=3), instances(node.items), max_size=3)
        case "union":
            # fastavro guesses the branch of a bare value, and may take "A" for a uuid: name it
            return st.one_of(*(instances(b).map(lambda v, b=b: (b.name or b.kind, v)) for b in node.branches))
        case _:
            return st.fixed_dictionaries({f.name: instances(f.type) for f in node.fields})


def written(tree, value):
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(tree), value)
    return buffer.getvalue()


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
@given(st.data())
def test_what_is_called_readable_is_read_by_fastavro(data):
    old = data.draw(schemas(), label="old")
    new = data.draw(evolved(old), label="new")
    try:
        writer, reader = parse(json.dumps(old)), parse(json.dumps(new))
    except InvalidSchema:  # evolution brought in a name twice
        return
    if can_read(reader, writer):
        return
    for _ in range(3):
        value = data.draw(instances(writer), label="value")
        payload = io.BytesIO(written(old, value))
        fastavro.schemaless_reader(payload, fastavro.parse_schema(old), fastavro.parse_schema(new))
        assert payload.read() == b""


def nested(leaf, levels=40, *, wrapped_first):
    """R0 holds the leaf; every further record uses the one before twice, once of them in a wrapper."""
    made = record(("x", leaf, {}), name="R0")
    for level in range(1, levels):
        wrapper = record(("r", made, {}), name=f"W{level}")
        fields = [("a", wrapper, {}), ("b", f"R{level - 1}", {})]
        plain = [("a", made, {}), ("b", record(("r", f"R{level - 1}", {}), name=f"W{level}"), {})]
        made = record(*(fields if wrapped_first else plain), name=f"R{level}")
    return made


@pytest.mark.parametrize("wrapped_first", [True, False])
@pytest.mark.parametrize("writer", ["int", "string"])
def test_a_type_that_is_used_often_is_compared_once_and_told_once(wrapped_first, writer):
    """Each level doubled the reasons: a schema of 6 KB had 2^64 of them."""
    levels = 30
    reader = nested("string", levels, wrapped_first=wrapped_first)
    found = problems(reader, nested(writer, levels, wrapped_first=wrapped_first))
    assert [line.partition(" at ")[0] for line in found] == ([] if writer == "string" else ["TYPE_MISMATCH"])


def test_what_was_taken_as_readable_on_the_way_is_looked_at_again():
    """B is readable as long as A is; A is not, and so B is not either, where it is used without A."""

    def schema(leaf):
        b = record(("back", ["null", "A"], {}), name="B")
        return record(("a", record(("b", b, {}), ("x", leaf, {}), name="A"), {}), ("b", "B", {}), name="Top")

    assert problems(schema("long"), schema("int")) == []
    (found,) = problems(schema("int"), schema("string"))
    assert found.startswith("TYPE_MISMATCH at /fields/0/type/fields/1/type: expected int")


def test_enums_of_many_symbols_are_compared_within_seconds():
    symbols = [f"S{number}" for number in range(50_000)]
    started = time.monotonic()
    assert problems(enum(*symbols), enum(*reversed(symbols))) == []
    assert time.monotonic() - started < 5


def test_unions_of_many_types_are_compared_by_name_and_the_reasons_are_few(monkeypatch):
    """Every pair of 20,000 types, each pair with a reason that lists 20,000, was more than any machine holds."""
    calls = []
    compare = _Comparison.compare
    monkeypatch.setattr(_Comparison, "compare", lambda *each: (calls.append(1), compare(*each))[1])
    old, new, other = (parse(json.dumps([fixed(4, f"{x}{n}") for n in range(20_000)])) for x in "AAB")
    assert check(new, [(1, old)], Level.FULL) == []
    assert len(calls) < 3 * 20_000
    calls.clear()
    reasons = check(other, [(1, old)], Level.FULL)
    assert len(calls) < 100
    assert reasons[0].startswith(
        "the new schema cannot read data of version 1: MISSING_UNION_BRANCH at /: the writer's "
    )
    assert "fixed A0 fits none of the union of fixed B0, fixed B1, " in reasons[0]
    assert reasons[0].endswith(", fixed B19 and 19980 more")
    assert len(reasons) == 21
    assert reasons[-1] == "and more"
    assert len("; ".join(reasons)) < 20_000


def test_reasons_are_no_longer_than_a_message_for_names_and_symbols_of_any_length():
    long = "x" * 100_000
    many = [f"S{n}" for n in range(20_000)]
    for reader, writer in [
        (fixed(4, f"{long}a"), fixed(4, f"{long}b")),
        (enum("S0"), enum(*many)),
        ("int", fixed(4, long)),
        ([fixed(4, f"{long}a"), "int"], fixed(4, f"{long}b")),
        (record((long, "int", {})), record()),
        (record(("a", "int", {"aliases": many})), record(*((name, "int", {}) for name in many))),
    ]:
        (problem,) = problems(reader, writer)
        assert len(problem) < 2000


def test_a_type_that_breaks_in_many_places_hides_no_other():
    old = record(("a", fixed(4), {}), *((f"f{n}", "F", {}) for n in range(100)), ("last", "int", {}))
    new = record(("a", fixed(5), {}), *((f"f{n}", "F", {}) for n in range(100)), ("last", "string", {}))
    assert [line.partition(" ")[0] for line in problems(new, old)] == ["FIXED_SIZE_MISMATCH", "TYPE_MISMATCH"]
