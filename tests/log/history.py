"""Histories of a log directory: calls, the end of the process, what happens before the next start, and that start."""

import asyncio
import contextlib
import errno
from pathlib import Path
from random import Random
from uuid import UUID

from mainstem.log import LogConfig, StorageError, TopicConfig, checkpoint
from mainstem.log.repair import UnknownPartition, repair
from mainstem.log.segment import LOG, file_name
from tests.log.history_calls import Calls, Node, power_may_go_off
from tests.log.history_model import ExpectedPartition
from tests.log.simulated_disk import adversary
from tests.log.support import abandon

PLAIN = TopicConfig(segment_bytes=700, index_interval_bytes=300, retention_ms=10**15)
COMPACTED = TopicConfig(
    cleanup_policy="compact", segment_bytes=400, index_interval_bytes=200, min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1_000,
)  # fmt: skip
ROUNDS = 8


def play(seed: int, path: Path) -> None:
    """Run the history that is drawn from `seed` in a new directory.

    Raises:
        AssertionError: it went wrong; the message is a list of its steps. Threads take part in it, so that the next
            run of the same seed may take another course.
    """
    path.mkdir()
    history = History(seed, path)
    try:
        asyncio.run(history.run())
    except Exception as error:
        steps = "\n".join(f"{number:4} {step}" for number, step in enumerate(history.node.steps, 1))
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\nafter:\n{steps}") from error


