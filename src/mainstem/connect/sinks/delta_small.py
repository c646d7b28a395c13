"""Small batches of records, committed to Delta tables without Spark's writer.

A commit through Spark takes about two seconds of the processor, whatever it holds: plans, tasks, statistics; a merge
many times that. So a batch's rows are collected and committed with delta-rs, in a hundredth of that. Whatever is not
plain (a type that Avro and Delta call differently, a record that does not decode, a table whose columns change) raises
`NotPlain`, and Spark writes that table. All ways give the same tables.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.connect.sinks.delta_log import TableCommit, TableGone, has_commit
from mainstem.connect.sinks.delta_rows import PLACE, Columns, NotPlain, fitted, typed_small
from mainstem.connect.sinks.delta_spark import failures
from mainstem.connect.sinks.delta_topics import NO_SCHEMA, Slice, Topics, ids_of
from mainstem.core import UserError
from mainstem.core.causes import one_line
from mainstem.core.logging import get_logger

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame

log = get_logger()

COLLECTED_BYTES = 64 << 20
"""What of a batch is committed without Spark's writer: its smallest topics, up to so much."""
DECODED_RECORDS = 10_000
"""The smallest of those are decoded here, up to so many records: 45 us each, and no plan of Spark's."""
MERGED_BYTES = 32 << 20
"""Files of a table that is merged here: delta-rs holds all of it in memory meanwhile, and Spark does not."""
READERS = 4  # topics that Spark decodes at the same time

BySchema = Mapping[int, Columns]
"""The columns of each schema in use, by its id."""


class SmallWriter:
    """Writes the topics of a sink's batches that are small and plain;
    `write` from several threads, of different topics.

    Args:
        directory: one directory per topic appears in it.
        topics: their schemas and kinds; the sink learns those of a batch before it is collected.
        typed: the rows of a topic as Spark decodes them.
    """

    def __init__(
        self, directory: Path, topics: Topics, typed: "Callable[[DataFrame, str, list[Slice]], DataFrame]"
    ) -> None:
        self._directory = directory
        self._topics = topics
        self._typed = typed
        self._columns: dict[int, Columns | None] = {}  # by schema id; None of those that need Spark

    def choose(self, slices: Mapping[str, list[Slice]]) -> tuple[dict[str, BySchema], dict[str, BySchema]]:
        """The topics that are written here, the smallest of those that are plain, from the fewest records on.

        Returns:
            Those for `collect_few`, which are in their tables in a moment; those for `collect_many`.
        """
        chosen: dict[str, BySchema] = {}
        sizes = {topic: sum(part.size for part in mine) for topic, mine in slices.items()}
        size = 0
        for topic in sorted(slices, key=sizes.__getitem__):
            size += sizes[topic]
            if size > COLLECTED_BYTES:
                break
            columns = self._columns_of(topic, slices[topic])
            if columns is not None:
                chosen[topic] = columns
        counts = {topic: sum(part.records for part in slices[topic]) for topic in chosen}
        order = sorted(chosen, key=counts.__getitem__)
        few = sum(total <= DECODED_RECORDS for total in itertools.accumulate(counts[topic] for topic in order))
        return {topic: chosen[topic] for topic in order[:few]}, {topic: chosen[topic] for topic in order[few:]}

    def collect_few(
        self, rows: "DataFrame", chosen: Mapping[str, BySchema], slices: Mapping[str, list[Slice]]
    ) -> "dict[str, pa.Table]":
        """The typed rows of these topics, decoded here; without those that turn out not to be plain."""
        import pyarrow.compute as pc
        from pyspark.sql import functions as F

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

    def collect_many(
        self, rows: "DataFrame", chosen: Mapping[str, BySchema], slices: Mapping[str, list[Slice]]
    ) -> "dict[str, pa.Table]":
        """The same, decoded by Spark."""
        with ThreadPoolExecutor(READERS) as pool:
            decoded = pool.map(lambda topic: self._decode_by_spark(rows, topic, chosen[topic], slices[topic]), chosen)
            return {topic: table for topic, table in zip(chosen, decoded, strict=True) if table is not None}

    def _decode_by_spark(
        self, rows: "DataFrame", topic: str, columns: BySchema, slices: list[Slice]
    ) -> "pa.Table | None":
        try:
            decoded = self._typed(rows, topic, slices).toArrow()
            merged = self._topics.is_changelog(topic, slices)
            return fitted(decoded, columns, sum(each.records for each in slices), merged=merged)
        except NotPlain as reason:
            log.debug("left_to_spark", topic=topic, reason=str(reason))
        except failures() as error:  # it says so once more when it writes the table, which holds up that one only
            log.debug("left_to_spark", topic=topic, reason=one_line(error))
        return None

    def write(self, rows: "pa.Table", commit: TableCommit, slices: list[Slice]) -> bool:
        """Bring the table of the commit's topic up to the batch; False where Spark has to. Its first commit makes it.

        Raises:
            TableGone: the table is missing, and the commit is not its first.
        """
        try:
            merged = self._topics.is_changelog(commit.topic, slices)
            commit_small(self._directory / commit.topic, rows, commit, merged=merged)
        except NotPlain as reason:
            log.debug("left_to_spark", topic=commit.topic, reason=str(reason))
            return False
        return True

    def write_books(self, commit: TableCommit) -> bool:
        """Have a table say that it has more offsets of its topic, without rows; False where Spark has to.

        Raises:
            TableGone: the table is missing.
        """
        try:
            commit_books(self._directory / commit.topic, commit)
        except NotPlain as reason:
            log.debug("left_to_spark", topic=commit.topic, reason=str(reason))
            return False
        return True

    def _columns_of(self, topic: str, slices: list[Slice]) -> BySchema | None:
        """The columns of a topic's records, which null values have none of; None where a schema needs Spark."""
        if any(each.schema_id == NO_SCHEMA for each in slices):
            return None if self._topics.is_typed(topic, slices) or ids_of(slices) else {NO_SCHEMA: Columns(None)}
        columns = {number: self._plain(number) for number in ids_of(slices)}
        known = {number: each for number, each in columns.items() if each is not None}
        return known if len(known) == len(columns) else None

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


