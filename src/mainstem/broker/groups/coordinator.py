"""The group coordinator: keeps groups and offsets in `__consumer_offsets`, and gives members their answers.

The rules are in `classic`, `consumer`, `share`, `streams` and `offsets`, which do no I/O. This service stores what they
return before it answers, hands them the clock's deadlines, and rebuilds them by reading `__consumer_offsets` from the
start. What groups of the consumer protocol are asked goes through `consumer.service`, share groups have
`share.service`, streams groups `streams.service`.

A commit inside a transaction is a transactional batch of the producer in `__consumer_offsets`. The marker that ends
the transaction there makes it visible or drops it, like any record.
"""

import asyncio
import heapq
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from mainstem.broker.answers import then
from mainstem.broker.groups.classic.group import ClassicGroup, Step
from mainstem.broker.groups.classic.messages import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from mainstem.broker.groups.config import ClassicGroupConfig
from mainstem.broker.groups.consumer import records as consumer
from mainstem.broker.groups.consumer.group import ConsumerGroup
from mainstem.broker.groups.consumer.service import ConsumerGroups
from mainstem.broker.groups.errors import GroupError, IllegalGeneration, UnknownGroup, UnknownMember
from mainstem.broker.groups.membership import Commit, Entry, Group
from mainstem.broker.groups.offsets import GroupOffsets
from mainstem.broker.groups.records import (
    KEY_VERSIONS,
    GroupKey,
    OffsetKey,
    OffsetValue,
    decode_group,
    decode_key,
    decode_offset,
    encode_key,
    encode_value,
)
from mainstem.broker.groups.settings import GroupSettings
from mainstem.broker.groups.share import records as share
from mainstem.broker.groups.share.group import ShareGroup
from mainstem.broker.groups.share.service import ShareGroups
from mainstem.broker.groups.streams import records as streams
from mainstem.broker.groups.streams.group import StreamsGroup
from mainstem.broker.groups.streams.service import StreamsGroups
from mainstem.broker.placement import Stored, Unread, place_of, put_in_place
from mainstem.broker.replay import replay, report_unreadable
from mainstem.core import CorruptData, MainstemError, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import AppendResult, BatchTooLarge, PartitionLog
from mainstem.log.errors import StorageError
from mainstem.records import Record, build_batch
from mainstem.records.batch import MAX_SEQUENCE
from mainstem.wire.errors import Code

if TYPE_CHECKING:
    from mainstem.broker.server import Broker

OFFSETS_TOPIC: Final = "__consumer_offsets"
_OFFSETS_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "4194304",  # all but the last are compacted, so this is what a start reads at most in vain
    "max.message.bytes": "16777216",  # a group's record holds every member's subscription and assignment
}

_OFFSETS: Final = 2**63
"""More than there can be."""

T = TypeVar("T")

log = get_logger()


class CoordinatorUnavailable(GroupError):
    """The coordinator could not store what it was about to answer: its log is offline."""

    def __init__(self, group_id: str, reason: BaseException | str) -> None:
        super().__init__(Code.coordinator_not_available, group_id, f"not stored: {reason}")


class RecordTooLarge(GroupError):
    """What was to be stored is more than `__consumer_offsets` takes at once."""

    def __init__(self, group_id: str, reason: BatchTooLarge) -> None:
        super().__init__(Code.message_too_large, group_id, str(reason))


class NameTooLong(GroupError):
    """The id of a group or member has more bytes than the length in a key can say; requests allow it."""

    def __init__(self, group_id: str) -> None:
        super().__init__(Code.invalid_request, group_id[:100], "names have at most 32,767 bytes")


