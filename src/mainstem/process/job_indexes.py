"""The local indexes of a running version of a job: where they lie, and the positions of their tables."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.client.connection import Connection
from mainstem.client.topics import describe_config, end_offsets
from mainstem.process.declare import Topic
from mainstem.process.identity import SameTopics
from mainstem.process.index_task import ListedHistory, Place, TopicHistory
from mainstem.process.local_index import Change
from mainstem.process.outputs import JobOutput
from mainstem.process.reading import DELETED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class _KeptRows:
    """What is used more than once in a batch; `release` after each."""

    def __init__(self) -> None:
        self._kept: list[DataFrame] = []

    def keep(self, rows: "DataFrame") -> None:
        """As of `Indexes`."""
        self._kept.append(rows.persist())

    def release(self) -> None:
        """The batch is over."""
        for rows in self._kept:
            rows.unpersist()
        self._kept = []


class JobIndexes(_KeptRows):
    """What `indexed` is told while the function of a job is called for a batch.

    Args:
        connection: the log.
        outputs: of the version.
        topics: those that it is bound to.
        directory: for the indexes; below the executor's own where it is a relative one.
    """

    def __init__(
        self, connection: Connection, outputs: Sequence[JobOutput], topics: SameTopics, directory: Path
    ) -> None:
        super().__init__()
        self._connection, self._topics, self._directory = connection, topics, directory
        self._outputs = {each.declared.topic: each for each in outputs}
        self._kept_ms: dict[str, int] = {}

    def place(self, table: Topic, key: tuple[tuple[str, str], ...]) -> Place:
        """As of `Indexes`: the table as it is now, committed."""
        output = self._outputs[table.name]  # its analysis has seen to that
        ends = end_offsets(self._connection, output.topic, committed=True)
        kept_ms = self._removals_kept_ms(output.topic)
        history = TopicHistory(self._connection, output.topic, ends, output.schema_id, output.schema, key, kept_ms)
        # By its id: of a topic that was deleted and made anew nothing is in an index of the old one.
        topic_id = self._topics.kept[output.topic].replace("/", "_")
        return Place(str(self._directory / topic_id), output.partitions, history)

    def _removals_kept_ms(self, topic: str) -> int:
        """Half of the time for which the log keeps a record without a value, after which it forgets what is gone."""
        if topic not in self._kept_ms:
            config = describe_config(self._connection, topic)
            settings = ("min.compaction.lag.ms", "delete.retention.ms")
            self._kept_ms[topic] = sum(int(config.get(name, 0)) for name in settings) // 2
        return self._kept_ms[topic]


class ListedIndexes(_KeptRows):
    """The local indexes of a job that is tested without a log: what it has written is all in this process.

    Args:
        tables: what the job writes besides its first result (`also`).
    """

    def __init__(self, tables: Sequence[Topic]) -> None:
        super().__init__()
        self._keys = {each.name: each.key for each in tables}
        self._changes: dict[str, list[Change]] = {each.name: [] for each in tables}
        self._home: tempfile.TemporaryDirectory[str] | None = None  # most jobs have none

    def place(self, table: Topic, key: tuple[tuple[str, str], ...]) -> Place:
        """As of `Indexes`."""
        if self._home is None:
            self._home = tempfile.TemporaryDirectory(prefix="mainstem-test-", ignore_cleanup_errors=True)
        return Place(str(Path(self._home.name, table.name)), 1, ListedHistory(tuple(self._changes[table.name])))

    def follow(self, written: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """By table, all rows that it has had so far; with `_deleted` they are gone."""
        for name, found in written.items():
            changes = self._changes[name]
            for row in found[len(changes) :]:
                key = {column: row[column] for column in self._keys[name]}
                changes.append(Change(key, None if row.get(DELETED) else row))

    def close(self) -> None:
        """Remove them."""
        if self._home is not None:
            self._home.cleanup()
