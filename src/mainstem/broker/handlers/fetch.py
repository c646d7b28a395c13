"""Fetch, API 1, versions 4-18.

Behaviour: reads whole batches, up to the high watermark or, for readers of committed records, the last stable offset;
a fetch in the middle of a batch gives the whole batch. Where less than `min_bytes` is there, it waits up to `max_wait`
for appends and for ends of transactions, but not where more is there than could be given: at the end of a segment, or
of what the reader has room for. The first batch of an answer is given even if it is larger than allowed (KIP-74), or
than there is room for (`answer_memory`). The answer is encoded by hand (`wire.fetch`).

7: sessions (KIP-227). 9: leader epochs are checked (KIP-320). 12: the diverging epoch of a reader that says what it
read last (KIP-595). 13: topic ids. 16: the leader is named with an epoch error (KIP-951).
Left out: reading from followers (preferred replica, rack), since there are none.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from mainstem.broker.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchSession,
    PartitionKey,
)
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.isolation import reads_committed
from mainstem.broker.leadership import check_leader_epoch
from mainstem.broker.security.acls import READ, TOPIC
from mainstem.broker.security.quotas import CONSUMER
from mainstem.broker.waiting import Waiting
from mainstem.core import MainstemError
from mainstem.log import PartitionLog, StorageError
from mainstem.wire import fetch as wire
from mainstem.wire.errors import Code, RequestError, code_of
from mainstem.wire.fetch import FetchedPartition, FetchedTopic

_MOST_FILES: Final = 16  # that an answer may hold open: of its first partitions
_AT_ONCE: Final = 100  # partitions that are read before others go on
_FIRST_WITH_ERROR: Final = 7  # before, there is no code but those of partitions
_EPOCH_ERRORS: Final = (Code.fenced_leader_epoch, Code.unknown_leader_epoch)


@handler(wire.API_KEY)
async def fetch(request: Any, ctx: RequestContext) -> list[Any]:
    try:
        committed = reads_committed(request.isolation_level)
    except RequestError as error:
        if ctx.version >= _FIRST_WITH_ERROR:
            raise
        refused = [
            (each.topic, [FetchedPartition(part.partition, error.code) for part in each.partitions])
            for each in request.topics
        ]
        return wire.encode(ctx.version, [FetchedTopic(name, None, partitions) for name, partitions in refused])
    session = _session(request, ctx)
    wanted = list(session.partitions.values()) if session is not None else _partitions(request, ctx.version)
    incremental = session is not None and request.session_epoch > INITIAL_EPOCH
    fetching = _Fetch(request, ctx, wanted, committed=committed)
    del request  # who waits holds what it wants, not all that it has said
    fetched = await fetching.run()
    if ctx.meter is not None and not ctx.meter.may_use(CONSUMER, sum(each.size for each in fetched)):
        # Asked again, when the time has come that the answer names. Clients take an answer without partitions to a full
        # fetch for none and begin again: a session that it opened would be left behind.
        if session is not None and not incremental:
            ctx.broker.fetch_sessions.close(session.session_id)
            session = None
        return wire.encode(ctx.version, [], session_id=NO_SESSION if session is None else session.session_id)
    topics: dict[str | UUID | None, FetchedTopic] = {}
    for partition, found in zip(wanted, fetched, strict=True):
        if incremental and not _is_news(partition, found):
            continue
        partition.answered_high_watermark = found.high_watermark
        partition.answered_log_start_offset = found.log_start_offset
        if session is not None:
            session.answered(partition, had_records=bool(found.records))
        topic = topics.get(partition.topic)
        if topic is None:
            by_id = isinstance(partition.topic, UUID) or partition.topic is None
            topic = FetchedTopic(
                "" if by_id else str(partition.topic),
                partition.topic if isinstance(partition.topic, UUID) else None,
                [],
            )
            topics[partition.topic] = topic
        topic.partitions.append(found)
    return wire.encode(
        ctx.version, list(topics.values()), session_id=NO_SESSION if session is None else session.session_id
    )


def _is_news(partition: FetchPartition, found: FetchedPartition) -> bool:
    return (
        bool(found.records)
        or found.code != Code.none
        or found.diverging_epoch is not None
        or found.high_watermark != partition.answered_high_watermark
        or found.log_start_offset != partition.answered_log_start_offset
    )


def _session(request: Any, ctx: RequestContext) -> FetchSession | None:
    """The session this request belongs to: a new one, a known one, or none."""
    if ctx.version < 7:
        return None
    sessions, by_id = ctx.broker.fetch_sessions, ctx.version >= wire.FIRST_WITH_TOPIC_IDS
    if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        sessions.close(request.session_id)
        wanted = _partitions(request, ctx.version)
        return sessions.open(wanted, by_id=by_id) if request.session_epoch == INITIAL_EPOCH and wanted else None
    forgotten: list[PartitionKey] = [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    session = sessions.proceed(
        request.session_id, request.session_epoch, _partitions(request, ctx.version), forgotten, by_id=by_id
    )
    if session.partitions:
        return session
    sessions.close(session.session_id)  # as in Kafka: who has nothing left to read begins anew
    return None


def _partitions(request: Any, version: int) -> list[FetchPartition]:
    """Each once: of one that is named many times the last counts, as in Kafka."""
    by_id = version >= wire.FIRST_WITH_TOPIC_IDS
    named = (
        FetchPartition(
            topic.topic_id if by_id else topic.topic,
            partition.partition,
            partition.fetch_offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch if version >= 9 else -1,
            partition.last_fetched_epoch if version >= 12 else -1,
        )
        for topic in request.topics
        for partition in topic.partitions
    )
    return list({each.key: each for each in named}.values())


class _Fetch:
    """One request on its way: read, and while that is too little, wait and read again."""

    def __init__(self, request: Any, ctx: RequestContext, wanted: Sequence[FetchPartition], *, committed: bool) -> None:
        self._ctx = ctx
        self._wanted = wanted
        self._committed = committed
        self._max_bytes = min(request.max_bytes, ctx.broker.config.fetch_max_bytes)
        if ctx.meter is not None and (most := ctx.meter.most_bytes()) is not None:
            self._max_bytes = min(self._max_bytes, most)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._is_cut = False  # some partition has more than it gave
        self._deadline = ctx.broker.loop.time() + request.max_wait.total_seconds()
        self._logs: list[PartitionLog] = []
        self._memory = ctx.broker.fetched_memory
        self._held = 0  # bytes of records that were read

    async def run(self) -> list[FetchedPartition]:
        """What was read; from here on its memory is the answer's."""
        try:
            return await self._read_enough()
        finally:
            self._memory.give(self._held)

    async def _read_enough(self) -> list[FetchedPartition]:
        loop = self._ctx.broker.loop
        while True:
            fetched = await self._read()
            size = sum(each.size for each in fetched)
            done = size >= self._min_bytes or self._is_cut or not fetched or self._ctx.broker.stopping.done()
            failed = any(each.code != Code.none or each.diverging_epoch is not None for each in fetched)
            if done or failed or self._ctx.connection.closed or loop.time() >= self._deadline:
                return fetched
            for each in fetched:
                each.records = ()  # they are read anew: until then nobody needs them, nor the files they are in
            self._memory.give(self._held)
            self._held = 0
            await self._wait(fetched, self._min_bytes - size)

    async def _read(self) -> list[FetchedPartition]:
        self._logs = []
        self._is_cut = False
        left, fetched = self._max_bytes, []
        nothing_yet = True
        for number, wanted in enumerate(self._wanted, start=1):
            found = await self._read_partition(wanted, left, at_least_one=nothing_yet)
            fetched.append(found)
            left -= found.size
            nothing_yet = nothing_yet and not found.records
            if number % _AT_ONCE == 0:  # others go on meanwhile
                await asyncio.sleep(0)
        return fetched

    async def _read_partition(self, wanted: FetchPartition, left: int, *, at_least_one: bool) -> FetchedPartition:
        partition_log = None
        try:
            partition_log = self._find(wanted)
            self._logs.append(partition_log)
            check_leader_epoch(partition_log, max(wanted.leader_epoch, -1))  # -2 is -1 to Kafka, in a fetch alone
            diverging = _diverging_epoch(partition_log, wanted)
            if diverging is not None:
                return self._nothing(wanted, partition_log, diverging)
            limit = partition_log.last_stable_offset if self._committed else partition_log.high_watermark
            in_range = partition_log.log_start_offset <= wanted.offset <= partition_log.log_end_offset
            if in_range and (wanted.offset >= limit or (left <= 0 and not at_least_one)):
                return self._nothing(wanted, partition_log, None)
            room = self._memory.reserve(max(min(wanted.max_bytes, left), 0))
            try:
                to_send = self._ctx.connection.takes_slices and len(self._logs) <= _MOST_FILES
                read = partition_log.read_to_send if to_send else partition_log.read
                found = await read(
                    wanted.offset,
                    room,
                    enough=self._min_bytes,
                    committed_only=self._committed,
                    at_least_one=at_least_one,
                )
            finally:
                self._memory.give(room)
            self._memory.take(found.size)
            self._held += found.size
            self._is_cut = self._is_cut or found.is_cut
        except MainstemError as error:
            code = self._code_of(error, wanted)
            leader = None
            if code in _EPOCH_ERRORS and self._ctx.version >= 16 and partition_log is not None:
                leader = (self._ctx.broker.config.node_id, partition_log.leader_epoch)
            return FetchedPartition(wanted.index, code, current_leader=leader)
        aborted = [(each.producer_id, each.first_offset) for each in found.aborted] if self._committed else None
        return FetchedPartition(
            wanted.index,
            Code.none,
            found.high_watermark,
            found.last_stable_offset,
            found.log_start_offset,
            aborted,
            found.pieces,
        )

    def _code_of(self, error: MainstemError, wanted: FetchPartition) -> Code:
        """The error's code; where the topic was deleted under the read, that is what the client is told."""
        if isinstance(error, StorageError):
            try:
                self._find(wanted)
            except MainstemError as gone:
                return code_of(gone)
        return code_of(error)

    def _find(self, wanted: FetchPartition) -> PartitionLog:
        topics = self._ctx.broker.topics
        name = wanted.topic if isinstance(wanted.topic, str) else topics.by_id(wanted.topic).name
        if self._ctx.broker.authorizer is not None:
            self._ctx.check(READ, TOPIC, name)
        return topics.partition(name, wanted.index)

    def _nothing(
        self, wanted: FetchPartition, partition_log: PartitionLog, diverging: tuple[int, int] | None
    ) -> FetchedPartition:
        partition_log.check_usable()
        return FetchedPartition(
            wanted.index,
            Code.none,
            partition_log.high_watermark,
            partition_log.last_stable_offset,
            partition_log.log_start_offset,
            () if self._committed else None,
            diverging_epoch=diverging,
        )

    async def _wait(self, fetched: Sequence[FetchedPartition], missing_bytes: int) -> None:
        """Until the partitions may have `missing_bytes` more, the time is up or the client has gone.

        What counts is what moved since it was read: an append may have become visible in between. A round of the disk
        may move every partition, so each is counted by itself: never all of them for one.
        """
        seen = [
            (partition_log, found.last_stable_offset if self._committed else found.high_watermark)
            for partition_log, found in zip(self._logs, fetched, strict=True)
        ]

        more = [0] * len(seen)  # bytes, by partition
        missing = missing_bytes

        def look(place: int) -> None:
            nonlocal missing
            if waiting.over.done():
                return
            found = self._bytes_since(*seen[place])
            missing -= found - more[place]
            more[place] = found
            if missing <= 0:
                waiting.end()

        looks = [partial(look, place) for place in range(len(seen))]
        with Waiting(self._ctx.broker, self._ctx.connection, self._deadline) as waiting:
            for (partition_log, _), listener in zip(seen, looks, strict=True):
                partition_log.add_listener(listener)
                listener()
            try:
                await waiting.over
            finally:
                for (partition_log, _), listener in zip(seen, looks, strict=True):
                    partition_log.remove_listener(listener)

    def _bytes_since(self, partition_log: PartitionLog, offset: int) -> int:
        """About how many bytes a reader has more than when it could read up to `offset`; 1 at least if it has more.

        They are taken as twice the partition's mean: waking too early costs one more read, waking too late costs what
        is left of `max_wait`.
        """
        if partition_log.error is not None:
            return 1 << 62
        limit = partition_log.last_stable_offset if self._committed else partition_log.high_watermark
        return partition_log.estimated_bytes(2 * (limit - offset)) if limit > offset else 0


def _diverging_epoch(partition_log: PartitionLog, wanted: FetchPartition) -> tuple[int, int] | None:
    """Where the reader's history parts from ours, if it does: the epoch and the offset where that epoch ended."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition_log.end_offset_for_epoch(wanted.last_fetched_epoch)
    if epoch < 0:
        raise RequestError(Code.offset_out_of_range, f"leader epoch {wanted.last_fetched_epoch} is not known here")
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.offset:
        return (epoch, end_offset)
    return None