class GroupCoordinator:
    """All groups of the broker."""

    def __init__(self, broker: "Broker", logs: Sequence[PartitionLog]) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = GroupOffsets()
        config = broker.config
        self.classic_config = ClassicGroupConfig(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
        )
        self._broker = broker
        self._clock = broker.clock
        self.settings = GroupSettings(broker.topics.facts, config)
        self.consumer = ConsumerGroups(self, broker)
        self.share = ShareGroups(self, broker)
        self.streams = StreamsGroups(self, broker)
        self._loop = asyncio.get_running_loop()
        self._logs = list(logs)
        self._deadlines: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}  # group: the earliest of its entries in the heap
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._unread = Unread(len(self._logs))
        """Partitions of `__consumer_offsets` that the start found damaged: what their groups have is not known."""
        self._left: dict[bytes, int] = {}
        """Keys of committed offsets, and the partition where an open transaction held them back from being moved."""

    @classmethod
    async def open(cls, broker: "Broker") -> "GroupCoordinator":
        """Read what is stored, and start the clock."""
        count = broker.config.offsets_topic_num_partitions
        coordinator = cls(broker, await broker.ensure_internal_topic(OFFSETS_TOPIC, count, _OFFSETS_CONFIG))
        await coordinator._recover()
        await coordinator.share.open()
        await coordinator._forget_missing_topics()
        broker.stopping.add_done_callback(lambda _: coordinator._give_up())
        coordinator._expire_offsets_later()
        return coordinator

    async def close(self) -> None:
        """Answer whoever still waits, and stop the clock."""
        self._give_up()

    def _give_up(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                self.answer(group.abandon())
        self.share.partitions.stop()

    @property
    def is_closed(self) -> bool:
        """True once the broker stops: nothing is promised any more."""
        return self._closed

    def partition_for(self, group_id: str) -> TopicPartition:
        """The partition of `__consumer_offsets` that keeps the group."""
        return TopicPartition(OFFSETS_TOPIC, self._number(group_id))

    def _number(self, group_id: str) -> int:
        return place_of(group_id, len(self._logs))

    @property
    def knows_all(self) -> bool:
        """False where groups may be missing: what some have could not be read."""
        return not self._unread

    def is_read(self, group_id: str) -> bool:
        """False where what the group has could not be read."""
        return self._unread.reason(group_id) is None

    def check_read(self, group_id: str) -> None:
        """Raise where what the group has could not be read: that it had committed nothing would be a lie.

        Raises:
            CoordinatorUnavailable: its partition of `__consumer_offsets` is damaged. It waits for the repair, and the
                start after that; groups of other partitions do not.
        """
        if (error := self._unread.reason(group_id)) is not None:
            raise CoordinatorUnavailable(group_id, error)

    # --- membership ---------------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest) -> "asyncio.Future[JoinAnswer]":
        """A member enters the group; answered when the next generation is complete."""
        future: asyncio.Future[JoinAnswer] = self._loop.create_future()
        config = self.classic_config
        if not group_id:
            future.set_result(JoinAnswer(error=Code.invalid_group_id, member_id=request.member_id))
        elif not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            future.set_result(JoinAnswer(error=Code.invalid_session_timeout, member_id=request.member_id))
        elif self._closed or not self.is_read(group_id):
            future.set_result(JoinAnswer(error=Code.coordinator_not_available, member_id=request.member_id))
        elif self.consumer.has_members(group_id):
            return self.consumer.join(group_id, request)
        elif request.member_id and not isinstance(self.groups.get(group_id), ClassicGroup):
            future.set_result(JoinAnswer(error=Code.unknown_member_id, member_id=request.member_id))
        else:
            try:
                group = self._classic_group(group_id)
            except GroupError as error:
                future.set_result(JoinAnswer(error=error.code, member_id=request.member_id))
            else:
                self._take(group, group.join(request, lambda answer: _resolve(future, answer)))
        return future

    def sync(self, group_id: str, request: SyncRequest) -> "asyncio.Future[SyncAnswer]":
        """A member's part of the assignment; answered when the leader's assignment is durable."""
        future: asyncio.Future[SyncAnswer] = self._loop.create_future()
        group = self.groups.get(group_id)
        if not group_id or self._closed or not self.is_read(group_id):
            code = Code.coordinator_not_available if group_id else Code.invalid_group_id
            future.set_result(SyncAnswer(error=code))
        elif isinstance(group, ConsumerGroup):
            return self.consumer.sync(group, request)
        elif not isinstance(group, ClassicGroup):
            future.set_result(SyncAnswer(error=Code.unknown_member_id))
        else:
            self._take(group, group.sync(request, lambda answer: _resolve(future, answer)))
        return future

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """The member lives.

        Raises:
            GroupError: it is not a member (any more), or is to join again.
        """
        group = self._known(group_id)
        if isinstance(group, ConsumerGroup):
            self.consumer.classic_heartbeat(group, member_id, instance_id, generation)
        else:
            group.heartbeat(member_id, instance_id, generation)

    def leave(self, group_id: str, members: Sequence[tuple[str, str | None]]) -> "asyncio.Future[list[Code]]":
        """(member id, instance id) of each who leaves; a code for each, once what changed is durable."""
        group = self._known(group_id)
        if isinstance(group, ConsumerGroup):
            return self.consumer.leave(group, members)
        codes, step = group.leave(members)
        future: asyncio.Future[list[Code]] = self._loop.create_future()
        self._take(group, step, lambda: _resolve(future, codes))
        return future

    def _known(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        if not group_id:
            raise GroupError(Code.invalid_group_id, group_id, "a group id is not empty")
        if self._closed:
            raise CoordinatorUnavailable(group_id, "stopping")
        self.check_read(group_id)
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup | ConsumerGroup):
            raise UnknownMember(group_id, "no such group")
        return group

    def _group(self, group_id: str) -> Group:
        """The group, of whatever type; a new one has no members and only keeps offsets."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id, self._clock, self.classic_config)
        return group

    def _classic_group(self, group_id: str) -> ClassicGroup:
        """The group, for somebody who joins by the classic protocol: of another protocol there is an empty one at most.

        Raises:
            GroupError: the group has members of a protocol that this one does not mix with, or nothing can be stored.
        """
        group = self._group(group_id)
        if isinstance(group, ClassicGroup):
            return group
        if not isinstance(group, ConsumerGroup | StreamsGroup) or not group.is_empty:
            raise GroupError(Code.inconsistent_group_protocol, group_id, f"it is a group of the {group.kind} protocol")
        forgotten = self.store(group_id, group.tombstones())
        if forgotten.done() and (error := forgotten.exception()) is not None:
            raise CoordinatorUnavailable(group_id, error)
        classic = self.groups[group_id] = ClassicGroup(group_id, self._clock, self.classic_config)
        return classic

    def _take(self, group: ClassicGroup, step: Step, finally_: Callable[[], None] | None = None) -> None:
        """Store a step's record, give its answers, go on when the record is durable.

        Answers that need the record wait in the group for `after_stored`; those in the step do not.
        """
        stored = None if step.record is None else self.store(group.group_id, [(GroupKey(group.group_id), step.record)])
        self.answer(step)
        if stored is None:
            if finally_ is not None:
                finally_()
        else:
            stored.add_done_callback(lambda future: self._on_stored(group, step, future, finally_))
        if stored is None or step.after_stored is None:  # what follows sets the deadlines that count
            self.schedule(group)

    def _on_stored(
        self, group: ClassicGroup, step: Step, future: "asyncio.Future[int]", finally_: Callable[[], None] | None
    ) -> None:
        if future.cancelled() or future.exception() is not None:
            error = CoordinatorUnavailable(group.group_id, "") if future.cancelled() else future.exception()
            log.error("group_not_stored", group=group.group_id, reason=str(error))
            self.answer(group.abandon(error.code if isinstance(error, GroupError) else Code.coordinator_not_available))
            self.schedule(group)
        elif step.after_stored is not None:
            self._take(group, step.after_stored())
        if finally_ is not None:
            finally_()

    @staticmethod
    def answer(step: Step) -> None:
        """Give members the answers that a step has for them."""
        for answer in step.answers:
            answer()

    # --- the clock ----------------------------------------------------------------------------------------------------

    def schedule(self, group: Group) -> None:
        """Look at the group when its next deadline has come."""
        deadline = group.next_deadline()
        if deadline is None or self._closed or deadline >= self._due.get(group.group_id, float("inf")):
            return
        self._due[group.group_id] = deadline
        heapq.heappush(self._deadlines, (deadline, group.group_id))
        if self._deadlines[0][0] == deadline:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deadlines and not self._closed:
            delay = max(0.0, self._deadlines[0][0] - self._clock.monotonic())
            self._timer = self._loop.call_later(delay, self.expire)

    def expire(self) -> None:
        """Do what is due in every group."""
        now = self._clock.monotonic()
        try:
            while self._deadlines and self._deadlines[0][0] <= now:
                deadline, group_id = heapq.heappop(self._deadlines)
                if self._due.get(group_id) != deadline:
                    continue  # an earlier entry took its place
                del self._due[group_id]
                group = self.groups.get(group_id)
                if group is not None:
                    self._expire_group(group)
        finally:
            self._set_timer()

    def _expire_group(self, group: Group) -> None:
        try:
            if isinstance(group, ClassicGroup):
                self._take(group, group.expire())
            elif isinstance(group, ConsumerGroup):
                self.consumer.expire(group)
            elif isinstance(group, ShareGroup):
                self.share.expire(group)
            elif isinstance(group, StreamsGroup):
                self.streams.expire(group)
        except MainstemError as error:  # this group's record is not taken; the others' are
            log.warning("group_not_stored", group=group.group_id, reason=str(error))
            if isinstance(group, ClassicGroup):
                self.answer(group.abandon())

    def _expire_offsets_later(self) -> None:
        interval = self._broker.config.offsets_retention_check_interval_ms / 1000

        async def run() -> None:
            while not self._closed:
                await asyncio.sleep(interval)
                try:
                    await self.expire_offsets()
                except Exception:  # the next look may find what this one stumbled over gone
                    log.exception("offsets_not_expired")

        self._broker.spawn(run(), name="expire offsets")

    async def expire_offsets(self) -> None:
        """Remove offsets that are past their retention, and groups that have nothing left."""
        for group_id in list(self.groups):
            group = self.groups.get(group_id)  # others are deleted while one is stored
            if group is None:
                continue
            try:
                await self._expire_offsets_of(group)
            except MainstemError as error:  # this group's log is offline, or somebody deletes the group, too
                log.warning("offsets_not_expired", group=group_id, reason=str(error))

    async def _expire_offsets_of(self, group: Group) -> None:
        group_id = group.group_id
        expired = [partition for partition, _ in self._expired(group)]
        if group.is_empty and group.expires and len(expired) == len(self.offsets.of_group(group_id)):
            if not self.offsets.is_open(group_id) and not group.is_expected:
                await self._remove(group, expired)
        elif expired:
            await self._remove_offsets(group_id, expired)

    def _expired(self, group: Group) -> Iterator[tuple[TopicPartition, OffsetValue]]:
        now, retention = self._clock.now_ms(), self._broker.config.offsets_retention_minutes * 60_000
        for partition, committed in list(self.offsets.of_group(group.group_id).items()):
            value = committed.value
            since = group.expires_offsets_from(partition.topic, value.committed_ms)
            if since is None or self.offsets.is_unstable(group.group_id, partition):
                continue
            if self.offsets.is_queued(group.group_id, partition):
                continue  # the tombstone would come after the new commit
            if now >= (value.expires_ms if value.expires_ms >= 0 else since + retention):
                yield partition, value

    # --- offsets ------------------------------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        commit: Commit,
        offsets: Mapping[TopicPartition, OffsetValue],
        *,
        unknown_group: Code = Code.illegal_generation,
    ) -> "asyncio.Future[None]":
        """Commit offsets; done when they are durable, and visible from then on.

        Raises:
            GroupError: the member may not commit; `unknown_group` is said to a member of a group that is not there.
        """
        self._committing_group(group_id, commit.generation, unknown_group).check_commit(commit)
        done: asyncio.Future[None] = self._loop.create_future()

        def stored(future: "asyncio.Future[int]") -> None:
            self.offsets.unqueue(group_id, offsets)
            if future.cancelled():
                _fail(done, CoordinatorUnavailable(group_id, ""))
                return
            if (error := future.exception()) is not None:
                _fail(done, error)
                return
            for at, (partition, value) in enumerate(offsets.items(), future.result()):
                self.offsets.put(group_id, partition, value, at)
            self._group(group_id)  # a look for groups without offsets may have removed it meanwhile
            _resolve(done, None)

        if offsets:
            appended = self.store(group_id, _offset_entries(group_id, offsets))
            self.offsets.queue(group_id, offsets)
            appended.add_done_callback(stored)
        else:
            done.set_result(None)
        return done

    def check_transactional_commit(self, group_id: str, commit: Commit) -> None:
        """Raise GroupError unless the member may commit in a transaction."""
        self._committing_group(group_id, commit.generation, Code.illegal_generation).check_commit(commit)

    def commit_transactional(
        self,
        group_id: str,
        commit: Commit,
        producer_id: int,
        producer_epoch: int,
        offsets: Mapping[TopicPartition, OffsetValue],
    ) -> "asyncio.Future[int]":
        """Commit offsets in a producer's transaction, which already has `partition_for(group_id)`; done when durable.

        Raises:
            GroupError: the member may not commit.
            InvalidProducerEpoch: a newer producer has written.
        """
        self.check_transactional_commit(group_id, commit)
        number = self._number(group_id)
        at = self._logs[number].log_end_offset
        stored = self.store(
            group_id, _offset_entries(group_id, offsets), producer_id=producer_id, producer_epoch=producer_epoch
        )
        if stored.done():  # it was refused
            return stored
        for partition, value in offsets.items():
            self.offsets.put_pending(number, producer_id, group_id, partition, value, at)
            at += 1
        return stored

    def _committing_group(self, group_id: str, generation: int, unknown_group: Code) -> Group:
        if self._closed:
            raise CoordinatorUnavailable(group_id, "stopping")
        self.check_read(group_id)
        if group_id not in self.groups and generation >= 0:
            if unknown_group is Code.illegal_generation:
                raise IllegalGeneration(group_id, "no such group")
            raise GroupError(unknown_group, group_id, "no such group")
        return self._group(group_id)

    def end_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None:
        """The marker of the producer's transaction is durable in that partition of `__consumer_offsets`."""
        for group_id in self.offsets.end(partition, producer_id, commit=commit):
            self._group(group_id)

    async def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Code]:
        """Forget the group's offsets of partitions it does not read now; durable on return.

        Raises:
            UnknownGroup, GroupNotEmpty: nothing is deleted.
        """
        self.check_read(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise UnknownGroup(group_id)
        group.check_may_delete_offsets()
        codes = {
            partition: Code.group_subscribed_to_topic if group.is_subscribed_to(partition.topic) else Code.none
            for partition in partitions
        }
        pending = self.offsets.pending_of(group_id)
        doomed = [
            partition
            for partition, code in codes.items()
            if code is Code.none and (partition in pending or self.offsets.get(group_id, partition) is not None)
        ]
        if doomed:
            await self._remove_offsets(group_id, doomed)
        return codes

    async def delete_group(self, group_id: str) -> None:
        """Forget a group without members, and its offsets; durable on return.

        Raises:
            UnknownGroup, GroupNotEmpty: nothing is deleted.
        """
        self.check_read(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise UnknownGroup(group_id)
        await self._remove(group, list({*self.offsets.of_group(group_id), *self.offsets.pending_of(group_id)}))

    async def forget_topic(self, topic: str) -> None:
        """The topic is deleted: so are all offsets in it, durably on return. A new topic of that name starts without.
        So is what share groups keep of it.

        All tombstones are written in one turn of the loop: a new topic of that name has offsets of its own soon.
        """
        doomed: dict[str, list[TopicPartition]] = {}
        for group_id, partition in self.offsets.of_topic(topic):
            doomed.setdefault(group_id, []).append(partition)
        await asyncio.gather(
            self.share.forget_missing_topics(),
            *[self._remove_offsets(group_id, partitions) for group_id, partitions in doomed.items()],
        )

    async def _forget_missing_topics(self) -> None:
        """What a crash between the deletion of a topic and that of its offsets has left."""
        named = {partition.topic for group_id in self.offsets.groups() for partition in self.offsets.of_group(group_id)}
        for topic in named:
            if self._broker.topics.get(topic) is None:
                await self.forget_topic(topic)
        await self.share.forget_missing_topics()

    async def _remove(self, group: Group, partitions: Sequence[TopicPartition]) -> None:
        group.delete()
        group_id = group.group_id
        entries: list[Entry] = [
            (OffsetKey(group_id, partition.topic, partition.partition), None) for partition in partitions
        ]
        entries += group.tombstones()
        if self.groups.get(group_id) is group:
            del self.groups[group_id]
        states = self.share.forget_group(group_id) if isinstance(group, ShareGroup) else None
        if entries:
            self._forget(group_id, partitions, await self.store(group_id, entries))
        if states is not None:
            await states

    def _remove_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> "asyncio.Future[None]":
        """Write the tombstones at once; done when they are durable."""
        entries: list[Entry] = [
            (OffsetKey(group_id, partition.topic, partition.partition), None) for partition in partitions
        ]
        return then(self.store(group_id, entries), lambda at: self._forget(group_id, partitions, at))

    def _forget(self, group_id: str, partitions: Sequence[TopicPartition], at: int) -> None:
        for at_tombstone, partition in enumerate(partitions, at):
            self.offsets.remove(group_id, partition, at_tombstone)

    # --- the log ------------------------------------------------------------------------------------------------------

    def store(
        self,
        group_id: str,
        entries: Iterable[Entry],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> "asyncio.Future[int]":
        """Append records of one group; the future gives the first one's offset when they are durable.

        It fails with CoordinatorUnavailable if they cannot be stored, with RecordTooLarge or NameTooLong if they never
        can.

        Raises:
            InvalidProducerEpoch: a newer producer has written.
        """
        number, now = self._number(group_id), self._clock.now_ms()
        done: asyncio.Future[int] = self._loop.create_future()
        try:
            records = [
                Record(0, now, encode_key(key), None if value is None else encode_value(value))
                for key, value in entries
            ]
        except struct.error:
            done.set_exception(NameTooLong(group_id))
            return done
        sequence = -1 if producer_id < 0 else self._next_sequence(number, producer_id, producer_epoch)
        batch = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=producer_id >= 0,
        )
        try:
            appended = self._logs[number].append(batch)
        except StorageError as error:
            done.set_exception(CoordinatorUnavailable(group_id, error))
            return done
        except BatchTooLarge as error:
            done.set_exception(RecordTooLarge(group_id, error))
            return done

        def durable(future: "asyncio.Future[AppendResult]") -> None:
            if future.cancelled():
                done.cancel()
            elif (error := future.exception()) is not None:
                _fail(done, CoordinatorUnavailable(group_id, error))
            else:
                _resolve(done, future.result().base_offset)
                self._delete_left(records)

        appended.add_done_callback(durable)
        return done

    def _delete_left(self, records: Sequence[Record]) -> None:
        """What is deleted where it belongs is deleted where it was left, too: it would be back at the first start after
        compaction has taken the tombstone. A start that finds that one still there does the same.
        """
        for record in records if self._left else ():
            if record.value is None and (number := self._left.pop(record.key or b"", None)) is not None:
                try:
                    appended = self._logs[number].append(build_batch([record]))
                except StorageError as error:
                    log.warning("offset_left_elsewhere", partition=number, reason=str(error))
                else:
                    appended.add_done_callback(_note_failure)

    def _next_sequence(self, number: int, producer_id: int, producer_epoch: int) -> int:
        """The log checks sequences of every producer, so commits inside a transaction have them too.

        It remembers them as well: also of what is queued, and as long as there is something to check.
        """
        known = self._logs[number].producer(producer_id)
        if known is None or known.producer_epoch != producer_epoch:
            return 0
        return 0 if known.last_sequence == MAX_SEQUENCE else known.last_sequence + 1

    async def _recover(self) -> None:
        """Read every record; what was in an open transaction stays pending until its marker is written.

        Only what is left at the end is decoded: most records were replaced by later ones.
        """
        read: dict[int, dict[bytes, Stored]] = {}  # of each partition, by key: the last record
        pending: dict[int, dict[int, dict[bytes, Stored]]] = {}  # the same of each open transaction, by producer
        for number, partition_log in enumerate(self._logs):
            try:
                read[number], pending[number] = await _read(partition_log)
            except StorageError as error:
                if partition_log.error is None:  # no damage: the machine is short of something
                    raise
                self._unread.errors[number] = error
                facts = {"partition": str(partition_log.topic_partition), "hint": error.hint}
                log.error("groups_not_read", **facts, error=str(error))  # noqa: TRY400 - damage is told in one line
                continue
        undecided = {key for found in pending.values() for entries in found.values() for key in entries}
        latest = await put_in_place(self._logs, read, self._unread, KEY_VERSIONS, self._clock.now_ms(), left=undecided)
        for number, found in pending.items():
            for producer_id, entries in found.items():
                self._restore_pending(number, producer_id, entries, latest)
        members: list[tuple[consumer.Key, consumer.Value]] = []
        shared: list[tuple[share.Key, share.Value]] = []
        applications: list[tuple[streams.Key, streams.Value]] = []
        for key, stored in latest.items():
            try:
                self._restore(key, stored, members, shared, applications)
            except CorruptData as error:
                _leave_out(stored, error)
        self.consumer.restore(members)
        self.share.restore(shared)
        self.streams.restore(applications)
        for group_id in self.offsets.groups():
            self._group(group_id)
        for group in self.groups.values():
            self.schedule(group)
        log.info("groups_recovered", groups=len(self.groups))

    def _restore(
        self,
        data: bytes,
        stored: Stored,
        members: list[tuple[consumer.Key, consumer.Value]],
        shared: list[tuple[share.Key, share.Value]],
        applications: list[tuple[streams.Key, streams.Value]],
    ) -> None:
        value = stored[0]
        if value is None:
            return
        key = decode_key(data)
        if isinstance(key, GroupKey):
            self.groups[key.group] = ClassicGroup.restore(
                key.group, decode_group(value), self._clock, self.classic_config
            )
        elif isinstance(key, OffsetKey):
            partition = TopicPartition(key.topic, key.partition)
            self.offsets.put(key.group, partition, decode_offset(value), self._rank(key.group, stored))
        elif isinstance(key, share.Key):
            shared.append((key, share.decode_value(key, value)))
        elif isinstance(key, streams.Key):
            applications.append((key, streams.decode_value(key, value)))
        elif key is not None:
            members.append((key, consumer.decode_value(key, value)))

    def _restore_pending(
        self,
        number: int,
        producer_id: int,
        entries: Mapping[bytes, Stored],
        latest: Mapping[bytes, Stored],
    ) -> None:
        for data, stored in entries.items():
            value, at, where = stored
            replaced, replaced_at, place = latest.get(data, (b"", -1, where))
            try:
                key = decode_key(data)
                if value is None or not isinstance(key, OffsetKey):
                    continue
                offset = decode_offset(value)
            except CorruptData as error:
                _leave_out(stored, error)
                continue
            if not self.is_read(key.group):
                continue
            if where != self.partition_for(key.group):
                self._left[data] = number
            if replaced is None and (place != where or replaced_at > at):  # a tombstone came after it
                self._delete_left([Record(0, self._clock.now_ms(), data, None)])
                continue
            partition = TopicPartition(key.topic, key.partition)
            self.offsets.put_pending(number, producer_id, key.group, partition, offset, self._rank(key.group, stored))

    def _rank(self, group_id: str, stored: Stored) -> int:
        """The offset of a record, by which the later of two counts; one that lies elsewhere is older than all that do
        not.
        """
        return stored[1] if stored[2] == self.partition_for(group_id) else stored[1] - _OFFSETS


def _keep_later(latest: dict[bytes, Stored], ended: Mapping[bytes, Stored]) -> None:
    """Of a committed transaction's records and the plain ones, the later one counts."""
    for key, stored in ended.items():
        if key not in latest or latest[key][1] < stored[1]:
            latest[key] = stored


async def _read(partition_log: PartitionLog) -> tuple[dict[bytes, Stored], dict[int, dict[bytes, Stored]]]:
    """The last record of each key; and, by producer, those in transactions that are open.

    Raises:
        StorageError: the partition is damaged, or the machine is short of something.
    """
    latest: dict[bytes, Stored] = {}
    pending: dict[int, dict[bytes, Stored]] = {}
    async for header, marker, records in replay(partition_log):
        if marker is not None:
            ended = pending.pop(marker.producer_id, {})
            _keep_later(latest, ended if marker.commit else {})
            continue
        into = latest if header.producer_id < 0 else pending.setdefault(header.producer_id, {})
        for record in records:
            into[record.key or b""] = (record.value, record.offset, partition_log.topic_partition)
    return latest, pending


def _leave_out(stored: Stored, error: CorruptData) -> None:
    _, offset, partition = stored
    report_unreadable(partition, offset, error, hint="a group or one of its offsets is not known: commit it anew")


def _offset_entries(group_id: str, offsets: Mapping[TopicPartition, OffsetValue]) -> list[Entry]:
    return [(OffsetKey(group_id, partition.topic, partition.partition), value) for partition, value in offsets.items()]


def _note_failure(future: "asyncio.Future[AppendResult]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("offset_left_elsewhere", reason=str(error))


def _resolve(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():  # whoever waited may be gone
        future.set_result(value)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
