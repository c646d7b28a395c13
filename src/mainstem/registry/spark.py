"""Typed rows in Spark: Avro values by schema id to columns and back, in the JVM.

A value is `00`, the schema id as 4 bytes (big-endian), and Avro. Spark's `from_avro` takes one writer schema, so a
topic with several ids needs one call per id; every row comes out in the shape of one reader schema.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from mainstem.core import UserError
from mainstem.registry.compatibility import can_read
from mainstem.registry.errors import InvalidSchema
from mainstem.registry.schema import PRIMITIVES, is_change, parse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

ROW, STATUS = "_row", "_status"
DECODED, TOMBSTONE, BAD = "row", "tombstone", "bad"
UNKNOWN_ID = "mainstem: unknown schema id"
"""What the error says when a value names an id that the decoder was not given; the id and the topic follow."""
LATER_ID = "mainstem: not in the reader's shape: schema id"
"""What it says of a value of a later schema that does not fit; the id and the topic follow."""

SENTINEL = "mainstem_decoded"  # a field with a default: null where Avro's bytes did not fit
_HEADER = 5

_ENDS = {
    "date": ("DATE", "0001-01-01", "9999-12-31"),
    "timestamp": ("TIMESTAMP", "0001-01-01 00:00:00Z", "9999-12-31 23:59:59.999999Z"),
    "timestamp_ntz": ("TIMESTAMP_NTZ", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
}

_TIME_OF_DAY = "time-micros"  # those in milliseconds are numbers for Spark

_ID_OF_TOPIC = r" (\d+) of topic ([\w.-]+)"


class UnfitType(UserError):
    """A column whose type has no Avro form, or cannot be a key."""


class SchemaSource(Protocol):
    """What this module asks of a registry's client."""

    def schema(self, schema_id: int) -> str: ...
    def latest(self, subject: str) -> Any: ...
    def version(self, subject: str, number: int | str) -> Any: ...


class TopicSchema(msgspec.Struct, frozen=True):
    """How the values of a topic are read: the shape rows come in, and the schemas they may have been written with."""

    topic: str
    reader: str
    reader_id: int
    writers: dict[int, str]
    refused: frozenset[int] = frozenset()  # ids that the registry does not know: their rows are bad
    later: dict[int, str] = {}
    """Ids of versions since the reader's that it cannot read, or not all of their values, and why."""

    @property
    def is_change(self) -> bool:
        """Whether the values are change records of a database table, not the rows themselves."""
        return is_change(self.reader)


def subject_of(topic: str) -> str:
    """The subject of a topic's values."""
    return f"{topic}-value"


def topic_schema(source: SchemaSource, topic: str, *, reader_id: int | None = None) -> TopicSchema:
    """All registered versions of a topic's value schema; rows are read in the shape of `reader_id`, else of the latest.

    Raises:
        NotFound: the topic has no schema yet.
    """
    subject = subject_of(topic)
    latest = source.latest(subject)
    if reader_id is None:
        reader_id = latest.id
    versions = {}
    for number in range(1, latest.version):
        try:
            version = source.version(subject, number)
        except UserError:  # a deleted version; its id is still known, and `with_id` finds it when a record names it
            continue
        versions[version.id] = version.schema
    versions[latest.id] = latest.schema
    reader = versions.get(reader_id) or source.schema(reader_id)
    order = list(versions)
    if reader_id in versions:
        since = order[order.index(reader_id) + 1 :]
    else:  # its version was deleted; ids rise, but for a text that another subject had before
        since = [each for each in order if each > reader_id]
    later = {each: reason for each in since if (reason := _misfit(reader, versions[each]))}
    return TopicSchema(topic, reader, reader_id, versions | {reader_id: reader}, later=later)


