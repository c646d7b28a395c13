"""Schemas of all Avro types with events that fit them: their JSON, and the row that a reader must get."""

import base64
import json
import struct
from datetime import UTC
from decimal import Decimal

from hypothesis import strategies as st

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_NAMES = st.text(st.sampled_from("ab1_é/~"), max_size=3)
_UNITS = {"millis": 1000, "micros": 1}


def typed_records():
    """A record's schema, and a strategy of (JSON, row)."""
    return st.integers(1, 3).flatmap(lambda depth: _record(_Names(), depth))


class _Names:
    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return f"T{self.count}"


def _leaf(schema, values, text=json.dumps, row=lambda value: value):
    """A type, and of each of `values` its JSON and what is read of it."""
    return st.just((schema, values.map(lambda value: (text(value), row(value)))))


def _logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


def _fixed(names, size, values, text, row=lambda value: value, **more):
    return st.builds(names).flatmap(
        lambda name: _leaf({"type": "fixed", "name": name, "size": size, **more}, values, text, row)
    )


def _enum(name):
    symbols = ["A", "b", "_1"]
    return _leaf({"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols))


def _based(data):
    return json.dumps(base64.b64encode(data).decode())


def _float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _leaves(names):
    whole, long = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    plain = [
        _leaf("boolean", st.booleans()),
        _leaf("int", whole),
        _leaf("int", whole, "{}.0".format, int),
        _leaf("long", long),
        _leaf("long", long, lambda value: f"{Decimal(value):e}", int),
        _leaf("float", st.floats(width=32, allow_nan=False, allow_infinity=False), row=_float32),
        _leaf("double", numbers),
        _leaf("string", _TEXTS),
        _leaf("string", _TEXTS, lambda value: json.dumps(value, ensure_ascii=False)),
        _leaf("bytes", st.binary(max_size=9), _based),
        _fixed(names, 0, st.just(b""), _based),
        _fixed(names, 3, st.binary(min_size=3, max_size=3), _based),
        st.builds(names).flatmap(_enum),
    ]
    return st.one_of(*plain, *_logical_leaves(names))


def _logical_leaves(names):
    uuids, nanos = st.uuids(), st.integers(-(2**63), 2**63 - 1)
    yield st.tuples(st.integers(1, 38), st.integers(0, 38), st.booleans()).flatmap(lambda each: _decimal(names, *each))
    yield _leaf(_logical("string", "uuid"), uuids, lambda value: json.dumps(str(value)))
    yield _fixed(names, 16, uuids, lambda value: json.dumps(value.urn), lambda value: value.bytes, logicalType="uuid")
    yield _fixed(names, 12, st.binary(min_size=12, max_size=12), _based, logicalType="duration")
    yield _leaf(_logical("int", "date"), st.dates(), lambda value: json.dumps(value.isoformat()))
    for kind in ("timestamp-nanos", "local-timestamp-nanos"):
        yield _leaf(_logical("long", kind), nanos)
    for unit, micros in _UNITS.items():
        yield _moments(_logical("int" if unit == "millis" else "long", f"time-{unit}"), st.times(), micros)
        yield _moments(_logical("long", f"timestamp-{unit}"), st.datetimes(timezones=st.just(UTC)), micros)
        yield _moments(_logical("long", f"local-timestamp-{unit}"), st.datetimes(), micros)


def _moments(schema, values, micros):
    whole = values.map(lambda value: value.replace(microsecond=value.microsecond // micros * micros, fold=0))
    return _leaf(schema, whole, lambda value: json.dumps(value.isoformat()))


def _decimal(names, precision, scale, fixed):
    more = {"logicalType": "decimal", "precision": precision, "scale": min(scale, precision)}
    values = st.integers(1 - 10**precision, 10**precision - 1).map(
        lambda number: Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -more["scale"]))
    )
    texts = st.sampled_from([str, "{:f}".format, '"{}"'.format])
    if fixed:
        return texts.flatmap(lambda text: _fixed(names, 17, values, text, **more))
    return texts.flatmap(lambda text: _leaf({"type": "bytes", **more}, values, text))


def _types(names, depth):
    leaves = _leaves(names)
    if depth == 0:
        return leaves
    inner = st.deferred(lambda: _types(names, depth - 1))
    return st.one_of(leaves, inner.flatmap(_array), inner.flatmap(_map), _record(names, depth), _union(names, depth))


def _array(inner):
    schema, values = inner
    lists = st.lists(values, max_size=3)
    found = lists.map(lambda each: (f"[{','.join(text for text, _ in each)}]", [row for _, row in each]))
    return st.just(({"type": "array", "items": schema}, found))


def _map(inner):
    schema, values = inner
    return st.just(({"type": "map", "values": schema}, st.dictionaries(_NAMES, values, max_size=3).map(_object)))


def _object(found):
    members = ",".join(f"{json.dumps(name)}:{text}" for name, (text, _) in found.items())
    return "{" + members + "}", {name: row for name, (_, row) in found.items()}


def _record(names, depth):
    fields = st.lists(st.deferred(lambda: _types(names, depth - 1)), max_size=4)
    return fields.map(lambda types: _of_fields(names(), {f"f{number}": each for number, each in enumerate(types)}))


def _of_fields(name, types):
    fields = [{"name": field, "type": schema} for field, (schema, _) in types.items()]
    values = st.fixed_dictionaries({field: values for field, (_, values) in types.items()})
    return {"type": "record", "name": name, "fields": fields}, values.map(_object)


def _union(names, depth):
    branches = st.lists(
        st.deferred(lambda: _types(names, depth - 1)).filter(_is_branch),
        min_size=1,
        max_size=3,
        unique_by=lambda each: _label(each[0]),
    )
    return st.tuples(branches, st.sampled_from([None, 0, -1])).map(lambda each: _of_branches(*each))


def _is_branch(each):
    return not isinstance(each[0], list)


def _label(schema):
    return schema if isinstance(schema, str) else schema.get("name", schema["type"])


def _of_branches(branches, null_at):
    schemas = [schema for schema, _ in branches]
    values = [_labelled(_label(schema), each) for schema, each in branches]
    if null_at is not None:
        schemas.insert(len(schemas) if null_at else 0, "null")
        values.append(st.just(("null", None)))
    return schemas, st.one_of(*values)


def _labelled(label, values):
    return values.map(lambda each: (f"{{{json.dumps(label)}:{each[0]}}}", each[1]))
