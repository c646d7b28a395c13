"""Count what a partition holds, from its log start to its last stable offset, batch by batch as it is stored.

Clients hide control records, aborted records and the gaps of compaction; the audit needs all three, so it fetches the
stored batches and reads them as a consumer would (https://kafka.apache.org/protocol#The_Messages_Fetch): a batch of a
transactional producer is aborted if the fetch answer names a transaction of that producer that started at or before
it and whose abort marker has not come yet.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from typing import Any

from mainstem.audit.books import Count, PartitionBooks
from mainstem.client import topics
from mainstem.client.cluster import Api, Cluster, nested
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, RecordsDeleted
from mainstem.core import TopicPartition
from mainstem.records import BatchHeader, Record, decode_header, decode_marker, fingerprint, iter_spans
from mainstem.records.fingerprint import MODULUS
from mainstem.records.record import decode_record, iter_record_spans, record_bytes
from mainstem.wire.kafka import ErrorCode

FETCH_VERSION = 11
FETCH_BYTES = 4 << 20
AT_ONCE = 4  # partitions; the rest wait
WAIT_SECONDS = 30.0
"""Without any progress, for a leader that is new or comes back."""
PAUSE_SECONDS = 0.5
EMPTY_ANSWERS = 5
"""In a row, until it is believed that everything up to the end is compacted away: a broker may also give no records
because a quota of what it fetches itself is used up (KIP-956)."""


class Tally:
    """Running counts of one partition; feed it the batches of each fetch in order.

    Args:
        start: the log start offset.
        positions: offsets at which the running count of `data` is kept.
    """

    def __init__(self, start: int, positions: Collection[int] = ()) -> None:
        self.next_offset = start
        self._start = start
        self._waiting = sorted((p for p in set(positions) if p >= start), reverse=True)
        self._at: dict[int, Count] = {}
        self._data = self._hash = self._control = self._aborted = self._compacted = 0
        self._starts: list[tuple[int, int]] = []  # (first offset, producer id) of aborted transactions to come
        self._open: set[int] = set()  # producers inside of an aborted transaction

    def aborted(self, transactions: Iterable[tuple[int, int]]) -> None:
        """Learn (first offset, producer id) of the aborted transactions that overlap the next batches."""
        self._starts = sorted({*self._starts, *transactions}, reverse=True)

    def feed(self, records: bytes) -> None:
        """Count whole batches; one cut short at the end is left for the next fetch."""
        for span in iter_spans(records):
            if span.last_offset < self.next_offset:
                continue  # a fetch in the middle of a batch returns it whole
            batch = memoryview(records)[span.position : span.end]
            header = decode_header(batch)
            first, count = header.base_offset, header.count
            if first < self._start:  # DeleteRecords does not stop at the edges of batches
                first, count = self._start, count - self._deleted(header, batch)
            self._compacted += max(0, first - self.next_offset)
            self._compacted += header.next_offset - first - count
            self._count(header, batch, count)
            self.next_offset = header.next_offset

    def books(self, partition: TopicPartition, end: int) -> PartitionBooks:
        """The result, up to `end` (not included), where the scan has to have come."""
        self._compacted += max(0, end - self.next_offset)  # the last batches may be compacted away
        total = Count(self._data, self._hash % MODULUS)
        at = self._at | dict.fromkeys(self._waiting, total)
        return PartitionBooks(partition, self._start, end, total, self._control, self._aborted, self._compacted, at)

    def _count(self, header: BatchHeader, batch: memoryview, count: int) -> None:
        while self._starts and self._starts[-1][0] <= header.base_offset:
            self._open.add(self._starts.pop()[1])
        if header.is_control:
            self._keep_positions(header.base_offset)
            self._control += count
            if header.count and not decode_marker(batch).commit:
                self._open.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in self._open:
            self._keep_positions(header.base_offset)
            self._aborted += count
        else:
            self._count_data(header, batch)

    def _count_data(self, header: BatchHeader, batch: memoryview) -> None:
        for record in _records(header, batch):
            if record.offset < self._start:
                continue
            self._keep_positions(record.offset)
            self._data += 1
            self._hash += fingerprint(record.key, record.value)

    def _deleted(self, header: BatchHeader, batch: memoryview) -> int:
        return sum(record.offset < self._start for record in _records(header, batch))

    def _keep_positions(self, offset: int) -> None:
        while self._waiting and self._waiting[-1] <= offset:
            self._at[self._waiting.pop()] = Count(self._data, self._hash % MODULUS)


def _records(header: BatchHeader, batch: memoryview) -> Iterator[Record]:
    data = record_bytes(header, batch)
    for start, end in iter_record_spans(header, data):
        yield decode_record(header, data, start, end)


def scan(connection: Connection, wanted: dict[TopicPartition, set[int]]) -> list[PartitionBooks]:
    """Count the partitions of `wanted`; its values are the readers' positions.

    Raises:
        UnknownTopic: a topic does not exist.
        BrokerUnavailable: a leader does not answer, or stays behind.
        RecordsDeleted: retention took records that were still to be counted.
    """
    there = topics.list_topics(connection)
    counts = {}
    for topic in {partition.topic for partition in wanted}:
        known = there.get(topic) or topics.describe(connection, topic)  # which raises where there is none
        counts[topic] = known.partitions
    bounds = topics.bounds(connection, counts, committed=True)
    return asyncio.run(_scan(connection, wanted, bounds))


async def _scan(
    connection: Connection,
    wanted: dict[TopicPartition, set[int]],
    bounds: dict[TopicPartition, tuple[int, int]],
) -> list[PartitionBooks]:
    cluster = Cluster(connection)
    await cluster.open()
    places = asyncio.Semaphore(AT_ONCE)

    async def one(partition: TopicPartition) -> PartitionBooks:
        async with places:
            start, end = bounds[partition]
            tally = Tally(start, wanted[partition])
            await _read(cluster, partition, tally, end)
            return tally.books(partition, max(end, tally.next_offset))

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(partition)) for partition in wanted]
    finally:
        await cluster.close()
    return [task.result() for task in running]


async def _read(cluster: Cluster, partition: TopicPartition, tally: Tally, end: int) -> None:
    """Feed `tally` what the partition holds up to `end`."""
    empty, deadline = 0, time.monotonic() + WAIT_SECONDS
    while tally.next_offset < end and empty < EMPTY_ANSWERS:
        before = tally.next_offset
        try:
            await _fetch(cluster, partition, tally, end)
        except BrokerUnavailable:
            if time.monotonic() >= deadline:
                raise
            cluster.forget_leaders(partition.topic)
        else:
            if tally.next_offset > before:
                empty, deadline = 0, time.monotonic() + WAIT_SECONDS
                continue
            empty += 1
        await asyncio.sleep(PAUSE_SECONDS)


async def _fetch(cluster: Cluster, partition: TopicPartition, tally: Tally, end: int) -> None:
    place = f"{partition}: fetch at offset {tally.next_offset}"
    answer = await _answer(cluster, partition, tally.next_offset)
    while not answer.responses and answer.throttle_time:  # a quota is used up; Kafka then names no topic
        await asyncio.sleep(answer.throttle_time.total_seconds())
        answer = await _answer(cluster, partition, tally.next_offset)
    if not answer.responses:
        raise BrokerUnavailable(f"{place}: the answer does not name the topic")
    (found,) = answer.responses[0].partitions
    if found.error_code is ErrorCode.offset_out_of_range:
        raise RecordsDeleted(
            f"{place}: its records were deleted while they were counted", hint="run `mainstem audit` again"
        )
    if found.error_code is not ErrorCode.none:
        raise BrokerUnavailable(f"{place}: {found.error_code.name}")
    if not found.records and found.last_stable_offset < end:  # a new leader that does not know yet what is committed
        raise BrokerUnavailable(f"{place}: expected records up to {end}, the leader has {found.last_stable_offset}")
    tally.aborted((_number(t.first_offset), _number(t.producer_id)) for t in found.aborted_transactions or ())
    tally.feed(bytes(found.records or b""))


async def _answer(cluster: Cluster, partition: TopicPartition, offset: int) -> Any:
    where = nested(Api.FETCH, FETCH_VERSION, "FetchPartition")(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
    )
    topic = nested(Api.FETCH, FETCH_VERSION, "FetchTopic")(topic=partition.topic, partitions=(where,))
    return await cluster.call(
        await cluster.leader(partition),
        Api.FETCH,
        FETCH_VERSION,
        max_wait=timedelta(milliseconds=100),
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=1,
        session_id=0,
        session_epoch=-1,
        topics=(topic,),
        forgotten_topics_data=(),
        rack_id="",
    )


def _number(value: Any) -> int:
    return int(value)