def _misfit(reader: str, writer: str) -> str:
    """Why not all that is written with `writer` can be read with `reader`; empty where it can, or nobody knows."""
    try:
        return "; ".join(map(str, can_read(parse(reader, lenient=True), parse(writer, lenient=True))[:3]))
    except InvalidSchema:  # another registry took it, with references or of another format
        return ""


def unknown_id(error: BaseException | str) -> tuple[int, str] | None:
    """The (schema id, topic) that a failed query says it does not know, if that is why it failed."""
    return _id_of_topic(UNKNOWN_ID, error)


def later_id(error: BaseException | str) -> tuple[int, str] | None:
    """The (schema id, topic) of a value that the reader's shape has no room for, if that is why a query failed."""
    return _id_of_topic(LATER_ID, error)


def _id_of_topic(what: str, error: BaseException | str) -> tuple[int, str] | None:
    found = re.search(re.escape(what) + _ID_OF_TOPIC, str(error))
    return (int(found[1]), found[2]) if found else None


def with_id(source: SchemaSource, schema: TopicSchema, schema_id: int) -> TopicSchema:
    """`schema` that also knows `schema_id`; if the registry does not know it, rows that name it are bad from now on."""
    try:
        writers = schema.writers | {schema_id: source.schema(schema_id)}
    except UserError:
        return msgspec.structs.replace(schema, refused=schema.refused | {schema_id})
    try:
        now = topic_schema(source, schema.topic, reader_id=schema.reader_id)
    except UserError:  # the topic's schemas are deleted
        return msgspec.structs.replace(schema, writers=writers)
    return msgspec.structs.replace(schema, writers=writers | now.writers, later=now.later)


def decode_values(df: "DataFrame", schema: TopicSchema) -> "DataFrame":
    """`df` with two more columns: `_row`, typed by the reader schema, and `_status`.

    `_status` is `row`, `tombstone` (null value), or `bad` (not the wire format, bytes that do not fit, or a date or
    timestamp outside the years 1 to 9999: `_row` is null then). Two things fail the query, so that nothing is lost: an
    id that `schema` does not list (`UNKNOWN_ID`: add it by `with_id` and run the batch again), and a value of a later
    schema that does not fit into the reader's (`LATER_ID`: what reads it must have another shape).
    """
    from pyspark.sql import functions as F

    value = F.col("value")
    tagged = df.withColumn("_decoded", _decoded(value, schema))
    status = F.when(value.isNull(), F.lit(TOMBSTONE)).when(F.col(f"_decoded.{SENTINEL}").isNull(), F.lit(BAD))
    kind = tagged.schema["_decoded"].dataType
    if _has_times(kind):
        status = status.when(~_within(F.col("_decoded"), kind), F.lit(BAD))
    status = status.otherwise(F.lit(DECODED))
    row = F.when(status == DECODED, F.col("_decoded").dropFields(SENTINEL))
    return tagged.withColumn(ROW, row).withColumn(STATUS, status).drop("_decoded")


def _decoded(value: "Column", schema: TopicSchema) -> "Column":
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    framed, schema_id = _framed(value), _named_id(value)
    payload = F.expr(f"substring(value, {_HEADER + 1})")
    options = {"avroSchema": with_sentinel(for_spark(schema.reader), schema.topic), "mode": "PERMISSIVE"}
    cases = F.when(~framed, F.lit(None))
    for number in sorted(schema.refused):
        cases = cases.when(schema_id == number, F.lit(None))
    for number, writer in sorted(schema.writers.items()):
        decoded = from_avro(payload, for_spark(writer), options)
        if number in schema.later:
            is_whole = F.lit(True)
            if isinstance(tree := _tree(writer), dict) and tree.get("type") == "record":
                # Without its fields: Spark may have no type for them, and Avro passes over what nobody asks for.
                no_fields = with_sentinel(json.dumps({**tree, "fields": []}), schema.topic)
                own = {"avroSchema": no_fields, "mode": "PERMISSIVE"}
                is_whole = from_avro(payload, for_spark(writer), own)[SENTINEL].isNotNull()
            message = F.raise_error(F.lit(f"{LATER_ID} {number} of topic {schema.topic}"))
            decoded = F.when(decoded[SENTINEL].isNull() & is_whole, message).otherwise(decoded)
        cases = cases.when(schema_id == number, decoded)
    message = F.concat(F.lit(f"{UNKNOWN_ID} "), schema_id.cast("string"), F.lit(f" of topic {schema.topic}"))
    return F.when(value.isNull(), F.lit(None)).otherwise(cases.otherwise(F.raise_error(message)))


