"""What differs between two topics up to given offsets: tables by their keys, streams as bags of records.

Both are read once, into files by a hash of the key; then one file of each after the other is compared, so that memory
holds no more than a small part of them. Values of equal shape are compared as bytes, and decoded only where those
differ; numbers are compared exactly.

    table    the last value of each key; `changed`: a column of it that both have differs
    stream   equal records take each other away, wherever they stand. What is left of a key is paired in the order of
             its records: `changed`; the rest is `added` or `removed`. No job writes null values; they are passed over

Where the two have other columns, those that both have are compared; only records without a key are then as they are.
"""

import math
import shutil
import struct
import tempfile
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.reader import RangeReader
from mainstem.core import CorruptData
from mainstem.registry.reader import SHORTEST_AVRO, SchemaTexts, decode_value, in_json

_LENGTHS = struct.Struct("<ii")  # of key and value; -1: none
_ROWS_OF_A_FILE = 20_000
_MOST_FILES = 1_024
_BUFFER_BYTES = 32 << 20

Kind = Literal["added", "removed", "changed"]


class Side(msgspec.Struct, frozen=True):
    """A topic up to the offsets `ends`, not included."""

    topic: str
    ends: dict[int, int]


class ColumnDifference(msgspec.Struct, frozen=True):
    """In how many of the rows that are on both sides a column differs: in all, where only one of them has it, which is
    said by `only_in`: left or right.
    """

    column: str
    rows: int
    only_in: str = ""


class Example(msgspec.Struct, frozen=True):
    """A row that differs, on both sides; null where there is none."""

    kind: Kind
    key: str | None
    left: Any
    right: Any


class Comparison(msgspec.Struct, frozen=True):
    """From left to right: `added` rows are on the right only."""

    equal: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0
    columns: list[ColumnDifference] = []
    examples: list[Example] = []


class Difference(msgspec.Struct, frozen=True):
    """A row that is on one side only, or not the same on both: its records as they are; None: there is none."""

    key: bytes | None
    left: bytes | None
    right: bytes | None


def compare(connection: Connection, left: Side, right: Side, *, keyed: bool, limit: int = 10) -> Comparison:
    """Compare two topics.

    Args:
        connection: the log.
        left: one of them.
        right: the other one.
        keyed: they are tables: the last record of a key counts, and a null value deletes it.
        limit: how many rows that differ are given, those with the first keys.

    Raises:
        BrokerUnavailable: the log does not answer.
        CorruptData: a value does not fit its schema.
    """
    with _Comparer(connection, left, right, keyed=keyed) as comparer:
        total = _Total(comparer, limit)
        for difference in comparer.differences():
            total.add(difference)
        return total.result(comparer.equal)


def table_differences(connection: Connection, left: Side, right: Side) -> Generator[Difference]:
    """What makes the table `left` the table `right`, in the same order each time: also rows that have other columns."""
    with _Comparer(connection, left, right, keyed=True, exactly=True) as comparer:
        yield from comparer.differences()


