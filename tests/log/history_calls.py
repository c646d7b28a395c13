"""A log directory on a simulated disk, and the calls on it that a history is made of."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from uuid import UUID

import msgspec

from mainstem.core import ManualClock
from mainstem.log import LogConfig, LogDirectory, PartitionLog, StorageError, housekeeping
from tests.log.history_model import ExpectedPartition
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import batch, open_log

KEYS = [b"k%d" % n for n in range(6)]

CallOnPartition = Callable[[ExpectedPartition], Awaitable[None]]


class Node:
    """The log directory, its disk, what its partitions must hold, and what was done so far."""

    def __init__(self, path: Path, config: LogConfig, partitions: list[ExpectedPartition]) -> None:
        self.path = path
        self.config = config
        self.partitions = partitions
        self.disk = SimulatedDisk(path)
        self.clock = ManualClock()
        self.log: LogDirectory
        self.steps: list[str] = []
        self.topic_ids = (UUID(int=n) for n in count(1))
        self.values = (b"%06d" % n for n in count(1))

    def note(self, step: str) -> None:
        self.steps.append(step)

    def partition(self, expected: ExpectedPartition) -> PartitionLog:
        return self.log.partitions[expected.topic_partition]

    async def open(self) -> LogDirectory:
        return await open_log(self.path, disk=self.disk, config=self.config, clock=self.clock)

    async def create(self, expected: ExpectedPartition) -> None:
        """Make the topic: it is there when that is acknowledged, and may be before."""
        topic_id = next(self.topic_ids)
        expected.begin()
        expected.ids = {None, topic_id}
        await self.log.create_partition(expected.topic_partition, topic_id, expected.config)
        expected.ids = {topic_id}

    async def check(self) -> None:
        for expected in self.partitions:
            await expected.check(self.partition(expected))


@contextmanager
def power_may_go_off(disk: SimulatedDisk) -> Iterator[None]:
    """Where it has, calls fail; before, none may."""
    try:
        yield
    except (OSError, StorageError) as error:
        if not disk.is_off or (isinstance(error, OSError) and error.errno != errno.EIO):
            raise


class Calls:
    """Calls drawn at random. Each is noted when it begins, and the model is told what it promises."""

    def __init__(self, node: Node, random: Random) -> None:
        self.node = node
        self.random = random
        self.flying: list[asyncio.Task[None]] = []

    async def one(self) -> None:
        """Any call, and nothing beside it."""
        calls: dict[CallOnPartition, int] = {
            self.append: 25, self.produce: 10, self.transact: 15, self.trust: 10, self.delete_records: 10, self.enforce_retention: 3, self.roll: 4,
            self.checkpoint: 10, self.housekeep: 11, self.make_anew: 3, self.fill_the_disk: 4,
        }  # fmt: skip
        expected = self.random.choice(self.node.partitions)
        await self._drawn(calls)(expected)
        expected.expires = False

    async def until_power_off(self, expected: ExpectedPartition) -> None:
        """Some calls on one partition, beside others'; half of the appends are not waited for."""
        calls: dict[CallOnPartition, int] = {
            self.append_without_waiting: 28, self.append: 12, self.produce: 6, self.transact: 14, self.trust: 8, self.delete_records: 17,
            self.enforce_retention: 4, self.roll: 6, self.make_anew: 3, self.let_others_go_first: 7,
        }  # fmt: skip
        with power_may_go_off(self.node.disk):
            for _ in range(self.random.randint(1, 6)):
                await self._drawn(calls)(expected)
        await self.answers()

    async def on_the_directory_until_power_off(self) -> None:
        with power_may_go_off(self.node.disk):
            for _ in range(self.random.randint(0, 2)):
                await self.random.choice([self.checkpoint, self.housekeep])()

    def _drawn(self, calls: dict[CallOnPartition, int]) -> CallOnPartition:
        (call,) = self.random.choices(list(calls), list(calls.values()))
        return call

    # -- on a partition

    async def append(self, expected: ExpectedPartition) -> None:
        await self._append(expected)

    async def append_without_waiting(self, expected: ExpectedPartition) -> None:
        async def answered() -> None:
            with power_may_go_off(self.node.disk):
                await answer

        answer = self._append(expected)
        self.flying.append(asyncio.ensure_future(answered()))

    def _append(self, expected: ExpectedPartition) -> "asyncio.Task[None]":
        """Append one to three records; they are queued in the order of these calls."""
        size = self.random.choice([1, 1, 2, 3])
        pairs = [(self.random.choice(KEYS), self._value(expected)) for _ in range(size)]
        self.node.note(f"append {size} to {expected}" + " (trusting)" * expected.trusting)
        data = batch(*(value for _, value in pairs), keys=[key for key, _ in pairs], timestamp=self.node.clock.now_ms())
        answer = self.node.partition(expected).append(data)
        return asyncio.ensure_future(expected.appended(pairs, answer))

    def _value(self, expected: ExpectedPartition) -> bytes | None:
        if expected.compacts and self.random.random() < 0.15:
            return None
        return next(self.node.values) + b"x" * self.random.choice([0, 50, 150, self.random.randint(0, 300)])

    async def produce(self, expected: ExpectedPartition) -> None:
        """A batch of an idempotent producer."""
        await self._produce(expected, 1, transactional=False)

    async def transact(self, expected: ExpectedPartition) -> None:
        """A batch of a transaction, or its end."""
        producer_id = self.random.choice([2, 3])
        partition = self.node.partition(expected)
        if producer_id in partition.open_transactions and self.random.random() < 0.5:
            commit = self.random.random() < 0.5
            known = partition.producer(producer_id)
            assert known is not None
            epoch = known.producer_epoch + self.random.choice([0, 1])  # raised by each end (KIP-890), or not
            self.node.note(f"{'commit' if commit else 'abort'} of {producer_id} in {expected}, epoch {epoch}")
            answer = partition.append_marker(producer_id, epoch, commit=commit, coordinator_epoch=0)
            await asyncio.ensure_future(
                expected.appended([(b"", None)], answer, producer_id, commit=commit, producer_epoch=epoch)
            )
        else:
            await self._produce(expected, producer_id, transactional=True)

    async def _produce(self, expected: ExpectedPartition, producer_id: int, *, transactional: bool) -> None:
        partition, size = self.node.partition(expected), self.random.choice([1, 1, 2])
        known = partition.producer(producer_id)
        pairs = [(self.random.choice(KEYS), self._value(expected)) for _ in range(size)]
        sequence, epoch = (known.last_sequence + 1, known.producer_epoch) if known else (0, 0)
        if known and known.transaction_first_offset < 0 and self.random.random() < 0.15:
            sequence, epoch = 0, epoch + 1
        self.node.note(
            f"append {size} of producer {producer_id} to {expected}, epoch {epoch}" + " (trusting)" * expected.trusting
        )
        data = batch(
            *(value for _, value in pairs), keys=[key for key, _ in pairs], timestamp=self.node.clock.now_ms(),
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional,
        )  # fmt: skip
        sent = expected.appended(
            pairs, partition.append(data), producer_id, transactional=transactional, producer_epoch=epoch,
            base_sequence=sequence,
        )  # fmt: skip
        await asyncio.ensure_future(sent)

    async def answers(self) -> None:
        """Wait for what flies."""
        flying, self.flying = self.flying, []
        await asyncio.gather(*flying)

    async def let_others_go_first(self, _: ExpectedPartition) -> None:
        await asyncio.sleep(0)

    async def trust(self, expected: ExpectedPartition) -> None:
        expected.trust(self.random.choice([1, 1, 3, 1_000]))
        self.node.note(f"flush.messages of {expected}: {expected.config.flush_messages}")
        self.node.partition(expected).config = expected.config

    async def delete_records(self, expected: ExpectedPartition) -> None:
        """Up to anywhere; often to where a segment begins, or all."""
        partition = self.node.partition(expected)
        start, end = expected.start, partition.high_watermark
        segment = self.random.choice(partition.segments).base_offset
        before = self.random.choice([self.random.randint(start, end), min(max(segment, start), end), end])
        self.node.note(f"delete {expected} before {before}")
        expected.deleting(before)
        await housekeeping.delete_records(partition, before)
        expected.deleted(before)

    async def enforce_retention(self, expected: ExpectedPartition) -> None:
        """Let it choose; what it may let go is its own tests' matter."""
        if expected.compacts:
            return
        partition = self.node.partition(expected)
        age, size = self.random.choice([0, 10, -1, -1]), self.random.choice([-1, 300, 900])
        self.node.note(f"retention of {expected}: {age} ms, {size} bytes")
        self.node.clock.advance_ms(1_000)
        expected.expires = True  # beside others until the next start: housekeeping may have seen these settings too
        partition.config = msgspec.structs.replace(expected.config, retention_ms=age, retention_bytes=size)
        try:
            await housekeeping.enforce_retention(partition)
        finally:
            partition.config = expected.config
        expected.deleted(partition.log_start_offset)

    async def roll(self, expected: ExpectedPartition) -> None:
        self.node.note(f"roll {expected}")
        self.node.partition(expected).roll()

    async def make_anew(self, expected: ExpectedPartition) -> None:
        """Delete the topic and create it: in between it is there or not, and then not."""
        await self.answers()
        self.node.note(f"delete topic {expected}, create it")
        expected.ids |= {None}
        await self.node.log.delete_partition(expected.topic_partition)
        await self.node.create(expected)

    async def fill_the_disk(self, expected: ExpectedPartition) -> None:
        """An append is refused, and the log goes on; nothing else writes meanwhile that may meet the full disk."""
        if expected.trusting:
            return
        where, end = self.random.choice(["/journal.", ".log"]), expected.end
        self.node.note(f"the disk is full: {where}")
        self.node.disk.refuse("write", errno.ENOSPC, where)
        try:
            await self._append(expected)
        except StorageError:
            expected.forget_from(end)
        else:
            raise AssertionError(f"{expected}: an append was acknowledged, the disk was full")
        assert not self.node.log.offline

    # -- on the directory

    async def checkpoint(self, _: ExpectedPartition | None = None) -> None:
        """Bring to the disk what was promised before."""
        self.node.note("checkpoint")
        promised = [(expected, expected.ids, expected.promised) for expected in self.node.partitions]
        await self.node.log.checkpoint()
        for expected, ids, end in promised:
            if expected.ids is ids:  # it was not made anew meanwhile
                expected.synced(end)

    async def housekeep(self, _: ExpectedPartition | None = None) -> None:
        """Compaction, above all."""
        self.node.note("housekeep")
        self.node.clock.advance_ms(self.random.choice([0, 500, 2_000]))
        await self.node.log.housekeep()