def _has_times(kind: "DataType") -> bool:
    from pyspark.sql import types as T

    match kind:
        case T.StructType():
            return any(_has_times(field.dataType) for field in kind.fields)
        case T.ArrayType():
            return _has_times(kind.elementType)
        case T.MapType():
            return _has_times(kind.valueType)
    return isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType)


def _within(column: "Column", kind: "DataType") -> "Column":
    """Whether all dates and timestamps in `column` are of the years 1 to 9999; its type `kind` has some.

    Spark decodes others, and then a window's sum overflows and stops the job, and no other reader opens the table.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match kind:
        case T.StructType():
            fields = [field for field in kind.fields if _has_times(field.dataType)]
            parts = (_within(column.getField(field.name), field.dataType) for field in fields)
            within = reduce(lambda left, right: left & right, parts)
        case T.ArrayType():
            within = F.forall(column, lambda item: _within(item, kind.elementType))
        case T.MapType():
            within = F.forall(F.map_values(column), lambda item: _within(item, kind.valueType))
        case _:
            name, first, last = _ENDS[kind.typeName()]
            within = column.between(F.expr(f"{name}'{first}'"), F.expr(f"{name}'{last}'"))
    return F.coalesce(within, F.lit(True))  # what is null is outside of nothing


def with_sentinel(reader: str, topic: str) -> str:
    """The schema with one more field, `SENTINEL`: a row decoded by it has null there if Avro's bytes did not fit.

    Spark's permissive mode gives a row of nulls for such bytes, not null.

    Raises:
        UnfitType: the schema is not that of a record.
    """
    tree = _tree(reader)
    if not isinstance(tree, dict) or tree.get("type") != "record":
        raise UnfitType(f"topic {topic}: expected an Avro record as its schema, found {reader[:60]}")
    fields = [*tree["fields"], {"name": SENTINEL, "type": "boolean", "default": True}]
    return json.dumps({**tree, "fields": fields})


def for_spark(schema: str) -> str:
    """The schema as Spark can read with it: a time of day in microseconds is the number that Avro stores.

    Spark has a type for it, whose use it refuses, and Delta has none.
    """
    if f'"{_TIME_OF_DAY}"' not in schema:
        return schema
    tree = _tree(schema)
    return schema if tree is None else json.dumps(_without_times_of_day(tree))


def _without_times_of_day(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_times_of_day(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {name: each for name, each in node.items() if (name, each) != ("logicalType", _TIME_OF_DAY)}
    return {name: _without_times_of_day(each) for name, each in kept.items()}


def _tree(schema: str) -> Any:
    try:
        return json.loads(schema)
    except ValueError:  # another registry took it: a bare type name, or one of Protobuf
        return None


def row_type(spark: Any, schema: TopicSchema) -> "StructType":
    """The type that rows of a topic have in Spark; needs no data, and no plan, whose first one takes seconds."""
    with_sentinel(schema.reader, schema.topic)  # a record, or refused
    return _spark_type(spark, schema.reader)


def _spark_type(spark: Any, schema: str) -> "StructType":
    from pyspark.sql.types import StructType

    jvm = spark._jvm
    parsed = jvm.org.apache.avro.Schema.Parser().parse(for_spark(schema))
    kind = jvm.org.apache.spark.sql.avro.SchemaConverters.toSqlType(parsed).dataType()
    return StructType.fromJson(json.loads(kind.asNullable().json()))


def if_within(spark: Any, rows: "Column", schema: str) -> "Column":
    """`rows`, decoded by `schema`; null where a date or timestamp is outside the years 1 to 9999."""
    from pyspark.sql import functions as F

    kind = _spark_type(spark, schema)
    if not _has_times(kind):
        return rows
    # An array of one row, so that Spark decodes it once and not for each of its fields.
    return F.transform(F.array(rows), lambda row: F.when(_within(row, kind), row))[0]


def avro_schema(struct: "StructType", topic: str, *, required: Sequence[str] = ()) -> str:
    """The Avro schema of rows of type `struct`: every field may be null except the `required` ones (the key).

    Raises:
        UnfitType: a column has a type that Avro cannot hold.
    """
    namespace, _, name = topic.rpartition(".")
    # Java takes no primitive's name without a namespace; in one it does, and schemas of such names are registered.
    names = _Names(_avro_name(name), set() if namespace else set(PRIMITIVES))
    fields = []
    for field in struct.fields:
        if _avro_name(field.name) != field.name:
            raise UnfitType(f"topic {topic}: column {field.name!r}: expected a name of letters, digits and '_'")
        kind = names.avro(field.dataType, f"topic {topic}: column {field.name}", field.name)
        fields.append({"name": field.name, "type": kind} if field.name in required else _optional(field.name, kind))
    tree: dict[str, Any] = {"type": "record", "name": names.root, "fields": fields}
    if namespace:
        tree["namespace"] = ".".join(_avro_name(part) for part in namespace.split("."))
    return json.dumps(tree)


def encode_values(
    df: "DataFrame", schema_id: int, schema: str, *, key: Sequence[str] = (), keep: Mapping[str, "Column"] | None = None
) -> "DataFrame":
    """Rows as records: `key` and `value` as bytes, and the columns of `keep`.

    The value holds the columns that `schema` names; the key is null if no columns are given for it.
    """
    others = [column.alias(name) for name, column in (keep or {}).items()]
    return df.select(key_bytes(df.schema, key).alias("key"), row_bytes(schema_id, schema).alias("value"), *others)


def row_bytes(schema_id: int, schema: str) -> "Column":
    """The value of a record: the columns that `schema` names."""
    from pyspark.sql import functions as F

    return value_bytes([F.col(_quoted(field["name"])) for field in json.loads(schema)["fields"]], schema_id, schema)


def value_bytes(columns: "Sequence[Column]", schema_id: int, schema: str) -> "Column":
    """The value of a record: these columns, called as the fields of `schema`."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import to_avro

    header = F.unhex(F.lit("00" + schema_id.to_bytes(4, "big").hex()))
    return F.concat(header, to_avro(F.struct(*columns), schema))


