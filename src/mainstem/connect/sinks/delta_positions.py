"""Up to where each table of a lakehouse has its topic: what its newest commit says, whether the table can go on from
there with the topic as it is now, and what its next commit says.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.topics import bounds, cluster_id, list_topics, topic_ids
from mainstem.connect.sinks.delta_held import HeldTables
from mainstem.connect.sinks.delta_log import (
    REPAIR,
    PartitionBooks,
    TableChanged,
    TableCommit,
    TableGone,
    check_whole,
    is_table,
    last_commit,
    newest_since,
)
from mainstem.connect.sinks.delta_spark import QUARANTINE, TableHeld
from mainstem.connect.sinks.delta_topics import Slice
from mainstem.core import MainstemError, Retriable, TopicPartition, is_topic_name

KAFKA_INTERNAL = {"__consumer_offsets", "__transaction_state", "__share_group_state"}  # no pattern finds them


class TopicChanged(Retriable):
    """A topic was deleted and made anew while the query ran: the query starts again."""


class Positions:
    """Of one sink's tables, each in the directory of its topic's name below `directory`. Tables that cannot go on are
    held.

    Attributes:
        commits: our last commit to each table.
    """

    def __init__(self, connection: Connection, directory: Path, held: HeldTables) -> None:
        self.commits: dict[str, TableCommit] = {}
        self._connection = connection
        self._directory = directory
        self._held = held
        self._cluster = ""
        self._ids: dict[str, str] = {}
        self._versions: dict[str, int] = {}  # of the tables, at or before our last commits

    def open(self, matches: Callable[[str], bool]) -> dict[str, dict[str, int]]:
        """From where each is to be read: every partition (as text) of every topic that `matches` and is there now.
        Held tables are left alone until they are opened again, so theirs is the end.
        """
        found = list_topics(self._connection)
        topics = {
            name: topic.partitions for name, topic in found.items() if name not in KAFKA_INTERNAL and matches(name)
        }
        self._cluster = cluster_id(self._connection)
        self._ids = topic_ids(self._connection, topics)
        # A query that begins behind what it reads, at the end of an open transaction, fails.
        places = bounds(self._connection, topics, committed=True)
        self.commits = {}
        self._versions = {}
        for table in sorted(self._directory.iterdir()):
            # Other directories are not ours: `lost+found` of a disk.
            if is_topic_name(table.name) and table.name != QUARANTINE:
                self._open(table.name, places)
        starts: dict[str, dict[str, int]] = {}
        for topic, partitions in topics.items():
            positions = self._commit_of(topic).positions
            for number in range(partitions):
                place = TopicPartition(topic, number)
                first, end = places.get(place, (0, 0))
                start = end if topic in self._held.reasons else positions.get(place, first)
                starts.setdefault(topic, {})[str(number)] = start
        self._held.opened(topics)
        return starts

    def _open(self, topic: str, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Know the position of a table, if there is one and it is of this log's topic."""
        path = self._directory / topic
        try:
            if not is_table(path):
                return
            check_whole(path)
            found = last_commit(path)
            commit = self.commits[topic] = found.commit if found is not None else TableCommit(topic)
            if found is not None:
                self._versions[topic] = found.version
            if commit.cluster and topic in self._ids:
                expected, here = (commit.cluster, commit.topic_id), (self._cluster, self._ids[topic])
                beyond = [str(p) for p, offset in commit.positions.items() if offset > places.get(p, (0, 0))[1]]
                if expected != here or beyond:
                    raise TableHeld(
                        f"{path}: the table is of topic {commit.topic_id} of log {commit.cluster}, found topic "
                        f"{here[1]} of log {here[0]}" + (f", which ends before {', '.join(beyond)}" if beyond else ""),
                        hint=REPAIR,
                    )
            for place, offset in commit.positions.items():
                if place in places and offset < places[place][0]:
                    raise TableHeld(
                        f"{path}: the table has {place} up to offset {offset}, and the log starts at offset "
                        f"{places[place][0]}: what lay between was removed before the table had it",
                        hint="to go on without, remove or move the directory: the table is filled anew with what the log "
                        "has; a larger retention.ms of the topic gives the lakehouse more time",
                    )
        except (MainstemError, OSError) as error:
            self._held.hold(topic, error, unopened=True)

    def moved(self, ends: Mapping[str, Mapping[int, int]]) -> set[str]:
        """The topics whose tables have been begun, are not held, and end before `ends`."""
        found = set()
        for topic, mine in ends.items():
            books = self._commit_of(topic).partitions
            has = {number: each.next for number, each in books.items()}
            if books and topic not in self._held.reasons and any(end > has.get(p, 0) for p, end in mine.items()):
                found.add(topic)
        return found

    def recognise(self, topics: Iterable[str]) -> None:
        """Know the ids of this batch's topics.

        Raises:
            TopicChanged: one is no longer the topic that it was when the query started.
        """
        now = topic_ids(self._connection, topics)
        for topic in topics:
            found = now.get(topic, "")
            known = self._ids.get(topic) or self._commit_of(topic).topic_id  # it may have come since the query started
            if known not in ("", found):
                raise TopicChanged(f"topic {topic} was deleted or made anew since")
            self._ids[topic] = found

    def next_commit(
        self, topic: str, slices: Iterable[Slice], wrong: Mapping[tuple[str, int], int], ends: Mapping[int, int]
    ) -> TableCommit:
        """The books of the table after this batch.

        The position is the batch's end, not the last record's: where retention takes the marker behind that too,
        nothing is missing. It is known of partitions without records too: what they get and lose later is missing.
        """
        partitions = {p: msgspec.structs.replace(books) for p, books in self._commit_of(topic).partitions.items()}
        for number, end in ends.items():
            books = partitions.setdefault(number, PartitionBooks())
            books.next = max(books.next, end)
        for each in slices:
            books = partitions[each.partition]
            books.hash = (books.hash + each.hash) % 2**64
            if each.schema_id is None:
                books.tombstones += each.records
            else:
                books.rows += each.records
        for (of, partition), count in wrong.items():
            if of == topic:
                partitions[partition].rows -= count
                partitions[partition].quarantined += count
        last = self._commit_of(topic)
        # One that has books is not the first, also where a release before this one did not count.
        number = max(last.number, int(bool(last.partitions))) + 1
        return TableCommit(topic, partitions, self._cluster, self._ids[topic], number)

    def check_unchanged(self, topic: str) -> None:
        """Check that the topic's table is where our last commit left it: the next one claims all that it brought.

        Raises:
            TableGone: people remove tables, also while they are written to,
            TableChanged: and put others there.
            CorruptData: nobody can tell what is there now.
        """
        path, version = self._directory / topic, self._versions.get(topic)
        expected = self._commit_of(topic)
        # Of a table that was made since they were opened no version is known: it has few.
        found = newest_since(path, version) if version is not None else last_commit(path)
        if found is None and expected.partitions and not is_table(path):
            raise TableGone(path)
        if (found.commit if found is not None else TableCommit(topic)) != expected:
            number = found.commit.number if found is not None else "none"
            raise TableChanged(
                f"{path}: expected commit {expected.number} as our newest one, found {number}: the table was replaced"
            )
        if found is not None:
            self._versions[topic] = found.version

    def written(self, commits: Iterable[TableCommit]) -> None:
        """These are in their tables."""
        self.commits |= {commit.topic: commit for commit in commits}

    def _commit_of(self, topic: str) -> TableCommit:
        """Our last commit to the topic's table; nothing where there is no table."""
        return self.commits.get(topic) or TableCommit(topic)
