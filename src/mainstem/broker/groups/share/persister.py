"""What share groups have done with records, kept in `__share_group_state`: durable before anybody is told.

Of one share partition there is one record on its way at a time. What is asked for meanwhile waits, and becomes one
record: changes are laid over each other, and a state that is set makes those before it needless. What others can read
is what is durable.

The topic is made when the first state is set. What is below the last snapshots of all share partitions is deleted.
Where a partition of the topic has many more records than that needs, share partitions that nobody has written for long
get a new snapshot, so that theirs do not hold the rest. Kafka does both every five minutes; here a start, which reads
the topic as a whole, never finds more than a few records for each share partition.
"""

import asyncio
import base64
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from mainstem.broker.answers import then
from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.share.records import (
    PartitionKey,
    SnapshotKey,
    StateKey,
    StateValue,
    decode_state,
    decode_state_key,
    encode_state,
    encode_state_key,
)
from mainstem.broker.groups.share.state import Change, ShareState, one_change
from mainstem.broker.groups.share.store import ShareStates, plain
from mainstem.broker.placement import place_of, report_misplaced
from mainstem.broker.replay import replay, report_unreadable
from mainstem.core import CorruptData, MainstemError
from mainstem.core.logging import get_logger
from mainstem.log import AppendResult, BatchTooLarge, PartitionLog, housekeeping
from mainstem.log.errors import StorageError
from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code

if TYPE_CHECKING:
    from mainstem.broker.server import Broker

STATE_TOPIC: Final = "__share_group_state"
_STATE_CONFIG: Final = {
    "cleanup.policy": "delete",  # all updates since a snapshot count: never compacted
    "retention.ms": "-1",
    "compression.type": "producer",
    "segment.bytes": "4194304",  # those below the last snapshots are deleted whole
    "max.message.bytes": "16777216",  # a snapshot says what is true of each record that is not done, one by one at worst
}
_FEW_RECORDS: Final = 5_000
"""With so many a partition of the topic is left as it is: a start reads them in a tenth of a second."""
_AT_ONCE: Final = 100
"""Snapshots that are written in one turn of the loop."""

log = get_logger()


class StateUnavailable(GroupError):
    """The state of a share partition could not be stored: its log is offline."""

    def __init__(self, group_id: str, reason: BaseException | str) -> None:
        super().__init__(Code.coordinator_not_available, group_id, f"not stored: {reason}")