def framed_id(value: "Column") -> "Column":
    """The schema id that a record's value names, an int; null if it is not in the wire format."""
    from pyspark.sql import functions as F

    return F.when(_framed(value), _named_id(value).cast("int"))


def _framed(value: "Column") -> "Column":
    from pyspark.sql import functions as F

    return (F.length(value) > _HEADER) & (F.substring(value, 1, 1) == F.unhex(F.lit("00")))


def _named_id(value: "Column") -> "Column":
    from pyspark.sql import functions as F

    return F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("long")


def key_bytes(struct: "StructType", key: Sequence[str]) -> "Column":
    """The key as UTF-8: one column as text, several as a JSON array,
    byte for byte as `registry.avro.key_text` gives it.

    Raises:
        UnfitType: a column is missing, or has no exact text (floats, structs).
    """
    from pyspark.sql import functions as F

    if not key:
        return F.lit(None).cast("binary")
    if len(key) == 1:
        return F.encode(_json_text(struct, key[0], alone=True), "UTF-8")
    parts = [_json_text(struct, column, alone=False) for column in key]
    # `concat`, not `concat_ws`: a null part must give a null key, which the sink refuses, not a shorter one.
    inner = reduce(lambda text, part: F.concat(text, F.lit(","), part), parts)
    return F.encode(F.concat(F.lit("["), inner, F.lit("]")), "UTF-8")


