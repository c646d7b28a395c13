"""Small batches of records, committed to Delta tables without Spark's writer.

A commit through Spark takes about two seconds of the processor, whatever it holds: plans, tasks, statistics. So a batch
of few records is collected as it is, decoded here and committed with delta-rs, in a hundredth of that. Whatever is not
plain (a type that Avro and Delta call differently, a record that does not decode, a table whose columns change) raises
`NotPlain`, and Spark writes that table. Both ways give the same tables.
"""

import struct
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.connect.sinks.delta_log import has_commit
from mainstem.connect.sinks.delta_topics import NO_SCHEMA, Slice, Topics, ids_of
from mainstem.core import UserError
from mainstem.core.logging import get_logger
from mainstem.registry import avro
from mainstem.registry.schema import AvroType, is_change, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

log = get_logger()

COLLECTED_RECORDS, COLLECTED_BYTES = 50_000, 16 << 20
"""What of a batch is committed without Spark's writer: its smallest topics, up to so much."""
MERGED_BYTES = 32 << 20
"""Files of a table that is merged here: delta-rs holds all of it in memory meanwhile, and Spark does not."""
PLACE = ("_key", "_partition", "_offset", "_timestamp")


class NotPlain(Exception):
    """Spark has to write this; the message says why."""


class SmallWriter:
    """Writes the topics of a sink's batches that are small and plain;
    `write` from several threads, of different topics.

    Args:
        directory: one directory per topic appears in it.
        topics: their schemas and kinds; the sink learns those of a batch before it is collected.
    """

    def __init__(self, directory: Path, topics: Topics) -> None:
        self._directory = directory
        self._topics = topics
        self._columns: dict[int, Columns | None] = {}  # by schema id; None of those that need Spark

    def collect(self, rows: "DataFrame", slices: Mapping[str, list[Slice]]) -> "dict[str, pa.Table]":
        """The typed rows of the topics that are written here: the smallest of those that are plain."""
        import pyarrow.compute as pc
        from pyspark.sql import functions as F

        chosen = self._choose(slices)
        if not chosen:
            return {}
        wanted = rows.filter(F.col("topic").isin(*chosen))
        collected = wanted.select("topic", "partition", "offset", "timestamp", "key", "value").toArrow()
        small: dict[str, pa.Table] = {}
        for topic, columns in chosen.items():
            of_topic = collected.filter(pc.equal(collected["topic"], topic))
            try:
                merged = self._topics.is_changelog(topic, slices[topic])
                small[topic] = typed_small(of_topic, columns, merged=merged)
            except NotPlain as reason:
                log.debug("left_to_spark", topic=topic, reason=str(reason))
        return small

    def write(self, rows: "pa.Table", topic: str, slices: list[Slice], metadata: str) -> bool:
        """Bring one topic's table up to the batch; False where Spark has to."""
        try:
            merged = self._topics.is_changelog(topic, slices)
            commit_small(self._directory / topic, rows, metadata, merged=merged)
        except NotPlain as reason:
            log.debug("left_to_spark", topic=topic, reason=str(reason))
            return False
        return True

    def _choose(self, slices: Mapping[str, list[Slice]]) -> "dict[str, dict[int, Columns]]":
        """The columns of each schema, by topic."""
        chosen: dict[str, dict[int, Columns]] = {}
        records = size = 0
        for topic, mine in sorted(slices.items(), key=lambda each: sum(part.size for part in each[1])):
            records, size = records + sum(each.records for each in mine), size + sum(each.size for each in mine)
            if records > COLLECTED_RECORDS or size > COLLECTED_BYTES:
                break
            columns = {number: self._plain(number) for number in ids_of(mine)}
            known = {number: each for number, each in columns.items() if each is not None}
            if known and len(known) == len(columns) and not any(each.schema_id == NO_SCHEMA for each in mine):
                chosen[topic] = known
        return chosen

    def _plain(self, schema_id: int) -> "Columns | None":
        """The columns of a schema whose rows need no Spark."""
        schemas = self._topics.schemas
        if schema_id not in self._columns and schema_id in schemas:
            try:
                self._columns[schema_id] = Columns(schemas[schema_id])
            except (NotPlain, UserError) as reason:  # the second: another registry took it
                log.debug("left_to_spark", schema_id=schema_id, reason=str(reason))
                self._columns[schema_id] = None
        return self._columns.get(schema_id)