class History:
    """Rounds of calls, each followed by a start in most cases.

    The process is killed between calls or amid them, the power is cut, or the log is closed; then starts are cut short,
    or refused, the checkpoint is lost, or a segment is damaged, and restored or repaired after a start has found that.
    """

    def __init__(self, seed: int, path: Path) -> None:
        self.seed = seed
        self.random = Random(seed)
        config = LogConfig(
            read_threads=1,
            sync_threads=1,
            journal_bytes=self.random.choice([9_000, 20_000, 10**6]),
            compaction_keys=self.random.choice([3, 1_000]),
            housekeeping_interval_ms=10**9,  # never by itself
            producer_id_expiration_ms=self.random.choice([10**9, 10**9, 2_000]),
        )
        self.node = Node(path, config, self._partitions())
        for expected in self.node.partitions:
            expected.producers_expire = config.producer_id_expiration_ms < 10**9
        self.power_cut = False
        """At its end, or amid a start after it."""
        self.checkpoint_lost = False
        self.names_in_order = True
        """After every power cut since the last start."""

    def _partitions(self) -> list[ExpectedPartition]:
        settings = [PLAIN, self.random.choice([PLAIN, COMPACTED]), COMPACTED]
        chosen = self.random.choice([[0], [0], [1], [0, 1], [0, 1], [0, 1, 2], [1, 2]])
        return [ExpectedPartition("abc"[number], settings[number]) for number in chosen]

    async def run(self) -> None:
        try:
            await self._start()
            for number in range(ROUNDS):
                # Its own numbers: how many an earlier round has drawn depends on the threads' timing.
                self.random = Random(f"{self.seed}/{number}")
                await self._round()
        finally:
            with contextlib.suppress(AttributeError):  # the first start went wrong
                abandon(self.node.log)

    async def _round(self) -> None:
        calls = Calls(self.node, self.random)
        for _ in range(self.random.choice([1, 3, 8])):
            await calls.one()
        await self.node.check()
        if self.random.random() < 0.8:
            await self._end()
            await self._before_the_start()
            await self._start()

    # -- how it ends

    async def _end(self) -> None:
        ends = [self._kill, self._cut_the_power, self._stop_amid_calls, self._stop_amid_calls, self._close]
        await self.random.choice(ends)()

    async def _kill(self) -> None:
        abandon(self.node.log)
        self._killed()

    async def _cut_the_power(self) -> None:
        abandon(self.node.log)
        self._power_was_cut()

    async def _stop_amid_calls(self) -> None:
        """After so many changes of the disk none is made any more, whatever is under way."""
        node, changes = self.node, self.random.choice([5, 15, 40, 80])
        node.note(f"all at once, up to {changes} changes of the disk:")
        node.disk.power_off_after(changes)
        # Each with its own numbers: who draws first depends on the threads' timing.
        scripts = [Calls(node, Random(self.random.random())).until_power_off(each) for each in node.partitions]
        await asyncio.gather(*scripts, Calls(node, Random(self.random.random())).on_the_directory_until_power_off())
        abandon(node.log)
        self._killed_or_power_cut()

    async def _close(self) -> None:
        self.node.note("close")
        await self.node.log.close()
        for expected in self.node.partitions:
            expected.synced(expected.promised)
        self._power_was_cut()

    def _killed(self) -> None:
        self.node.note("kill")
        self.node.disk = self.node.disk.after_kill()

    def _power_was_cut(self) -> None:
        nothing_more = self.random.random() < 0.3
        in_order = nothing_more or self.checkpoint_lost or self.random.random() < 0.5
        self.node.note(
            "power cut"
            + ", nothing but what was synced is there" * nothing_more
            + ", names out of order" * (not in_order)
        )
        choose = (lambda most: 0) if nothing_more else adversary(self.random.getrandbits(32))
        self.node.disk = self.node.disk.after_power_cut(choose, names_in_order=in_order)
        self.power_cut = True
        self.names_in_order = self.names_in_order and in_order

    def _killed_or_power_cut(self) -> None:
        only_kill = self.checkpoint_lost and self._may_be_torn()
        self._power_was_cut() if self.random.random() < 0.7 and not only_kill else self._killed()

    def _may_be_torn(self) -> bool:
        return any(expected.safe < expected.end for expected in self.node.partitions)

    # -- what happens before the start

    async def _before_the_start(self) -> None:
        what = self.random.random()
        if what < 0.15:
            self._lose_the_checkpoint()
        elif what < 0.4:
            await self._damage_a_segment()
        await self._cut_starts_short()

    async def _cut_starts_short(self) -> None:
        for _ in range(self.random.choice([0, 0, 1, 2, 3])):
            if self.random.random() < 0.2:
                await self._start_is_refused()
                continue
            changes = self.random.randint(0, self.random.choice([12, 60]))
            self.node.note(f"start, up to {changes} changes of the disk")
            self.node.disk.power_off_after(changes)
            with power_may_go_off(self.node.disk):
                abandon(await self.node.open())
            self._killed_or_power_cut()

    async def _start_is_refused(self) -> None:
        """For want of room or file descriptors, unless it needs none."""
        refusals = [
            ("write", errno.ENOSPC, ".log"), ("write", errno.ENOSPC, ""), ("create", errno.EMFILE, ""),
            ("create", errno.ENOSPC, ".log"), ("sync_directory", errno.EMFILE, ""), ("rename", errno.ENOSPC, ""),
        ]  # fmt: skip
        call, error, path = self.random.choice(refusals)
        self.node.disk.refuse(call, error, path)
        try:
            abandon(await self.node.open())
            self.node.note(f"start, with no refusal to {call} {path}")
        except (OSError, StorageError) as refused:
            self.node.note(f"start: {refused}")
        self.node.disk.refusals.clear()
        self._killed_or_power_cut()

    def _lose_the_checkpoint(self) -> None:
        """Not where a power cut may have torn a segment: only the checkpoint says what had been whole.

        Nor where it has left the unlinked names of a directory, and not those made before: where all records are
        deleted, only the checkpoint says where the log ends.
        """
        if (self.power_cut and self._may_be_torn()) or not self.names_in_order:
            return
        self.node.note("the checkpoint is lost")
        self.node.disk.unlink(self.node.path / checkpoint.NAME)
        self.node.disk.tree.sync()
        self.checkpoint_lost = True

    async def _damage_a_segment(self) -> None:
        """Let it end too early, and restore it when a start has found that, or repair the partition; or flip a bit."""
        segments = self._durable_segments()
        if not segments:
            return
        expected, path, size = self.random.choice(segments)
        file = self.node.disk.file(path)
        whole = bytes(file.data)
        if not expected.compacts and self.random.random() < 0.5:
            await self._flip_bits(expected, path, size)
            return
        del file.data[self.random.randrange(size) :]
        file.sync()
        self.node.note(f"{expected}: {path.name} is cut to {len(file.data)} bytes, {size} were durable")
        await self._cut_starts_short()
        if await self._start_finds_damage(expected):
            if expected.compacts or self.random.random() < 0.5:
                self._restore(path, whole)
            else:
                await self._repair(expected)

    async def _flip_bits(self, expected: ExpectedPartition, path: Path, size: int) -> None:
        """Nobody has to notice before that is read: repair it at once."""
        file = self.node.disk.file(path)
        for _ in range(self.random.choice([1, 1, 2, 3])):
            place = self.random.randrange(size)
            file.data[place] ^= 1 << self.random.randrange(8)
            self.node.note(f"{expected}: a bit of {path.name} is flipped, byte {place}, {size} were durable")
        file.sync()
        await self._repair(expected)

    def _durable_segments(self) -> list[tuple[ExpectedPartition, Path, int]]:
        """Those of the checkpoint that have bytes, with the size that it says."""
        found = checkpoint.load(self.node.disk, self.node.path)
        states = {state.topic: state for state in map(checkpoint.decode_partition, found.partitions if found else [])}
        return [
            (expected, path, segment.size)
            for expected in self.node.partitions
            if (state := states.get(str(expected))) and UUID(state.topic_id) in expected.ids
            for segment in state.segments
            if segment.size
            and self.node.disk.exists(
                path := self.node.path / str(expected.topic_partition) / file_name(segment.base_offset, LOG)
            )
        ]

    async def _start_finds_damage(self, expected: ExpectedPartition) -> bool:
        """It does, unless the journal says that the segment was deleted or replaced."""
        log = await self.node.open()
        partition = log.partitions.get(expected.topic_partition)
        found = partition is not None and partition.error is not None
        self.node.note(f"start: {partition.error}" if found else "start: nobody needs it any more")
        if self.random.random() < 0.5:
            await log.close()
        else:
            abandon(log)
        self._killed_or_power_cut()
        return found

    async def _repair(self, expected: ExpectedPartition) -> None:
        """It takes out what is damaged. Not of a compacted topic: older records of the keys are gone, too."""
        node = self.node
        where, found = expected.topic_partition, ()
        with contextlib.suppress(UnknownPartition):  # it was deleted
            found = (await repair(node.path, where, clock=node.clock, mend=True, disk=node.disk)).damages
        for each in found:  # perhaps zeros were cut off, and the start has put what follows behind a hole
            node.note(f"repair {expected}: {each.first_offset} to {each.end_offset} are lost, {each.reason}")
            expected.take_out(each.first_offset, each.end_offset)
        self._killed_or_power_cut()

    def _restore(self, path: Path, data: bytes) -> None:
        self.node.note(f"restore {path.name}")
        file = self.node.disk.open(path, create=True)
        file.truncate(0)
        file.write([data], 0)
        file.sync()
        self.node.disk.sync_directory(path.parent)

    # -- the start

    async def _start(self) -> None:
        node = self.node
        node.log = await node.open()
        for expected in node.partitions:
            partition = node.log.partitions.get(expected.topic_partition)
            topic_id = partition and partition.topic_id
            assert topic_id in expected.ids, f"{expected} has id {topic_id}, expected one of {expected.ids}"
            if partition is None:
                await node.create(expected)
            else:
                expected.ids = {topic_id}
                partition.config = expected.config
                expected.take_over(partition, power_cut=self.power_cut, checkpoint_lost=self.checkpoint_lost)
        self.power_cut = self.checkpoint_lost = False
        self.names_in_order = True
        await node.check()
