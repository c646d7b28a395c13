"""The index of a view: which kind, with which shape, and what its topics' schemas mean for that."""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mainstem.client.catalog import TopicEntry
from mainstem.core import MainstemError, Retriable, UserError
from mainstem.core.logging import get_logger
from mainstem.registry.errors import NotFound
from mainstem.registry.kept import KeptSchemas
from mainstem.serve.columns import TableShape, check_shapes, columns_of, wider
from mainstem.serve.config import ViewConfig
from mainstem.serve.decode import PLAIN
from mainstem.serve.directory import NAME
from mainstem.serve.index import Index

if TYPE_CHECKING:
    from mainstem.serve.search import SearchIndex
    from mainstem.serve.sql_process import SqlProcess

log = get_logger()

_FIELDS = {
    "VARCHAR": "text",
    "UUID": "keyword",
    "INTEGER": "integer",
    "BIGINT": "integer",
    "FLOAT": "float",
    "DOUBLE": "float",
    "BOOLEAN": "boolean",
    "DATE": "time",
    "TIMESTAMP": "time",
    "TIMESTAMP WITH TIME ZONE": "time",
}
"""SQL type -> what a search takes its values for; what has another type is in the rows, and not searched for."""


class NotKnownYet(Retriable):
    """What a view is made of is not there yet: a topic, its schema, its key."""


class Engine(msgspec.Struct, frozen=True):
    """What is needed to open the index of a view, again and again.

    Attributes:
        config: of the view.
        topics: that it reads, by the name that the view has for each.
        entries: what the catalog says of them.
        sql_memory, sql_spill_bytes: for the queries of an SQL view.
    """

    config: ViewConfig
    topics: Mapping[str, str]
    entries: Mapping[str, TopicEntry]
    sql_memory: str
    sql_spill_bytes: int = 1 << 30

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Of a key-value view.

        Raises:
            NotKnownYet: neither the settings nor the catalog name them.
        """
        (topic,) = self.topics.values()
        columns = self.config.key_columns or self.entries.get(topic, TopicEntry()).key
        if not columns:
            raise NotKnownYet(
                f"topic {topic}: the columns of its key are not known yet",
                hint="its writer says which they are when it starts; `key` of the view does so at once",
            )
        return columns

    def open(self, path: Path, known: KeptSchemas) -> Index:
        """Open the index, or begin one.

        Raises:
            NotKnownYet: a schema or a key is not there yet.
            OtherShape, IndexDamaged, IndexInUse, IndexUnavailable: as the indexes do.
        """
        if self.config.kind == "key-value":
            from mainstem.serve.key_value import KeyValueIndex

            return KeyValueIndex.open(path, key_columns=self.key_columns, versions=self.config.versions)
        if self.config.kind == "search":
            from mainstem.serve.search import SearchIndex

            return SearchIndex.open(path, self.fields(known))
        from mainstem.serve.sql_process import SqlProcess

        # An index that is there has the columns of its records, and learns those that come.
        is_new = not (path / NAME).exists()
        shapes = {
            topic: self._table(name, topic, _registered(topic, known) if is_new else {})
            for name, topic in self.topics.items()
        }
        return SqlProcess.open(path, shapes, memory=self.sql_memory, spill_bytes=self.sql_spill_bytes)

    def open_as_it_is(self, path: Path) -> Index | None:
        """Open an index that has other fields than it should have, to be asked alone; None where that cannot be.

        Raises:
            OtherShape, IndexDamaged, IndexInUse, IndexUnavailable: as the indexes do.
        """
        if self.config.kind != "search":
            return None
        from mainstem.serve.search import SearchIndex, fields_of

        fields = fields_of(path)
        return None if fields is None else SearchIndex.open(path, fields)

    def learn(self, index: Index, topic: str, texts: Iterable[str], known: KeptSchemas) -> None:
        """Records of `topic` have named schemas for the first time: what the index has to change for them.

        A schema of other topics, which anybody may name, changes nothing where the index cannot take it.

        Raises:
            OtherShape: it cannot be changed, and has to be built anew.
            UserError: the topic's own schema is not one of records, or its columns have names that SQL takes for one.
        """
        if self.config.kind == "sql":
            _extend(index, self, topic, texts, known)  # type: ignore[arg-type]
        elif self.config.kind == "search":
            _check_fields(index, self.fields(known))  # type: ignore[arg-type]

    def fields(self, known: KeptSchemas) -> dict[str, str]:
        """What a search view looks in: the columns of its topics by the latest schema of each."""
        fields: dict[str, str] = {}
        for topic in self.topics.values():
            for column, kind in columns_of(_latest(topic, known)).items():
                field = _FIELDS.get(kind)
                if field is not None and fields.setdefault(column, field) != field:
                    fields[column] = "text"  # of another type in another topic: as text it is found in both
        return fields or {PLAIN: "text"}

    def columns(self, known: KeptSchemas) -> dict[str, dict[str, str]]:
        """Column -> SQL type of each topic, by the view's name for it; of those whose schema is one of records."""
        found: dict[str, dict[str, str]] = {}
        for name, topic in self.topics.items():
            with contextlib.suppress(MainstemError):
                found[name] = columns_of(_latest(topic, known))
        return found

    def _table(self, name: str, topic: str, columns: Mapping[str, str]) -> TableShape:
        kind = self.entries.get(topic, TopicEntry()).kind
        shape = TableShape(dict(columns), "changelog" if kind == "changelog" else "stream")
        return msgspec.structs.replace(shape, name=shape.table(name))  # called as the view says, whatever version it is


def _extend(index: "SqlProcess", engine: Engine, topic: str, texts: Iterable[str], known: KeptSchemas) -> None:
    (name,) = (name for name, each in engine.topics.items() if each == topic)
    own = known.texts(f"{topic}-value")
    for text in texts:
        try:
            index.extend({topic: engine._table(name, topic, columns_of(text))})
        except UserError as error:
            if text in own:
                raise
            log.warning("schema_passed_over", topic=topic, reason=str(error))


def _check_fields(index: "SearchIndex", fields: Mapping[str, str]) -> None:
    from mainstem.serve.errors import OtherShape

    if index.fields != fields:
        raise OtherShape(f"search: expected the fields {', '.join(fields)}, found {', '.join(index.fields)}")


def _registered(topic: str, known: KeptSchemas) -> dict[str, str]:
    """The columns of all schemas that a topic's subject has, for a table that no record has told of yet; none where
    they do not go together: which of them its records are of is not known.
    """
    columns: dict[str, str] = {}
    try:
        texts = [_latest(topic, known), *sorted(known.texts(f"{topic}-value"))]
        for text in texts:
            for column, kind in columns_of(text).items():
                widest = wider(columns.get(column, kind), kind)
                if widest is None:
                    return {}
                columns[column] = widest
        check_shapes({topic: TableShape(columns, "stream")})
    except (NotKnownYet, UserError):
        return {}
    return columns


def _latest(topic: str, known: KeptSchemas) -> str:
    try:
        return known.latest(f"{topic}-value").schema
    except NotFound:
        raise NotKnownYet(f"topic {topic} has no schema yet", hint="whoever writes it registers one") from None