class Columns:
    """The columns of one schema, as Spark's `from_avro` and Delta would have them.

    Raises:
        NotPlain: it has a type that is not plain.
    """

    def __init__(self, schema: str) -> None:
        import pyarrow as pa

        self.schema = schema
        row = parse(schema)
        self.is_change = is_change(schema)
        if self.is_change:
            of_change = {field.name: field.type for field in row.fields}
            if not of_change.keys() >= {"op", "after"}:
                raise NotPlain(f"{row} is no change record")
            row = _some(of_change["after"])
        if row.kind != "record":
            raise NotPlain(f"{row} is no record")
        self.fields = [pa.field(field.name, _arrow(field.type, set())) for field in row.fields]


def place_fields() -> "list[pa.Field]":
    """The columns that every table has: where a row comes from."""
    import pyarrow as pa

    kinds = (pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"))
    return [pa.field(name, kind) for name, kind in zip(PLACE, kinds, strict=True)]


def typed_small(records: "pa.Table", columns: Mapping[int, Columns], *, merged: bool) -> "pa.Table":
    """The rows of one topic's records (`partition`, `offset`, `timestamp`, `key`, `value`), in their order.

    With `merged`, the last of each key, and a column `_deleted`. Without, a record with a null value is a row of nulls.

    Raises:
        NotPlain: a record does not decode, has no key, or is a truncation; two schemas give a column two types.
    """
    import pyarrow as pa

    fields: dict[str, pa.Field] = {}
    for each in columns.values():
        for field in each.fields:
            if fields.setdefault(field.name, field) != field:
                raise NotPlain(f"column {field.name} has two types")
    _check_names(fields.values(), {*PLACE, "_op", "_deleted"})
    rows: dict[Any, dict[str, Any]] = {}
    for number, record in enumerate(records.to_pylist()):
        row, deleted = _decoded(record["value"], columns)
        key = _text(record["key"])
        if merged and key is None:
            raise NotPlain("a row without a key")
        place = (key, record["partition"], record["offset"], record["timestamp"])
        row = {**row, **dict(zip(PLACE, place, strict=True)), "_deleted": deleted}
        before = rows.get(key) if merged else None
        if before is None or before["_offset"] <= row["_offset"]:
            rows[key if merged else number] = row
    kinds = [*fields.values(), *place_fields(), *([pa.field("_deleted", pa.bool_())] if merged else [])]
    try:
        return pa.Table.from_pylist(list(rows.values()), schema=pa.schema(kinds))
    except (pa.ArrowException, OverflowError) as error:
        raise NotPlain(str(error)) from error


def commit_small(path: Path, rows: "pa.Table", metadata: str, *, merged: bool) -> None:
    """One commit to the table at `path`, which is made where it is missing, with our user metadata.

    Raises:
        NotPlain: there is nothing to commit, the table's columns are others, or delta-rs does not write such a table.
    """
    try:
        _commit(path, rows, metadata, merged=merged)
    except NotPlain:
        raise
    except Exception as error:  # delta-rs raises plain ones too
        if has_commit(path, metadata):
            return  # what failed came after it
        raise NotPlain(f"{path}: {error}") from error


def _commit(path: Path, rows: "pa.Table", metadata: str, *, merged: bool) -> None:
    from deltalake import CommitProperties, DeltaTable, write_deltalake
    from deltalake.exceptions import TableNotFoundError

    said = CommitProperties(custom_metadata={"userMetadata": metadata})
    try:
        table = DeltaTable(str(path))
    except TableNotFoundError:
        table = None
    if merged and table is None:
        rows = rows.filter(_not_deleted(rows)).drop_columns(["_deleted"])
    if not rows.num_rows:
        raise NotPlain("a commit without rows")
    names = [name for name in rows.column_names if name != "_deleted"]
    if table is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_deltalake(str(path), rows, commit_properties=said)
        return
    _check_columns(table, rows, names)
    if not merged:
        write_deltalake(table, rows, mode="append", commit_properties=said)
        return
    if sum(table.get_add_actions(flatten=True)["size_bytes"].to_pylist()) > MERGED_BYTES:
        raise NotPlain("a large table")
    before, values = table.version(), {f"`{name}`": f"s.`{name}`" for name in names}
    merge = table.merge(rows, "t._key = s._key", source_alias="s", target_alias="t", commit_properties=said)
    merge.when_matched_delete("s._deleted").when_matched_update(values).when_not_matched_insert(
        values, "NOT s._deleted"
    ).execute()
    if table.version() == before:
        raise NotPlain("a merge that changed nothing")


def _check_names(fields: "Iterable[pa.Field]", taken: "Collection[str]" = ()) -> None:
    """Neither Spark nor Delta tells `id` from `ID`.

    Raises:
        NotPlain: two names, here or within a column, differ in case only, or one is taken.
    """
    import pyarrow as pa

    seen = set(taken)
    for field in fields:
        if field.name.lower() in seen:
            raise NotPlain(f"column {field.name}: another has that name, but for its case")
        seen.add(field.name.lower())
        kind = field.type
        while pa.types.is_list(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            _check_names(kind.fields)


def _check_columns(table: Any, rows: "pa.Table", names: Iterable[str]) -> None:
    import pyarrow as pa

    has = pa.schema(table.schema().to_arrow())
    if [(field.name, field.type) for field in sorted(has, key=lambda f: f.name)] != sorted(
        ((name, rows.schema.field(name).type) for name in names), key=lambda each: each[0]
    ):
        raise NotPlain("the table has other columns")


def _not_deleted(rows: "pa.Table") -> Any:
    import pyarrow.compute as pc

    return pc.invert(rows["_deleted"])


def _decoded(value: bytes | None, columns: Mapping[int, Columns]) -> tuple[dict[str, Any], bool]:
    """The columns in a value, and whether it deletes its key."""
    if value is None:
        return {}, True
    try:
        schema_id, _ = avro.split(value)
        shape = columns[schema_id]
        row = avro.decode(value, lambda _: shape.schema)
    except (avro.BadValue, KeyError, struct.error) as error:
        raise NotPlain(str(error)) from error
    if not shape.is_change:
        return row, False
    if row["op"] == "t":
        raise NotPlain("a truncation")
    return row["after"] or {}, row["op"] == "d"


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError as error:
        raise NotPlain(f"a key: {error}") from error


def _some(kind: AvroType) -> AvroType:
    """The type beside null in a union of two; any other type as it is."""
    if kind.kind != "union":
        return kind
    others = [branch for branch in kind.branches if branch.kind != "null"]
    if len(others) != 1:
        raise NotPlain(f"{kind}")
    return others[0]


_KINDS = {
    ("boolean", ""): "bool_",
    ("int", ""): "int32",
    ("int", "date"): "date32",
    ("long", ""): "int64",
    ("float", ""): "float32",
    ("double", ""): "float64",
    ("bytes", ""): "binary",
    ("string", ""): "string",
    ("enum", ""): "string",
    ("fixed", ""): "binary",
}
_TIMES = {
    ("long", "timestamp-millis"): "UTC",
    ("long", "timestamp-micros"): "UTC",
    ("long", "local-timestamp-millis"): None,
    ("long", "local-timestamp-micros"): None,
}


def _arrow(kind: AvroType, inside: set[int]) -> "pa.DataType":
    """The type as Delta has it, with nulls allowed everywhere."""
    import pyarrow as pa

    kind = _some(kind)
    if id(kind) in inside:
        raise NotPlain(f"{kind} holds itself")
    inside = inside | {id(kind)}
    if (kind.kind, kind.logical) in _TIMES:
        return pa.timestamp("us", _TIMES[kind.kind, kind.logical])
    if (kind.kind, kind.logical) == ("bytes", "decimal") and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if kind.kind == "record":
        return pa.struct([pa.field(field.name, _arrow(field.type, inside)) for field in kind.fields])
    if kind.kind == "array" and kind.items is not None:
        return pa.list_(_arrow(kind.items, inside))
    if (kind.kind, kind.logical) in _KINDS:
        return getattr(pa, _KINDS[kind.kind, kind.logical])()
    raise NotPlain(f"{kind}")
