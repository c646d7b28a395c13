"""The group coordinator: keeps groups and offsets in `__consumer_offsets`, and gives members their answers.

The rules are in `classic`, `consumer`, `share`, `streams` and `offsets`, which do no I/O. What members ask goes through
the service of their protocol (`classic.service` and so on), which stores what has changed before it answers. Here is
what all groups have in common: offsets, deletion, the clock, and the start, which rebuilds them from what `storage`
finds.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from mainstem.broker.answers import resolve
from mainstem.broker.groups.classic.group import ClassicGroup
from mainstem.broker.groups.classic.service import ClassicGroups
from mainstem.broker.groups.consumer import records as consumer
from mainstem.broker.groups.consumer.group import ConsumerGroup
from mainstem.broker.groups.consumer.service import ConsumerGroups
from mainstem.broker.groups.deadlines import Deadlines
from mainstem.broker.groups.errors import CoordinatorUnavailable, GroupError, IllegalGeneration, UnknownGroup
from mainstem.broker.groups.membership import Commit, Entry, Group
from mainstem.broker.groups.modern.storing import is_refused
from mainstem.broker.groups.offsets import GroupOffsets
from mainstem.broker.groups.records import (
    GroupKey,
    Key,
    OffsetKey,
    OffsetValue,
    decode_group,
    decode_key,
    decode_offset,
)
from mainstem.broker.groups.settings import GroupSettings
from mainstem.broker.groups.share import records as share
from mainstem.broker.groups.share.group import ShareGroup
from mainstem.broker.groups.share.service import ShareGroups
from mainstem.broker.groups.storage import OFFSETS_CONFIG, OFFSETS_TOPIC, GroupStorage, Undecided
from mainstem.broker.groups.streams import records as streams
from mainstem.broker.groups.streams.group import StreamsGroup
from mainstem.broker.groups.streams.service import StreamsGroups
from mainstem.broker.placement import Stored
from mainstem.broker.replay import report_unreadable
from mainstem.core import CorruptData, MainstemError, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import PartitionLog
from mainstem.wire.errors import Code

if TYPE_CHECKING:
    from mainstem.broker.server import Broker

_AT_ONCE: Final = 500
"""Offsets that are looked at before others have a turn."""

log = get_logger()


class GroupCoordinator:
    """All groups of the broker."""

    def __init__(self, broker: "Broker", logs: Sequence[PartitionLog]) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = GroupOffsets()
        self.storage = GroupStorage(logs, broker.clock)
        self.settings = GroupSettings(broker.topics.facts, broker.config)
        self.classic = ClassicGroups(self, broker)
        self.consumer = ConsumerGroups(self, broker)
        self.share = ShareGroups(self, broker)
        self.streams = StreamsGroups(self, broker)
        self._broker = broker
        self._clock = broker.clock
        self._loop = broker.loop
        self._outdated: dict[str, set[TopicPartition]] = {}
        """At the start: by group, those with offsets of another topic that had this one's name."""
        self._deadlines: Deadlines[str] = Deadlines()
        """When each group is to be looked at."""
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        """When the timer is due."""
        self._closed = False

    @classmethod
    async def open(cls, broker: "Broker") -> "GroupCoordinator":
        """Read what is stored, and start the clock."""
        count = broker.config.offsets_topic_num_partitions
        coordinator = cls(broker, await broker.ensure_internal_topic(OFFSETS_TOPIC, count, OFFSETS_CONFIG))
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
                self.classic.abandon(group)
        self.share.partitions.stop()

    @property
    def is_closed(self) -> bool:
        """True once the broker stops: nothing is promised any more."""
        return self._closed

    def group(self, group_id: str) -> Group:
        """The group, of whatever type; a new one has no members and only keeps offsets."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = self.classic.new(group_id)
        return group

    # --- the clock ----------------------------------------------------------------------------------------------------

    def schedule(self, group: Group) -> None:
        """Look at the group when its next deadline has come; not at one that another has taken the place of."""
        if self.groups.get(group.group_id) is not group:
            return
        deadline = group.next_deadline()
        if deadline is None:
            self._deadlines.discard(group.group_id)
        elif not self._closed:
            self._deadlines.set(group.group_id, deadline)
            if self._timer is None or deadline < self._wakes_at:
                self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._deadlines.next()
        if deadline is not None and not self._closed:
            self._wakes_at = deadline
            self._timer = self._loop.call_later(max(0.0, deadline - self._clock.monotonic()), self.expire)

    def expire(self) -> None:
        """Do what is due in every group."""
        now = self._clock.monotonic()
        try:
            while (group_id := self._deadlines.take_due(now)) is not None:
                group = self.groups.get(group_id)
                if group is not None:
                    self._expire_group(group)
        finally:
            self._set_timer()

    def _expire_group(self, group: Group) -> None:
        try:
            if isinstance(group, ClassicGroup):
                self.classic.expire(group)
            elif isinstance(group, ConsumerGroup):
                self.consumer.expire(group)
            elif isinstance(group, ShareGroup):
                self.share.expire(group)
            elif isinstance(group, StreamsGroup):
                self.streams.expire(group)
        except MainstemError as error:  # this group's record is not taken; the others' are
            log.warning("group_not_stored", group=group.group_id, reason=str(error))
            if isinstance(group, ClassicGroup):
                self.classic.abandon(group)

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
        """Remove offsets that are past their retention, and groups that have nothing left.

        Others have a turn after each group, and within a large one.
        """
        for group_id in list(self.groups):
            group = self.groups.get(group_id)  # others are deleted while one is stored
            if group is None:
                continue
            try:
                await self._expire_offsets_of(group)
            except MainstemError as error:  # this group's log is offline, or somebody deletes the group, too
                log.warning("offsets_not_expired", group=group_id, reason=str(error))
            await asyncio.sleep(0)

    async def _expire_offsets_of(self, group: Group) -> None:
        """Some at a time. Each is looked at in the turn in which its tombstone is queued: no commit comes between."""
        group_id = group.group_id
        partitions = list(self.offsets.of_group(group_id))
        for first in range(0, len(partitions), _AT_ONCE):
            if self.groups.get(group_id) is not group or (group.is_empty and group.is_expected):
                return  # it was deleted, or is of another protocol now, or somebody is about to join and read on
            expired = [each for each in partitions[first : first + _AT_ONCE] if self._is_expired(group, each)]
            if expired:
                await self._remove_offsets(group_id, expired)
            await asyncio.sleep(0)
        if self._is_done(group):
            await self._remove(group, ())

    def _is_done(self, group: Group) -> bool:
        """True if it is still there, has neither members nor offsets, and is about to have none."""
        group_id = group.group_id
        if not group.is_empty or not group.expires or group.is_expected or self.groups.get(group_id) is not group:
            return False
        offsets = self.offsets
        return not (offsets.of_group(group_id) or offsets.pending_of(group_id) or offsets.is_open(group_id))

    def _is_expired(self, group: Group, partition: TopicPartition) -> bool:
        value = self.offsets.get(group.group_id, partition)
        if value is None or self.offsets.is_unstable(group.group_id, partition):
            return False
        if self.offsets.is_queued(group.group_id, partition):
            return False  # the tombstone would come after the new commit
        since = group.expires_offsets_from(partition.topic, value.committed_ms)
        if since is None:
            return False
        retention = self._broker.config.offsets_retention_minutes * 60_000
        return self._clock.now_ms() >= (value.expires_ms if value.expires_ms >= 0 else since + retention)

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

        The group is there at once: what deletes it meanwhile deletes them, too.

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
            resolve(done, None)

        appended = self.storage.store(group_id, _offset_entries(group_id, offsets))
        self.offsets.queue(group_id, offsets)
        if not is_refused(appended):
            self.group(group_id)  # there is one from now on
        appended.add_done_callback(stored)
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
        """Commit offsets in a producer's transaction, which has the group's partition already; done when durable.

        Raises:
            GroupError: the member may not commit.
            InvalidProducerEpoch: a newer producer has written.
        """
        self.check_transactional_commit(group_id, commit)
        number = self.storage.number(group_id)
        at = self.storage.logs[number].log_end_offset
        stored = self.storage.store(
            group_id, _offset_entries(group_id, offsets), producer_id=producer_id, producer_epoch=producer_epoch
        )
        if stored.done():  # it was refused
            return stored
        for partition, value in offsets.items():
            self.offsets.put_pending(number, producer_id, group_id, partition, value, at)
            at += 1
        self.group(group_id)  # there is one from now on
        return stored

    def _committing_group(self, group_id: str, generation: int, unknown_group: Code) -> Group:
        """It becomes one of `groups` only with what it commits: a refused commit leaves none behind."""
        if self._closed:
            raise CoordinatorUnavailable(group_id, "stopping")
        self.storage.check_read(group_id)
        if group_id not in self.groups and generation >= 0:
            if unknown_group is Code.illegal_generation:
                raise IllegalGeneration(group_id, "no such group")
            raise GroupError(unknown_group, group_id, "no such group")
        return self.groups.get(group_id) or self.classic.new(group_id)

    def end_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None:
        """The marker of the producer's transaction is durable in that partition of `__consumer_offsets`."""
        self.offsets.end(partition, producer_id, commit=commit)

    async def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Code]:
        """Forget the group's offsets of partitions it does not read now; durable on return.

        Raises:
            UnknownGroup, GroupNotEmpty: nothing is deleted.
        """
        self.storage.check_read(group_id)
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
            UnknownGroup, GroupNotEmpty, StateUnavailable: nothing is deleted.
        """
        self.storage.check_read(group_id)
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
        """What a crash between the deletion of a topic and that of its offsets has left; or damage, which is mended
        since: there may be another topic of that name.
        """
        for topic in self.offsets.topics():
            # Of one whose records are kept because its metadata is lost, that may be put back.
            if self._broker.topics.get(topic) is None and not self._broker.topics.has_kept(topic):
                await self.forget_topic(topic)
        outdated, self._outdated = self._outdated, {}
        for group_id, partitions in outdated.items():
            newer = {*self.offsets.of_group(group_id), *self.offsets.pending_of(group_id)}
            await self._remove_offsets(group_id, partitions - newer)
        await self.share.forget_missing_topics()

    async def _remove(self, group: Group, partitions: Sequence[TopicPartition]) -> None:
        """The membership's tombstones are the last: while the group is known to a start, it can be deleted again."""
        group.check_empty()
        group_id = group.group_id
        if isinstance(group, ShareGroup):
            self.share.persister.check_read(group_id)
        removed = self._remove_offsets(group_id, partitions, group.keys())
        if is_refused(removed):  # so it is still there
            await removed
        group.delete()
        if self.groups.get(group_id) is group:
            del self.groups[group_id]
        states = self.share.forget_group(group_id) if isinstance(group, ShareGroup) else None
        await removed
        if states is not None:
            await states

    def _remove_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], others: Iterable[Key] = ()
    ) -> "asyncio.Future[int]":
        """Write the tombstones at once, those of other records behind those of offsets; done when they are durable."""
        offsets: list[Key] = [OffsetKey(group_id, partition.topic, partition.partition) for partition in partitions]
        return self.storage.remove(group_id, [*offsets, *others], self._forget)

    def _forget(self, keys: Sequence[Key], at: int) -> None:
        for at_tombstone, key in enumerate(keys, at):
            if isinstance(key, OffsetKey):
                self.offsets.remove(key.group, TopicPartition(key.topic, key.partition), at_tombstone)

    # --- the start ----------------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Rebuild all groups; what was in an open transaction stays pending until its marker is written.

        Only what is left at the end is decoded: most records were replaced by later ones.
        """
        latest, undecided = await self.storage.find()
        for each in undecided:
            self._restore_pending(each)
        members: list[tuple[consumer.Key, consumer.Value]] = []
        shared: list[tuple[share.Key, share.Value]] = []
        applications: list[tuple[streams.Key, streams.Value]] = []
        for number, (key, stored) in enumerate(latest.items(), 1):
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
            try:
                self._restore(key, stored, members, shared, applications)
            except CorruptData as error:
                _leave_out(stored, error)
        self.consumer.restore(members)
        self.share.restore(shared)
        self.streams.restore(applications)
        for group_id in self.offsets.groups():
            self.group(group_id)
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
            self.classic.restore(key.group, decode_group(value))
        elif isinstance(key, OffsetKey):
            partition, offset = TopicPartition(key.topic, key.partition), decode_offset(value)
            if self._is_outdated(partition, offset):
                self._outdated.setdefault(key.group, set()).add(partition)
            else:
                self.offsets.put(key.group, partition, offset, stored[1])
        elif isinstance(key, share.Key):
            shared.append((key, share.decode_value(key, value)))
        elif isinstance(key, streams.Key):
            applications.append((key, streams.decode_value(key, value)))
        elif key is not None:
            members.append((key, consumer.decode_value(key, value)))

    def _restore_pending(self, undecided: Undecided) -> None:
        for data, stored in undecided.records.items():
            value, offset, _ = stored
            try:
                key = decode_key(data)
                if value is None or not isinstance(key, OffsetKey):
                    continue
                partition = TopicPartition(key.topic, key.partition)
                committed = decode_offset(value)
            except CorruptData as error:
                _leave_out(stored, error)
                continue
            if not self._is_outdated(partition, committed):
                number, producer_id = undecided.number, undecided.producer_id
                self.offsets.put_pending(number, producer_id, key.group, partition, committed, offset)

    def _is_outdated(self, partition: TopicPartition, value: OffsetValue) -> bool:
        """Whether a stored offset is one of another topic that had this one's name."""
        topic = self._broker.topics.get(partition.topic)
        return topic is not None and value.topic_id not in (None, topic.topic_id)


def _leave_out(stored: Stored, error: CorruptData) -> None:
    _, offset, partition = stored
    report_unreadable(partition, offset, error, hint="a group or one of its offsets is not known: commit it anew")


def _offset_entries(group_id: str, offsets: Mapping[TopicPartition, OffsetValue]) -> list[Entry]:
    return [(OffsetKey(group_id, partition.topic, partition.partition), value) for partition, value in offsets.items()]


def _fail(future: "asyncio.Future[None]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