def commit_small(path: Path, rows: "pa.Table", commit: TableCommit, *, merged: bool) -> None:
    """One commit to the table at `path`, with our user metadata; the first makes it.

    Raises:
        NotPlain: the table's columns are others, it is large, or delta-rs does not write such a table.
        TableGone: the table is missing, and the commit is not its first.
    """
    _try(path, commit, lambda: _commit(path, rows, commit, merged=merged))


def commit_books(path: Path, commit: TableCommit) -> None:
    """One commit without rows to the table at `path`, for its user metadata.

    Raises:
        NotPlain: delta-rs does not write such a table.
        TableGone: the table is missing.
    """
    _try(path, commit, lambda: _commit_books(path, commit))


def _try(path: Path, commit: TableCommit, write: Callable[[], None]) -> None:
    from deltalake.exceptions import DeltaProtocolError

    try:
        write()
    except (NotPlain, TableGone):
        raise
    except BaseException as error:  # delta-rs raises plain ones, too, and what it did not foresee is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if has_commit(path, commit):
            return  # what failed came after it
        if not isinstance(error, DeltaProtocolError):  # which comes at every commit, once a column became wider
            log.warning("left_to_spark", table=str(path), reason=one_line(error))
        raise NotPlain(f"{path}: {error}") from error


def _commit_books(path: Path, commit: TableCommit) -> None:
    table = _table(path)
    if table is None:
        raise TableGone(path)
    table.create_write_transaction([], "append", table.schema(), commit_properties=_said(commit))


def _table(path: Path) -> "DeltaTable | None":
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(str(path))
    except TableNotFoundError:
        return None


def _said(commit: TableCommit) -> "CommitProperties":
    from deltalake import CommitProperties

    return CommitProperties(custom_metadata={"userMetadata": commit.metadata})


def _commit(path: Path, rows: "pa.Table", commit: TableCommit, *, merged: bool) -> None:
    from deltalake import write_deltalake

    said, table = _said(commit), _table(path)
    if table is None and not commit.is_first:
        raise TableGone(path)
    if merged and table is None:
        rows = rows.filter(_not_deleted(rows)).drop_columns(["_deleted"])
    names = [name for name in rows.column_names if name != "_deleted"]
    if table is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_deltalake(str(path), rows, commit_properties=said)
        return
    only_tombstones = merged and names == list(PLACE) and not rows.filter(_not_deleted(rows)).num_rows
    if not only_tombstones:
        _check_columns(table, rows, names)
    if not merged:
        write_deltalake(table, rows, mode="append", commit_properties=said)
        return
    files = table.get_add_actions(flatten=True)
    if sum(files["size_bytes"].to_pylist()) > MERGED_BYTES:
        raise NotPlain("a large table")
    if any(_has_wide_times(path / name) for name in files["path"].to_pylist()):
        raise NotPlain("times that would be others")
    before, values = table.version(), {f"`{name}`": f"s.`{name}`" for name in names}
    merge = table.merge(rows, "t._key = s._key", source_alias="s", target_alias="t", commit_properties=said)
    merge = merge.when_matched_delete("s._deleted")
    if not only_tombstones:
        merge = merge.when_matched_update(values).when_not_matched_insert(values, "NOT s._deleted")
    merge.execute()
    if table.version() == before:  # nothing had to be changed: the position moves all the same
        table.create_write_transaction([], "append", table.schema(), commit_properties=said)


@lru_cache(maxsize=10_000)
def _has_wide_times(file: Path) -> bool:
    """Whether a file, which never changes, has times as Spark writes them unless told otherwise.

    Delta-rs reads those as nanoseconds of 64 bits: what is not of the years 1677 to 2262 becomes another time.
    """
    from pyarrow import parquet

    schema = parquet.ParquetFile(file).schema
    return any(schema.column(number).physical_type == "INT96" for number in range(len(schema)))


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
