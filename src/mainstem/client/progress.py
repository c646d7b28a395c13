"""What a job says about each of its batches: the marker of its last commit, and its progress in source coordinates.

Both are written in the batch's own transaction: the marker to the compacted `__mainstem.commits`, so that a restart
knows what is committed; the progress to `__mainstem.progress`, one per batch for ever, so that bases compose over jobs.
"""

from collections.abc import Mapping

import msgspec

from mainstem.client.compacted import decode_state, read_compacted, read_state
from mainstem.client.connection import Connection
from mainstem.client.internal import COMMITS, job_key
from mainstem.client.topics import end_offsets, list_topics
from mainstem.records.fingerprint import MODULUS

NextOffsets = dict[str, dict[int, int]]
"""Topic -> partition -> next offset."""


class Written(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was written to one partition: how many records, and the sum of their fingerprints modulo 2**64."""

    count: int = 0
    hash: int = 0

    def __add__(self, other: "Written") -> "Written":
        return Written(self.count + other.count, (self.hash + other.hash) % MODULUS)


class Output(msgspec.Struct, frozen=True):
    """What one batch wrote to one partition: offsets from `base` to `last`, both included."""

    base: int
    last: int
    count: int
    hash: int


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of records of one partition; `hash` sums the fingerprints of all of them, modulo 2**64."""

    rows: int = 0
    tombstones: int = 0
    quarantined: int = 0
    filtered: int = 0
    late: int = 0
    hash: int = 0


class Read(Seen, frozen=True, kw_only=True, omit_defaults=True):
    """What a reader did with the records of one partition, from offset `start` to `end` (not included)."""

    start: int = msgspec.field(default=0, name="from")
    end: int = msgspec.field(name="to")

    @property
    def count(self) -> int:
        """All the records."""
        return self.rows + self.tombstones + self.quarantined + self.filtered + self.late

    def then(self, after: "Read") -> "Read":
        """This and what was read after it; what was read from another place is all that the reader has by now."""
        if after.start != self.end:
            return after
        return Read(
            start=self.start,
            end=after.end,
            rows=self.rows + after.rows,
            tombstones=self.tombstones + after.tombstones,
            quarantined=self.quarantined + after.quarantined,
            filtered=self.filtered + after.filtered,
            late=self.late + after.late,
            hash=(self.hash + after.hash) % MODULUS,
        )


Reads = dict[str, dict[str, dict[int, Read]]]
"""Source name -> topic -> partition -> what was read of it."""


class Marker(msgspec.Struct, frozen=True):
    """The commit of a batch; `checkpoint` is the id of the Spark query, which its checkpoint directory keeps."""

    job: str
    version: str
    checkpoint: str
    batch: int
    end_offsets: dict[str, NextOffsets]  # by source name
    outputs: dict[str, dict[int, Output]] = {}  # of this batch
    written: dict[str, dict[int, Written]] = {}  # of all batches so far
    read: Reads = {}  # likewise
    topics: dict[str, str] = {}  # id of each topic that it reads or writes; none in markers of before they were kept
    event_time: int = (
        0  # up to which the batch was told that all has come, in ms since 1970: its watermark and the delay
    )
    ends: NextOffsets = {}  # of its outputs: after the last record that this version has written to a partition
    tables: NextOffsets = {}  # as of `Progress`, of this batch; none in markers of before they were kept


def with_ends(connection: Connection, marker: Marker) -> Marker:
    """The same; of one of before `ends` were kept, with where its outputs end now: that is no less.

    Raises:
        BrokerUnavailable: the log does not answer.
    """
    if marker.ends or not marker.written:
        return marker
    existing = list_topics(connection)
    return msgspec.structs.replace(
        marker, ends={topic: end_offsets(connection, topic) for topic in marker.written if topic in existing}
    )


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch in source coordinates; also written for a batch without output."""

    job: str
    version: str
    batch: int
    basis: NextOffsets
    tables: NextOffsets = {}  # the pinned position of each table the batch was joined with
    ends: NextOffsets = {}  # of its outputs: after the last record of this batch, or one before it, in a partition


def read_marker(
    connection: Connection, job: str, version: str, *, decided: bool = False, linearizable: bool = False
) -> Marker | None:
    """The last committed marker of a job's version.

    Call it after the fence, `linearizable`: then no older batch can still commit, and none is missed. With `decided` it
    does not wait for open transactions, and may find an older one.
    """
    key = job_key(job, version).encode()
    value = read_compacted(connection, COMMITS, decided=decided, linearizable=linearizable).get(key)
    return None if value is None else decode_state(COMMITS, key, value, Marker)


def read_markers(connection: Connection, *, decided: bool = False) -> dict[str, Marker]:
    """The last committed marker of each version, by `<job>@<version>`; `decided` as of `read_marker`."""
    return read_state(connection, COMMITS, Marker, decided=decided)


def merge_positions(positions: Mapping[str, NextOffsets]) -> NextOffsets:
    """The positions of several sources as one: a partition that two read counts from where the slower one is."""
    merged: NextOffsets = {}
    for by_topic in positions.values():
        for topic, by_partition in by_topic.items():
            into = merged.setdefault(topic, {})
            for partition, offset in by_partition.items():
                into[partition] = min(offset, into.get(partition, offset))
    return merged


def add_reads(total: Reads, batch: Reads) -> Reads:
    """`total` with what one more batch has read; a source that it did not read stays where it is."""
    result = {source: {topic: dict(each) for topic, each in topics.items()} for source, topics in total.items()}
    for source, topics in batch.items():
        for topic, partitions in topics.items():
            into = result.setdefault(source, {}).setdefault(topic, {})
            for partition, read in partitions.items():
                into[partition] = into[partition].then(read) if partition in into else read
    return result


def add_written(
    total: Mapping[str, Mapping[int, Written]], outputs: Mapping[str, Mapping[int, Output | Written]]
) -> dict[str, dict[int, Written]]:
    """`total` with the counts and hashes of one more batch or transaction."""
    result = {topic: dict(partitions) for topic, partitions in total.items()}
    for topic, partitions in outputs.items():
        into = result.setdefault(topic, {})
        for partition, output in partitions.items():
            into[partition] = into.get(partition, Written()) + Written(output.count, output.hash)
    return result
