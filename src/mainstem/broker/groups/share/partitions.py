"""Share partitions at work: what members get, acknowledge and let go, and the clock's deadlines.

The rules are in `partition`, which does no I/O. A share partition is opened by the first fetch, from what `persister`
keeps of it; where it begins for the first time is kept before anybody gets a record. Memory changes at once, an answer
waits until the change is durable. If it cannot be stored, or what is kept is replaced by others, the share partition is
closed, and whoever fetches opens it anew. So it is when no member of the group has a session.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from mainstem.broker.errors import UnknownTopicOrPartition
from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.share.partition import Acknowledged, AckType, Acquired, Fetched, Limits, SharePartition
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.broker.groups.share.state import Change, ShareState
from mainstem.core.logging import get_logger
from mainstem.log import PartitionLog
from mainstem.wire.errors import Code, RequestError

if TYPE_CHECKING:
    from mainstem.broker.groups.share.service import ShareGroups
    from mainstem.broker.server import Broker

log = get_logger()


class NeverAssigned(GroupError):
    """There is no such share group, or none of its members has ever been told to read the partition."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.unknown_server_error, group_id, message)  # as Kafka; clients go on after it


class OpenPartition:
    """A share partition that members read, and who waits for a change of it."""

    def __init__(self, key: PartitionKey, partition_log: PartitionLog, state: ShareState) -> None:
        self.key = key
        self.log = partition_log
        self.state_epoch = state.state_epoch
        self.partition = SharePartition(state.start_offset, state.batches)
        self.partition.move_start(partition_log.log_start_offset)
        self.reading = False
        """Somebody reads it: another one would find the same records."""
        self.closed = False
        self.timer: asyncio.TimerHandle | None = None
        self.due = 0.0
        """When the timer goes off; monotonic seconds."""
        self._listeners: dict[Callable[[], None], None] = {}

    def add_listener(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever there may be something to acquire that was not there before."""
        self._listeners[callback] = None

    def remove_listener(self, callback: Callable[[], None]) -> None:
        """Call it no more."""
        self._listeners.pop(callback, None)

    def changed(self) -> None:
        """Tell who waits."""
        for callback in tuple(self._listeners):
            callback()


class SharePartitions:
    """All that are open."""

    def __init__(self, groups: "ShareGroups", broker: "Broker") -> None:
        self._groups = groups
        self._broker = broker
        self._clock = broker.clock
        self._open: dict[str, dict[PartitionKey, OpenPartition]] = {}  # by group
        self._opening: dict[PartitionKey, asyncio.Future[OpenPartition]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def find(self, key: PartitionKey) -> OpenPartition | None:
        """The share partition, if it is open."""
        return self._open.get(key.group, {}).get(key)

    def limits(self, group_id: str) -> Limits:
        """The group's settings, as they are now."""
        config = self._groups.settings(group_id)
        return Limits(
            config.delivery_count_limit, config.partition_max_record_locks, config.record_lock_duration_ms / 1000
        )

    # --- open and closed ----------------------------------------------------------------------------------------------

    async def get(self, key: PartitionKey) -> OpenPartition:
        """The share partition, which is opened where it is not yet.

        Raises:
            UnknownTopicId, UnknownTopicOrPartition: there is no such partition.
            NeverAssigned: no member should read it.
            StorageError, GroupError: where it begins could not be found or stored.
        """
        found = self.find(key)
        if found is not None:
            return found
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = self._broker.loop.create_future()
            self._broker.spawn(self._open_for_all(key, opening), name="open a share partition")
        return await asyncio.shield(opening)

    async def _open_for_all(self, key: PartitionKey, opening: "asyncio.Future[OpenPartition]") -> None:
        try:
            found = await self._load(key)
        except Exception as error:
            opening.set_exception(error)
            opening.exception()  # who asked may be gone
        except BaseException:
            opening.cancel()
            raise
        else:
            self._open.setdefault(key.group, {})[key] = found
            opening.set_result(found)
        finally:
            del self._opening[key]

    async def _load(self, key: PartitionKey) -> OpenPartition:
        """From what is kept. Nothing may come between the last look at that and the end."""
        persister = self._groups.persister
        while True:
            state = await persister.read(key)
            partition_log = self._log(key)
            if state is not None and state.start_offset >= 0:
                return OpenPartition(key, partition_log, state)
            if not self._is_tracked(key):
                raise NeverAssigned(
                    key.group, f"no member has been assigned partition {key.partition} of topic {key.topic_id}"
                )
            offset = await self._first_offset(key, partition_log)
            # Else it was set or deleted meanwhile, or is being: this must not replace what is told to be kept.
            if await persister.read(key) is state and self._is_tracked(key):
                epoch = 0 if state is None else state.state_epoch
                first = ShareState(start_offset=offset, state_epoch=epoch, leader_epoch=partition_log.leader_epoch)
                await persister.set(key, first)

    def _log(self, key: PartitionKey) -> PartitionLog:
        logs = self._broker.topics.by_id(key.topic_id).logs
        if not 0 <= key.partition < len(logs):
            raise UnknownTopicOrPartition(f"there is no partition {key.partition} of topic {key.topic_id}")
        logs[key.partition].check_usable()
        return logs[key.partition]

    def _is_tracked(self, key: PartitionKey) -> bool:
        group = self._groups.get(key.group)
        return group is not None and group.tracks(key.topic_id, key.partition)

    async def _first_offset(self, key: PartitionKey, partition_log: PartitionLog) -> int:
        reset = self._groups.settings(key.group).auto_offset_reset
        if reset == "earliest":
            return partition_log.log_start_offset
        if isinstance(reset, int):
            found = await partition_log.offset_for_timestamp(self._clock.now_ms() - reset)
            if found is not None:
                return found.offset
        return partition_log.high_watermark

    def close(self, keys: Iterable[PartitionKey]) -> None:
        """What is kept of these counts, and no longer what is in memory."""
        for key in list(keys):
            of_group = self._open.get(key.group, {})
            found = of_group.pop(key, None)
            if found is None:
                continue
            if not of_group:
                del self._open[key.group]
            found.closed = True
            if found.timer is not None:
                found.timer.cancel()
            found.changed()

    def close_group(self, group_id: str) -> None:
        """No member of the group reads any more."""
        self.close(self._open.get(group_id, {}))

    def stop(self) -> None:
        """The broker stops: no deadline is looked at any more."""
        for each in self._all():
            if each.timer is not None:
                each.timer.cancel()

    def _all(self) -> list[OpenPartition]:
        return [found for of_group in self._open.values() for found in of_group.values()]

    # --- what members do ----------------------------------------------------------------------------------------------

    def acquire(
        self,
        found: OpenPartition,
        member_id: str,
        batches: Sequence[Fetched],
        *,
        fetch_offset: int,
        most: int,
        strict: bool,
        batch_size: int,
    ) -> list[Acquired]:
        """Lock what is available in what was read: see `SharePartition.acquire`."""
        limits, now = self.limits(found.key.group), self._clock.monotonic()
        acquired, change = found.partition.acquire(
            member_id,
            batches,
            limits,
            now,
            fetch_offset=fetch_offset,
            most=most,
            strict=strict,
            batch_size=batch_size,
        )
        if change is not None:
            self._store(found, change)
        if acquired:
            self._wait_until(found, now + limits.lock_s)
        return acquired

    def acknowledge(self, key: PartitionKey, member_id: str, batches: Sequence[Acknowledged]) -> "asyncio.Future[None]":
        """Do with the member's records what it says; done when that is durable.

        Raises:
            UnknownTopicOrPartition: nobody reads this share partition.
            RequestError: see `SharePartition.acknowledge`.
        """
        found = self.find(key)
        if found is None:
            raise UnknownTopicOrPartition(f"group {key.group} does not read partition {key.partition}")
        renews = any(AckType.RENEW in batch.types for batch in batches)
        if renews and not self._groups.settings(key.group).renew_acknowledge_enable:
            raise RequestError(Code.invalid_record_state, "Renewing acquisition locks is not enabled for the group.")
        limits, now = self.limits(key.group), self._clock.monotonic()
        change = found.partition.acknowledge(member_id, batches, limits, now)
        if renews:
            self._wait_until(found, now + limits.lock_s)
        return self._store(found, change)

    def release(self, group_id: str, member_id: str) -> None:
        """The member is gone: others may have what it has."""
        limits = self.limits(group_id)
        for found in list(self._open.get(group_id, {}).values()):
            change = found.partition.release(member_id, limits)
            if change is not None:
                self._store(found, change)

    def _store(self, found: OpenPartition, change: Change | None) -> "asyncio.Future[None]":
        """Keep a change, tell who waits; done when it is durable. None: there is none."""
        if change is None:
            nothing: asyncio.Future[None] = self._broker.loop.create_future()
            nothing.set_result(None)
            return nothing
        stored = self._groups.persister.update(
            found.key, change, state_epoch=found.state_epoch, leader_epoch=found.log.leader_epoch
        )

        def durable(finished: "asyncio.Future[None]") -> None:
            if not finished.cancelled() and (error := finished.exception()) is not None:
                log.error("share_partition_not_stored", group=found.key.group, reason=str(error))
                if not found.closed:
                    self.close([found.key])

        stored.add_done_callback(durable)
        found.changed()
        return stored

    # --- the clock ----------------------------------------------------------------------------------------------------

    def _wait_until(self, found: OpenPartition, deadline: float) -> None:
        """Look at the locks then, or earlier if that was planned."""
        if found.timer is not None:
            if found.due <= deadline:
                return
            found.timer.cancel()
        found.due = deadline
        delay = max(0.0, deadline - self._clock.monotonic())
        found.timer = self._broker.loop.call_later(delay, self.expire, found)

    def expire(self, found: OpenPartition) -> None:
        """Take away the locks that have ended."""
        if found.timer is not None:
            found.timer.cancel()
            found.timer = None
        if found.closed or self._broker.stopping.done():
            return
        self._store(found, found.partition.expire(self.limits(found.key.group), self._clock.monotonic()))
        deadline = found.partition.next_deadline()
        if deadline is not None:
            self._wait_until(found, deadline)
