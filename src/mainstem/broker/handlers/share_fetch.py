"""ShareFetch, API 78, versions 1-2 (KIP-932).

Behaviour: gives a member of a share group records that nobody has, as whole batches, with the offsets of those that it
has got. It has them until it acknowledges them, here or by ShareAcknowledge, or until its lock ends
(`groups.share.partition`). Where there are less than `min_bytes`, it waits up to `max_wait` for appends, ends of
transactions and records that others let go. What is acknowledged is done before anything is read. The partitions are
those of the member's share session (`groups.share.sessions`), which ends with the connection. As in Kafka, neither
membership nor assignment is looked at: who has not been assigned a partition that nobody has either gets an error.

2: no more records than asked for, and more time for records (KIP-1206, KIP-1222): then nothing is fetched.
Left out: names of other leaders, since there are none.
"""

import asyncio
from collections.abc import Container, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from typing import Any, Final
from uuid import UUID

from mainstem.broker.groups.share.partition import Limits
from mainstem.broker.groups.share.partitions import NeverAssigned, OpenPartition
from mainstem.broker.groups.share.persister import StateUnavailable
from mainstem.broker.groups.share.reading import fetched, to_send
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.broker.groups.share.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    SessionKey,
    SessionPartition,
    ShareSession,
)
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.share_acknowledge import (
    FIRST_WITH_RENEWALS,
    acknowledge,
    check_readable,
    session_key,
    settled,
)
from mainstem.broker.security.quotas import CONSUMER
from mainstem.broker.waiting import Waiting
from mainstem.core import MainstemError
from mainstem.log import OffsetOutOfRange
from mainstem.wire import share_fetch as wire
from mainstem.wire.errors import Code, RequestError, code_of
from mainstem.wire.share_fetch import SharedPartition

_WHOLE_BATCHES: Final = 0
_RECORD_LIMIT: Final = 1
_LEAST_BYTES: Final = 4_096
"""So many are read at least, to get past batches that are larger than others."""


@handler(wire.API_KEY)
async def share_fetch(request: Any, ctx: RequestContext) -> list[Any]:
    key = session_key(request, ctx)
    share = ctx.broker.groups.share
    renews = ctx.version >= FIRST_WITH_RENEWALS and request.is_renew_ack
    if getattr(request, "share_acquire_mode", _RECORD_LIMIT) not in (_WHOLE_BATCHES, _RECORD_LIMIT):
        raise RequestError(Code.invalid_request, f"share acquire mode {request.share_acquire_mode} is not known")
    if renews:
        _check_renewal(request)
    refused = None
    try:
        session = _session(request, ctx, key)
    except RequestError as error:
        if error.code is not Code.share_session_limit_reached or request.share_session_epoch != INITIAL_EPOCH:
            raise
        refused = str(error)
    if refused is not None:
        seconds = request.max_wait.total_seconds()
        del request
        await _sleep(ctx, seconds)  # clients try again at once
        raise RequestError(Code.share_session_limit_reached, refused)
    outcomes = {}
    if any(partition.acknowledgement_batches for topic in request.topics for partition in topic.partitions):
        outcomes = acknowledge(request, ctx, key, request.topics)
    answers: dict[SessionPartition, SharedPartition] = {}
    with ExitStack() as held:
        if session is None:
            share.close_session(key)
        elif not renews:
            fetching = _ShareFetch(request, ctx, session)
            del request  # who waits holds what it wants, not all that it has said
            held.callback(fetching.let_go)
            answers = await fetching.run()
        told = await settled(outcomes)
    if ctx.meter is not None:  # what was read is locked: it is given, and the client waits afterwards
        ctx.meter.used(CONSUMER, sum(each.size for each in answers.values()))
    for where, each in told.items():
        answer = answers.setdefault(where, SharedPartition(where.partition))
        answer.acknowledge_code, answer.acknowledge_message = each.code, each.message
    topics: dict[UUID, list[SharedPartition]] = {}
    for where, answer in answers.items():
        topics.setdefault(where.topic_id, []).append(answer)
    lock_ms = share.settings(key.group_id).record_lock_duration_ms
    return wire.encode(list(topics.items()), lock_ms=lock_ms)