class FencedStateEpoch(GroupError):
    """The state was set anew, or deleted: what the caller knows of it is over."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.fenced_state_epoch, group_id, message)


def place(key: PartitionKey, count: int) -> int:
    """Which of `count` partitions of the topic keeps the share partition."""
    topic_id = base64.urlsafe_b64encode(key.topic_id.bytes).decode().rstrip("=")
    return place_of(f"{key.group}:{topic_id}:{key.partition}", count)


_What: TypeAlias = Change | ShareState | None  # None: the state is deleted


class _Task(msgspec.Struct):
    what: _What
    leader_epoch: int
    done: "asyncio.Future[None]"


class _Line(msgspec.Struct):
    """Of one share partition: what becomes the record on its way, and what waits for that."""

    under_way: list[_Task] = []
    waiting: list[_Task] = []

    @property
    def tasks(self) -> list[_Task]:
        """In the order in which they were asked for: what is on its way comes first."""
        return self.under_way + self.waiting


class _StateLog:
    """A partition of the topic."""

    def __init__(self, partition: PartitionLog) -> None:
        self.partition = partition
        self.snapshots: dict[PartitionKey, int] = {}
        """Where the last snapshot of each share partition is."""
        self.tidying = False
        self.next_look = 0
        """Up to this offset it is not looked at again."""

    def note(self, key: StateKey, value: StateValue | None, offset: int) -> None:
        """This record is durable."""
        if not isinstance(key, SnapshotKey):
            return
        if value is None:
            self.snapshots.pop(plain(key), None)
        else:
            self.snapshots[plain(key)] = offset

    @property
    def is_untidy(self) -> bool:
        """True if it has many more records than it needs."""
        end = self.partition.high_watermark
        return end >= self.next_look and end - self.partition.log_start_offset > max(
            _FEW_RECORDS, 4 * len(self.snapshots)
        )


class SharePersister:
    """The states of all share partitions."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._clock = broker.clock
        self._loop = broker.loop
        self._states = ShareStates(broker.config.share_coordinator_snapshot_update_records_per_snapshot)
        self._logs: list[_StateLog] = []
        self._lines: dict[PartitionKey, _Line] = {}
        self._making = False
        self._damaged: StorageError | None = None
        """Of a partition of the topic that the start could not read: it takes nothing until it is repaired."""
        self.on_replaced: Callable[[list[PartitionKey]], None] = lambda _: None
        """Called at once with share partitions whose state is set or deleted."""

    @classmethod
    async def open(cls, broker: "Broker") -> "SharePersister":
        """Read what is stored."""
        persister = cls(broker)
        if broker.topics.get(STATE_TOPIC) is not None or broker.topics.has_kept(STATE_TOPIC):
            await persister._recover(await persister._topic())
        return persister

    async def _topic(self) -> Sequence[PartitionLog]:
        count = self._broker.config.share_coordinator_state_topic_num_partitions
        return await self._broker.ensure_internal_topic(STATE_TOPIC, count, _STATE_CONFIG)

    # --- what is kept -------------------------------------------------------------------------------------------------

    def get(self, key: PartitionKey) -> ShareState | None:
        """What is kept of a share partition, durably; None: nothing."""
        return self._states.get(key)

    def all(self) -> list[tuple[PartitionKey, ShareState]]:
        """What is kept of all share partitions, durably."""
        return [(key, state) for key in self._states if (state := self._states.get(key)) is not None]

    async def read(self, key: PartitionKey) -> ShareState | None:
        """The same, when all that was asked for before is durable or has failed."""
        while line := self._lines.get(key):
            await asyncio.wait([line.tasks[-1].done])
        return self._states.get(key)

    def update(
        self, key: PartitionKey, change: Change, *, state_epoch: int, leader_epoch: int
    ) -> "asyncio.Future[None]":
        """Keep what has changed; done when it is durable.

        Raises:
            FencedStateEpoch: the state is another one by now.
        """
        found = self._state_epoch(key)
        if found != state_epoch:
            raise FencedStateEpoch(
                key.group, f"share partition {key.topic_id}:{key.partition}: state epoch {state_epoch}, now {found}"
            )
        return self._ask(key, change, leader_epoch)

    def set(self, key: PartitionKey, state: ShareState) -> "asyncio.Future[None]":
        """Keep this, and nothing of what was kept before; done when it is durable."""
        self.on_replaced([key])
        return self._ask(key, state, state.leader_epoch)

    def delete(self, keys: Iterable[PartitionKey]) -> "asyncio.Future[None]":
        """Forget share partitions; done when that is durable.

        All that can be is queued in this turn of the loop: a new group of that name may have states of its own soon.
        """
        known = [key for key in keys if key in self._lines or self._states.get(key) is not None]
        self.on_replaced(known)
        return self._all([self._ask(key, None, -1) for key in known])

    def check_read(self, group_id: str) -> None:
        """Raise StateUnavailable if there may be states that are not known: they would come back with a repair."""
        if self._damaged is not None:
            raise StateUnavailable(group_id, self._damaged)

    def forget(self, is_there: Callable[[PartitionKey], bool]) -> "asyncio.Future[None]":
        """Delete what is kept of share partitions that are no more; done when that is durable."""
        keys = dict.fromkeys((*self._states, *self._lines))
        return self.delete([key for key in keys if not is_there(key)])

    # --- one record at a time -----------------------------------------------------------------------------------------

    def _state_epoch(self, key: PartitionKey) -> int | None:
        """Of the state as it will be when all that was asked for is durable; None: there will be none."""
        line = self._lines.get(key)
        for task in reversed(line.tasks if line is not None else ()):
            if not isinstance(task.what, Change):
                return None if task.what is None else task.what.state_epoch
        state = self._states.get(key)
        return None if state is None else state.state_epoch

    def _ask(self, key: PartitionKey, what: _What, leader_epoch: int) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = self._loop.create_future()
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        line.waiting.append(_Task(what, leader_epoch, done))
        if not self._logs:
            self._make_topic()
        elif not line.under_way:
            self._write(key, line)
        return done

    def _write(self, key: PartitionKey, line: _Line) -> None:
        """Append what waits, as one record."""
        line.under_way, line.waiting = line.waiting, []
        state_log = self._logs[place(key, len(self._logs))]
        record_key, value = self._record(key, line.under_way)
        data = None if value is None else encode_state(value)
        batch = build_batch([Record(0, self._clock.now_ms(), encode_state_key(record_key), data)])
        try:
            appended = state_log.partition.append(batch)
        except (StorageError, BatchTooLarge) as error:
            self._settle(key, line, error)
            return

        def durable(future: "asyncio.Future[AppendResult]") -> None:
            if future.cancelled():
                self._settle(key, line, MainstemError("the broker stops"))
                return
            error = future.exception()
            if error is None:
                self._states.replay(record_key, value)
                state_log.note(record_key, value, future.result().base_offset)
            self._settle(key, line, error)
            self._tidy_if_needed(state_log)

        appended.add_done_callback(durable)

    def _record(self, key: PartitionKey, tasks: Sequence[_Task]) -> tuple[StateKey, StateValue | None]:
        """What these come to, one after the other."""
        now = self._clock.now_ms()
        state: ShareState | None = None
        is_set, changes = False, []
        for task in tasks:
            if isinstance(task.what, Change):
                changes.append(task.what)
            else:
                is_set, state, changes = True, task.what, []
        if not is_set:
            return self._states.record(key, one_change(changes), tasks[-1].leader_epoch, now)
        if state is None:
            return SnapshotKey(key.group, key.topic_id, key.partition), None
        if changes:
            updated = state.updated(one_change(changes))
            state = msgspec.structs.replace(updated, leader_epoch=tasks[-1].leader_epoch)
        return self._states.snapshot(key, state, now)

    def _settle(self, key: PartitionKey, line: _Line, error: BaseException | None) -> None:
        """The record that was on its way is durable, or never will be; what waited for it is next."""
        done, line.under_way = line.under_way, []
        for task in done:
            if task.done.done():
                continue
            if error is None:
                task.done.set_result(None)
            else:
                task.done.set_exception(StateUnavailable(key.group, error))
                task.done.exception()  # not everybody waits
        if line.waiting:
            self._write(key, line)
        else:
            del self._lines[key]

    def _make_topic(self) -> None:
        if self._making:
            return
        found: Sequence[PartitionLog] = ()
        failure = MainstemError("the broker stops")

        async def make() -> None:
            nonlocal found, failure
            try:
                found = await self._topic()
            except MainstemError as error:
                failure = error

        def made(*_: object) -> None:
            # In one turn: what is asked for once there are logs is written at once, and would be written here again.
            self._making = False
            self._logs = [_StateLog(partition) for partition in found]
            for key, line in list(self._lines.items()):
                if self._logs:
                    self._write(key, line)
                else:
                    line.under_way, line.waiting = line.waiting, []
                    self._settle(key, line, failure)

        if self._broker.stopping.done():
            made()
            return
        self._making = True
        # A callback: whoever waits is told also if it is cancelled before it has begun.
        self._broker.spawn(make(), name="make the topic of share groups").add_done_callback(made)

    def _all(self, asked: Sequence["asyncio.Future[None]"]) -> "asyncio.Future[None]":
        """Done when all are."""
        if not asked:
            nothing: asyncio.Future[None] = self._loop.create_future()
            nothing.set_result(None)
            return nothing
        return then(asyncio.gather(*asked), lambda _: None)

    # --- old records --------------------------------------------------------------------------------------------------

    def _tidy_if_needed(self, state_log: _StateLog) -> None:
        if not state_log.tidying and state_log.is_untidy:
            state_log.tidying = True
            self._broker.spawn(self._tidy(state_log), name="tidy the states of share groups")

    async def _tidy(self, state_log: _StateLog) -> None:
        """1. New snapshots of share partitions whose last one is old, 2. what is below all of them goes."""
        partition = state_log.partition
        middle = (partition.log_start_offset + partition.high_watermark) // 2
        try:
            cold = [key for key, offset in state_log.snapshots.items() if offset < middle]
            for first in range(0, len(cold), _AT_ONCE):
                await self._all([self._snapshot(key) for key in cold[first : first + _AT_ONCE]])
            await housekeeping.delete_records(
                partition, min(state_log.snapshots.values(), default=partition.high_watermark)
            )
        except MainstemError as error:  # the directory is offline, or was short of something: the next look may do it
            log.warning("share_states_not_tidied", partition=partition.number, reason=str(error))
        finally:
            state_log.next_look = partition.high_watermark + _FEW_RECORDS // 4
            state_log.tidying = False

    def _snapshot(self, key: PartitionKey) -> "asyncio.Future[None]":
        """Write again what is kept; a share partition that somebody else writes is left alone."""
        state = self._states.get(key)
        is_left = key in self._lines or state is None
        return self._all([] if is_left or state is None else [self._ask(key, state, state.leader_epoch)])

    # --- the start ----------------------------------------------------------------------------------------------------

    async def _recover(self, logs: Sequence[PartitionLog]) -> None:
        self._logs = [_StateLog(partition) for partition in logs]
        for number, state_log in enumerate(self._logs):
            misplaced = 0
            try:
                async for _, _, records in replay(state_log.partition):
                    for record in records:
                        if (decoded := _decode(state_log, record)) is None:
                            continue
                        if place(decoded[0], len(logs)) != number:
                            misplaced += 1
                            continue
                        self._states.replay(*decoded)
                        state_log.note(*decoded, record.offset)
            except StorageError as error:
                if state_log.partition.error is None:  # no damage: the machine is short of something
                    raise
                self._damaged = error.again()
                facts = {"partition": str(state_log.partition.topic_partition), "hint": error.hint}
                log.error("share_states_not_read", **facts, error=str(error))  # noqa: TRY400 - damage in one line
            report_misplaced(state_log.partition.topic_partition, misplaced)
        log.info("share_states_recovered", share_partitions=len(self._states))


def _decode(state_log: _StateLog, record: Record) -> tuple[StateKey, StateValue | None] | None:
    """None: its key is of a version that is not known, or it is not readable."""
    try:
        key = decode_state_key(record.key or b"")
        if key is None:
            return None
        return key, None if record.value is None else decode_state(key, record.value)
    except CorruptData as error:
        hint = "records of a share partition may be delivered again"
        report_unreadable(state_log.partition.topic_partition, record.offset, error, hint=hint)
        return None