def _json_text(struct: "StructType", name: str, *, alone: bool) -> "Column":
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if name not in struct.fieldNames():
        raise UnfitType(f"the key column {name!r} is not among the columns {struct.fieldNames()}")
    column, kind = F.col(_quoted(name)), struct[name].dataType
    match kind:
        case T.StringType():
            return column if alone else _json_string(column)
        case T.ByteType() | T.ShortType() | T.IntegerType() | T.LongType() | T.BooleanType():
            return column.cast("string")
        case T.DateType():
            text = column.cast("string")
        case T.TimestampType():
            text = F.concat(column.cast("string"), F.lit("+00"))  # the session's time zone is UTC
        case _:
            raise UnfitType(
                f"the key column {name!r} is {kind.simpleString()}: a key is text, a whole number, a truth value or a time",
                hint="cast it, so that every writer gives the same bytes",
            )
    return text if alone else F.concat(F.lit('"'), text, F.lit('"'))


def _json_string(column: "Column") -> "Column":
    """A JSON string with everything but plain ASCII escaped, as Python's json.dumps writes it."""
    from pyspark.sql import functions as F

    # `\z`, not `$`: Java's `$` also stands before a line end that is the last of a text.
    plain = column.rlike(r"^[ !#-\[\]-~]*\z")
    escaped = F.array_join(F.transform(F.split(column, ""), _escaped), "")
    return F.concat(F.lit('"'), F.when(plain, column).otherwise(escaped), F.lit('"'))


def _escaped(char: "Column") -> "Column":
    from pyspark.sql import functions as F

    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
    units = F.lower(F.hex(F.encode(char, "UTF-16BE")))  # one unit, or two for what lies beyond the first plane
    long = F.concat(F.lit("\\u"), F.substring(units, 1, 4))
    pair = F.concat(long, F.lit("\\u"), F.substring(units, 5, 4))
    result = F.when(char.rlike(r"^[ -~]\z"), char).when(F.length(units) == 4, long).otherwise(pair)
    for plain, escape in short.items():
        result = F.when(char == plain, F.lit(escape)).otherwise(result)
    return F.when(char == "", F.lit("")).otherwise(result)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _avro_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return name if re.match(r"[A-Za-z_]", name) else f"_{name}"


def _optional(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


class _Names:
    """Avro wants a name for every record and fixed, each once in a schema."""

    def __init__(self, root: str, taken: set[str]) -> None:
        self._taken = taken
        self.root = self.fresh(root)

    def fresh(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}{number}", number + 1
        self._taken.add(name)
        return name

    def avro(self, kind: "DataType", where: str, name: str) -> Any:
        """The Avro type of a Spark type."""
        from pyspark.sql import types as T

        match kind:
            case T.DecimalType():
                return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
            case T.ArrayType():
                return {"type": "array", "items": ["null", self.avro(kind.elementType, where, name)]}
            case T.MapType() if isinstance(kind.keyType, T.StringType):
                return {"type": "map", "values": ["null", self.avro(kind.valueType, where, name)]}
            case T.StructType():
                record = self.fresh(_avro_name(name))
                fields = [
                    _optional(each.name, self.avro(each.dataType, f"{where}.{each.name}", f"{name}_{each.name}"))
                    for each in kind.fields
                ]
                return {"type": "record", "name": record, "fields": fields}
        simple = _SIMPLE.get(kind.typeName())
        if simple is None:
            raise UnfitType(f"{where}: {kind.simpleString()} has no Avro form", hint="cast the column")
        return simple


_SIMPLE: dict[str, Any] = {
    "string": "string",
    "binary": "bytes",
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}