def _check_renewal(request: Any) -> None:
    """Raise RequestError if it wants to fetch too: the records' new locks could end while it waits."""
    limits = {
        "maxBytes": request.max_bytes,
        "minBytes": request.min_bytes,
        "maxRecords": request.max_records,
        "maxWaitMs": request.max_wait.total_seconds(),
    }
    wrong = [f"{name} must be set to 0, " for name, value in limits.items() if value]
    if wrong:
        raise RequestError(Code.invalid_request, f"{''.join(wrong)}if isRenewAck is true.")


def _session(request: Any, ctx: RequestContext, key: SessionKey) -> ShareSession | None:
    """The session of this request; None: it is the last one."""
    share, epoch = ctx.broker.groups.share, request.share_session_epoch
    wanted = [
        SessionPartition(topic.topic_id or UUID(int=0), partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if epoch == FINAL_EPOCH:
        share.sessions.known(key)
        return None
    if epoch == INITIAL_EPOCH:
        if any(partition.acknowledgement_batches for topic in request.topics for partition in topic.partitions):
            raise RequestError(Code.invalid_request, "a new share session has nothing to acknowledge")
        return share.open_session(key, ctx.connection, wanted)
    forgotten = [
        SessionPartition(topic.topic_id or UUID(int=0), index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    return share.sessions.proceed(key, epoch, wanted, forgotten)


async def _sleep(ctx: RequestContext, seconds: float) -> None:
    """Wait, unless client or broker go."""
    with Waiting(ctx.broker, ctx.connection, ctx.broker.loop.time() + max(seconds, 0)) as waiting:
        await waiting.over


class _ShareFetch:
    """One request on its way: acquire, and while there is too little, wait and look again."""

    def __init__(self, request: Any, ctx: RequestContext, session: ShareSession) -> None:
        self._ctx = ctx
        self._session = session
        self._share = ctx.broker.groups.share
        settings = self._share.settings(session.key.group_id)
        self._committed = settings.isolation_level == "read_committed"
        self._strict = ctx.version >= FIRST_WITH_RENEWALS and request.share_acquire_mode == _RECORD_LIMIT
        self._max_records = request.max_records
        self._batch_size = max(request.batch_size, 1)
        self._max_bytes = min(request.max_bytes, ctx.broker.config.fetch_max_bytes)
        if ctx.meter is not None and (most := ctx.meter.most_bytes()) is not None:
            self._max_bytes = min(self._max_bytes, most)
        self._min_bytes: int = max(min(request.min_bytes, self._max_bytes), 1)
        self._deadline = ctx.broker.loop.time() + request.max_wait.total_seconds()
        self._memory = ctx.broker.fetched_memory
        self._held = 0  # bytes of records that were read
        self._open: dict[SessionPartition, OpenPartition] = {}
        self._failed: set[SessionPartition] = set()
        self._never_assigned = False
        self._at_once = 1  # partitions that are opened together
        self._answers: dict[SessionPartition, SharedPartition] = {}
        self._in_vain: dict[SessionPartition, tuple[int, int]] = {}  # nothing is there from one offset to the other

    async def run(self) -> dict[SessionPartition, SharedPartition]:
        """What the answer says of partitions."""
        if self._max_records <= 0 or self._max_bytes <= 0:
            return {}
        await self._acquire_enough()
        return {where: answer for where, answer in self._answers.items() if self._is_news(where, answer)}

    def let_go(self) -> None:
        """From here on its memory is the answer's."""
        self._memory.give(self._held)

    def _is_news(self, where: SessionPartition, answer: SharedPartition) -> bool:
        had_records, failed = bool(answer.records), answer.code != Code.none
        told = had_records or failed or self._session.owes(where)
        if told:
            self._session.answered(where, had_records=had_records, failed=failed)
        return told

    async def _acquire_enough(self) -> None:
        while True:
            missing = self._take_open()
            over, ready = self._is_over, self._ready()
            first = self._before(missing, ready) if missing else []
            if ready and not first and (over or sum(ready.values()) >= self._min_bytes):
                await self._read(list(ready))
                if any(answer.records for answer in self._answers.values()):
                    return
            elif missing:
                # Some at a time: who waits for records has those of one partition before all are open.
                await self._open_some((first or missing)[: self._at_once])
                self._at_once *= 2
            elif self._never_assigned and not self._open:  # who asks again at once would do so for ever
                await _sleep(self._ctx, self._deadline - self._ctx.broker.loop.time())
                return
            elif over or not self._open:
                return
            else:
                await self._wait()
            if not self._goes_on:
                return

    @property
    def _goes_on(self) -> bool:
        """False: the session is over, and what is acquired for it would be locked for nobody."""
        return self._share.sessions.get(self._session.key) is self._session

    @property
    def _is_over(self) -> bool:
        broker = self._ctx.broker
        return broker.stopping.done() or broker.loop.time() >= self._deadline

    # --- which partitions ---------------------------------------------------------------------------------------------

    def _take_open(self) -> list[SessionPartition]:
        """Take what is open of the session's partitions; those that are still to be opened."""
        missing = []
        for where in self._session.partitions:
            if where in self._failed or (where in self._open and not self._open[where].closed):
                continue
            self._open.pop(where, None)
            try:
                check_readable(self._ctx, where)
            except MainstemError as error:
                self._fail(where, error)
                continue
            found = self._share.partitions.find(self._key(where))
            if found is None:
                missing.append(where)
            else:
                self._open[where] = found
        return missing

    def _before(
        self, missing: Sequence[SessionPartition], ready: Container[SessionPartition]
    ) -> list[SessionPartition]:
        """Those of `missing` whose turn it is before that of any that are `ready`: one that always has records would
        keep them from being opened at all.
        """
        those, due = set(missing), takewhile(lambda where: where not in ready, self._session.partitions)
        return [where for where in due if where in those]

    def _key(self, where: SessionPartition) -> PartitionKey:
        return PartitionKey(self._session.key.group_id, where.topic_id, where.partition)

    async def _open_some(self, missing: Sequence[SessionPartition]) -> None:
        """Each of them is open, or has an error for its answer."""
        opening = (self._share.partitions.get(self._key(where)) for where in missing)
        found = await asyncio.gather(*opening, return_exceptions=True)
        for where, each in zip(missing, found, strict=True):
            if isinstance(each, OpenPartition):
                self._open[where] = each
            elif isinstance(each, MainstemError):
                self._fail(where, each)
            else:
                raise each

    def _fail(self, where: SessionPartition, error: MainstemError) -> None:
        """The answer tells the error; where the topic was deleted meanwhile, that."""
        self._open.pop(where, None)
        try:
            check_readable(self._ctx, where)
        except MainstemError as gone:
            error = gone
        self._failed.add(where)
        self._never_assigned = self._never_assigned or isinstance(error, NeverAssigned)
        # Clients do not know that a coordinator has a part in it.
        code = Code.kafka_storage_error if isinstance(error, StateUnavailable) else code_of(error)
        self._answers[where] = SharedPartition(where.partition, code)

    def _ready(self) -> dict[SessionPartition, int]:
        """Where something can be acquired, and about how many bytes; whose turn it is comes first."""
        limits = self._share.partitions.limits(self._session.key.group_id)
        found = {
            where: self._bytes(where, self._open[where], limits)
            for where in self._session.partitions
            if where in self._open
        }
        return {where: size for where, size in found.items() if size}

    def _bytes(self, where: SessionPartition, found: OpenPartition, limits: Limits) -> int:
        """About how many bytes can be acquired; 0: nothing, or not now."""
        if found.reading or not found.partition.may_acquire(limits):
            return 0
        if found.log.error is not None:
            return self._min_bytes  # the read tells it
        offset, limit = found.partition.fetch_offset(), self._limit(found)
        if offset >= limit or self._in_vain.get(where) == (offset, limit):
            return 0
        return found.log.estimated_bytes(limit - offset)

    def _limit(self, found: OpenPartition) -> int:
        return found.log.last_stable_offset if self._committed else found.log.high_watermark

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _read(self, ready: Sequence[SessionPartition]) -> None:
        left, records = self._max_bytes, self._max_records
        share = max(self._max_bytes // len(ready), 1)
        for where in ready:
            found = self._open[where]
            if found.reading or found.closed:  # meanwhile
                continue
            found.reading = True
            try:
                answer = await self._read_partition(where, found, min(share, left), records)
            except OffsetOutOfRange:  # deleted under the read: the next look begins behind it
                continue
            except MainstemError as error:
                self._fail(where, error)
                continue
            finally:
                found.reading = False
                found.changed()
            self._answers[where] = answer
            left -= answer.size
            records -= sum(last - first + 1 for first, last, _ in answer.acquired)
            if left <= 0 or records <= 0:
                return

    async def _read_partition(
        self, where: SessionPartition, found: OpenPartition, max_bytes: int, most: int
    ) -> SharedPartition:
        partition = found.partition
        partition.move_start(found.log.log_start_offset)
        offset, limit = partition.fetch_offset(), self._limit(found)
        answer = SharedPartition(where.partition)
        if offset >= limit:
            found.log.check_usable()
            return answer
        # Records that are read and not acquired are read in vain.
        wanted = min(max_bytes, 2 * found.log.estimated_bytes(most) + _LEAST_BYTES)
        first = not any(answer.records for answer in self._answers.values())
        room = self._memory.reserve(max(wanted, 0))
        try:
            read = await found.log.read(offset, room, committed_only=self._committed, at_least_one=first)
        finally:
            self._memory.give(room)
        if not self._goes_on or found.closed:
            return answer
        acquired = self._share.partitions.acquire(
            found,
            self._session.key.member_id,
            fetched(read.pieces, read.aborted),
            fetch_offset=offset,
            most=most,
            strict=self._strict,
            batch_size=self._batch_size,
        )
        answer.acquired = [(each.first, each.last, each.delivery_count) for each in acquired]
        answer.records = to_send(read.pieces, acquired)
        if 2 * answer.size < read.size:  # the rest would be held as long
            answer.records = [b"".join(answer.records)] if answer.records else []
        self._memory.take(answer.size)
        self._held += answer.size
        if first and not acquired and partition.fetch_offset() == offset:
            self._in_vain[where] = (offset, limit)
        return answer

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until there may be enough, the time is up or the client has gone."""
        # A round of the disk may move every partition, so each is counted by itself: never all of them for one.
        limits = self._share.partitions.limits(self._session.key.group_id)
        counted = self._ready()
        total = sum(counted.values())

        def look(where: SessionPartition, found: OpenPartition) -> None:
            nonlocal total
            if waiting.over.done():
                return
            size = 0 if found.closed else self._bytes(where, found, limits)
            total += size - counted.get(where, 0)
            counted[where] = size
            if found.closed or total >= self._min_bytes:
                waiting.end()

        looks = [(found, partial(look, where, found)) for where, found in self._open.items()]
        with Waiting(self._ctx.broker, self._ctx.connection, self._deadline) as waiting:
            for found, listener in looks:
                found.add_listener(listener)
                found.log.add_listener(listener)
                listener()
            try:
                await waiting.over
            finally:
                for found, listener in looks:
                    found.remove_listener(listener)
                    found.log.remove_listener(listener)