class _Comparer:
    def __init__(self, connection: Connection, left: Side, right: Side, *, keyed: bool, exactly: bool = False) -> None:
        self.equal = 0
        self._exactly = exactly  # rows with other columns are not equal
        self._connection, self._sides, self._keyed = connection, (left, right), keyed
        self._schemas = SchemaTexts(connection)
        self._shapes: dict[int, _Shape] = {}
        self._seen: dict[str, set[bytes]] = {"l": set(), "r": set()}  # ids of schemas
        self._common: frozenset[str] | None = None  # the columns that both have, where they have others too
        self._scratch = Path(tempfile.mkdtemp(prefix="mainstem-diff-"))
        span = max(sum(left.ends.values()), sum(right.ends.values()))
        self._files = min(_MOST_FILES, span // _ROWS_OF_A_FILE + 1)

    def __enter__(self) -> "_Comparer":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def columns(self, name: str) -> frozenset[str]:
        """The columns of all schemas that a side has values of."""
        shapes = [self._shape_of(schema_id) for schema_id in self._seen[name]]
        return frozenset(column for shape in shapes for column in shape.columns)

    def decode(self, value: bytes | None) -> Any:
        return None if value is None else decode_value(value, self._schemas)

    def differences(self) -> Iterator[Difference]:
        """All of them; `equal` counts the others."""
        for name, side in zip("lr", self._sides, strict=True):
            self._spread(name, side)
        left_columns, right_columns = self.columns("l"), self.columns("r")
        if left_columns != right_columns and self._seen["l"] and self._seen["r"]:
            self._common = left_columns & right_columns
        compare = self._tables if self._keyed else self._streams
        for number in range(self._files):
            left, right = ([*_records(self._scratch / f"{name}{number}")] for name in "lr")
            yield from compare(left, right)

    def _spread(self, name: str, side: Side) -> None:
        """Write the records of a side into files by their keys, each in the order of its partition."""
        seen = self._seen[name]
        buffers: list[list[bytes]] = [[] for _ in range(self._files)]
        size = 0
        reader = RangeReader(self._connection, side.topic, deleted="earliest", name="mainstem.diff")
        try:
            for message in reader.read({}, side.ends):
                key, value = message.key(), message.value()
                place = crc32(key if key is not None else b"") if self._keyed or key is not None else self._place(value)
                buffers[place % self._files] += _packed(key, value)
                if value is not None and value[:1] == b"\0":
                    seen.add(value[1:SHORTEST_AVRO])
                size += len(value or b"") + len(key or b"") + 64
                if size > _BUFFER_BYTES:
                    self._flush(name, buffers)
                    size = 0
            self._flush(name, buffers)
        finally:
            reader.close()

    def _place(self, value: bytes | None) -> int:
        """Of a record without a key: equal values of both sides meet, whatever their schemas are called."""
        return crc32((value or b"")[SHORTEST_AVRO:])

    def _flush(self, name: str, buffers: list[list[bytes]]) -> None:
        for number, parts in enumerate(buffers):
            if parts:
                with (self._scratch / f"{name}{number}").open("ab") as file:
                    file.writelines(parts)
                parts.clear()

    def _tables(self, left: list["_Record"], right: list["_Record"]) -> Iterator[Difference]:
        before, after = (dict(each) for each in (left, right))
        for key in sorted(before.keys() | after.keys(), key=lambda key: key or b""):
            one, other = before.get(key), after.get(key)
            if one is None and other is None:
                continue
            if one is not None and other is not None and self._same(one, other):
                self.equal += 1
            else:
                yield Difference(key, one, other)

    def _streams(self, left: list["_Record"], right: list["_Record"]) -> Iterator[Difference]:
        left, right = ([each for each in records if each[1] is not None] for records in (left, right))
        one, other = (Counter((key, self._body(value)) for key, value in each) for each in (left, right))
        self.equal += (one & other).total()
        rest = [self._left(each, left_over) for each, left_over in ((left, one - other), (right, other - one))]
        for key in rest[0].keys() | rest[1].keys():
            before, after = rest[0].get(key, []), rest[1].get(key, [])
            paired = min(len(before), len(after)) if key is not None else 0
            for mine, theirs in zip(before[:paired], after[:paired], strict=True):
                if mine is not None and theirs is not None and self._same(mine, theirs):
                    self.equal += 1
                else:
                    yield Difference(key, mine, theirs)
            yield from (Difference(key, each, None) for each in before[paired:])
            yield from (Difference(key, None, each) for each in after[paired:])

    def _left(
        self, records: list["_Record"], count: Counter[tuple[bytes | None, Any]]
    ) -> dict[bytes | None, list[bytes | None]]:
        """The values that nothing has taken away, by key, in their order."""
        found: dict[bytes | None, list[bytes | None]] = defaultdict(list)
        for key, value in records:
            place = key, self._body(value)
            if count[place] > 0:
                count[place] -= 1
                found[key].append(value)
        return found

    def _same(self, one: bytes, other: bytes) -> bool:
        """Whether two values are equal in all columns that both have."""
        if self._body(one) == self._body(other):
            return True
        if self._exactly:
            return False
        return not columns_that_differ(self.decode(one), self.decode(other))

    def _body(self, value: bytes | None) -> Any:
        """What is equal where two values of equal shape are; the name of a schema is that of its topic."""
        if value is None or value[:1] != b"\0" or len(value) < SHORTEST_AVRO:
            return value
        if self._common is not None and not self._keyed:
            row = self.decode(value)
            return repr({name: row[name] for name in sorted(row.keys() & self._common)})
        return self._shape_of(value[1:SHORTEST_AVRO]).text, value[SHORTEST_AVRO:]

    def _shape_of(self, schema_id: bytes) -> "_Shape":
        number = int.from_bytes(schema_id, "big")
        if number not in self._shapes:
            try:
                self._shapes[number] = _shape(self._schemas(number))
            except CorruptData:  # bytes that look like it
                self._shapes[number] = _Shape("", ())
        return self._shapes[number]


_Record = tuple[bytes | None, bytes | None]


class _Total:
    """Counts differences, and keeps the first examples."""

    def __init__(self, comparer: _Comparer, limit: int) -> None:
        self._comparer, self._limit = comparer, limit
        self._kinds: Counter[Kind] = Counter()
        self._columns: Counter[str] = Counter()
        self._examples: list[tuple[tuple[str, str], Example]] = []

    def add(self, each: Difference) -> None:
        kind: Kind = "added" if each.left is None else "removed" if each.right is None else "changed"
        self._kinds[kind] += 1
        key = None if each.key is None else each.key.decode(errors="backslashreplace")
        wanted = len(self._examples) < self._limit or (self._limit > 0 and ((key or ""), kind) < self._examples[-1][0])
        if kind != "changed" and not wanted:
            return
        left, right = self._comparer.decode(each.left), self._comparer.decode(each.right)
        if kind == "changed":
            self._columns.update(columns_that_differ(left, right))
        if wanted:
            self._examples.append((((key or ""), kind), Example(kind, key, in_json(left), in_json(right))))
            self._examples.sort(key=lambda found: found[0])
            del self._examples[self._limit :]

    def result(self, equal: int) -> Comparison:
        left, right = self._comparer.columns("l"), self._comparer.columns("r")
        both = equal + self._kinds["changed"]
        columns = [ColumnDifference(column, rows) for column, rows in self._columns.items()]
        for only, names in (("left", left - right), ("right", right - left)):
            columns += [ColumnDifference(column, both, only) for column in names if left and right]
        return Comparison(
            equal,
            self._kinds["added"],
            self._kinds["removed"],
            self._kinds["changed"],
            sorted(columns, key=lambda each: each.column),
            [example for _, example in self._examples],
        )


def columns_that_differ(left: Any, right: Any) -> list[str]:
    """Of the columns that two rows have, those that differ; what is no row is one column, called `value`."""
    if not isinstance(left, dict) or not isinstance(right, dict):
        return [] if same(left, right) else ["value"]
    return [column for column in left.keys() & right.keys() if not same(left[column], right[column])]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal: numbers of any types exactly, and NaN is equal to itself."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class _Shape(msgspec.Struct, frozen=True):
    """A schema without the names of its records: rows of two that are equal in `text` are written alike."""

    text: str
    columns: tuple[str, ...]


def _shape(schema: str) -> _Shape:
    parsed = msgspec.json.decode(schema)
    columns = tuple(each["name"] for each in parsed.get("fields", ())) if isinstance(parsed, dict) else ()
    return _Shape(msgspec.json.encode(_nameless(parsed), order="sorted").decode(), columns)


def _nameless(schema: Any) -> Any:
    match schema:
        case {"type": "record", "fields": fields}:
            kept = [{"name": each["name"], "type": _nameless(each["type"])} for each in fields]
            return {"type": "record", "fields": kept}
        case dict():
            return {
                name: _nameless(each) if name in ("type", "items", "values") else each for name, each in schema.items()
            }
        case list():
            return [_nameless(each) for each in schema]
    return schema


def _packed(key: bytes | None, value: bytes | None) -> tuple[bytes, bytes, bytes]:
    header = _LENGTHS.pack(-1 if key is None else len(key), -1 if value is None else len(value))
    return header, key or b"", value or b""


def _records(path: Path) -> Iterator[_Record]:
    if not path.exists():
        return
    data = path.read_bytes()
    position = 0
    while position < len(data):
        key_size, value_size = _LENGTHS.unpack_from(data, position)
        position += _LENGTHS.size
        key = None if key_size < 0 else data[position : position + key_size]
        position += max(0, key_size)
        value = None if value_size < 0 else data[position : position + value_size]
        position += max(0, value_size)
        yield key, value
