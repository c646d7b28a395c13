"""Compaction compared with a dictionary, over transactions, tombstones, deletions, restarts, kills, power cuts and a
lost checkpoint.
"""

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstem.core import ManualClock
from mainstem.log import LogConfig, StorageError, TopicConfig, housekeeping
from mainstem.records import iter_headers
from tests.log.simulated_disk import SimulatedDisk, adversary
from tests.log.support import TOPIC_ID, TP, abandon, batch, joined, open_log, read_all
from tests.support.properties import examples

CONFIG = LogConfig(read_threads=1, sync_threads=1, journal_bytes=16_000, compaction_keys=4)
TOPIC = TopicConfig(
    cleanup_policy="compact", segment_bytes=250, index_interval_bytes=200, min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1_000,
)  # fmt: skip

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])
pairs = st.lists(st.tuples(keys, st.none() | st.binary(max_size=60)), min_size=1, max_size=4)
Appended = tuple[int, bytes, bytes | None, int | None]


class CompactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="compaction-model-"))
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.disk = SimulatedDisk(self.path)
        self.appended: list[Appended] = []
        self.start = self.end = 0
        self.deleted = False  # of the calls alone: `start` may depend on how far a compaction came before the power cut
        self.sequences = {1: 0, 2: 0, 3: 0}
        self.open: dict[int, int] = {}
        self.aborted: set[int] = set()

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    @initialize()
    def create(self) -> None:
        self.log = self.run(open_log(self.path, disk=self.disk, config=CONFIG, clock=self.clock))
        self.partition = self.run(self.log.create_partition(TP, TOPIC_ID, TOPIC))
        self.log._shared.look_ups._most = 50  # they leave and come back all the time

    def reopen(self) -> None:
        self.log = self.run(open_log(self.path, disk=self.disk, config=CONFIG, clock=self.clock))
        self.partition = self.log.partitions[TP]
        self.partition.config = TOPIC
        self.log._shared.look_ups._most = 50

    def teardown(self) -> None:
        self.run(self.log.close())
        self.loop.close()
        shutil.rmtree(self.path)

    @rule(
        content=pairs,
        producer=st.sampled_from([1, 2, 3]),
        transactional=st.booleans(),
        codec=st.sampled_from(["none", "lz4"]),
    )
    def append(self, content, producer, transactional, codec) -> None:
        transactional = transactional or producer in self.open
        data = batch(
            *(value for _, value in content), keys=[key for key, _ in content], producer_id=producer, producer_epoch=0,
            base_sequence=self.sequences[producer], transactional=transactional, compression=codec,
            timestamp=self.clock.now_ms(),
        )  # fmt: skip
        result = self.run(_wait(self.partition.append(data)))
        assert (result.base_offset, result.duplicate) == (self.end, False)
        if transactional:
            self.open.setdefault(producer, self.end)
        owner = producer if transactional else None
        self.appended += [(self.end + n, key, value, owner) for n, (key, value) in enumerate(content)]
        self.sequences[producer] += len(content)
        self.end += len(content)

    @rule(content=pairs)
    def append_without_a_producer_id(self, content) -> None:
        data = batch(*(value for _, value in content), keys=[key for key, _ in content], timestamp=self.clock.now_ms())
        assert self.run(_wait(self.partition.append(data))).base_offset == self.end
        self.appended += [(self.end + n, key, value, None) for n, (key, value) in enumerate(content)]
        self.end += len(content)

    @rule()
    def a_quiet_week(self) -> None:
        """Whatever may go is gone: tombstones, markers, producers."""
        self.partition.expire_producers(-1)
        self.partition.roll()
        for _ in range(3):
            self.run(self.log.housekeep())
            self.clock.advance_ms(2_000)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans())
    def end_transaction(self, data, commit) -> None:
        producer = data.draw(st.sampled_from(sorted(self.open)))
        self.run(_wait(self.partition.append_marker(producer, 0, commit=commit, coordinator_epoch=0)))
        first = self.open.pop(producer)
        if not commit:
            self.aborted |= {offset for offset, _, _, owner in self.appended if offset >= first and owner == producer}
        self.end += 1

    @rule(later_ms=st.sampled_from([0, 500, 2_000]))
    def compact(self, later_ms) -> None:
        self.clock.advance_ms(later_ms)
        self.run(self.log.housekeep())

    @rule()
    def compact_to_the_end(self) -> None:
        """Where nothing is appended compaction comes to an end: every key has one record in the sealed segments."""
        self.partition.roll()
        before = -1
        while before < self.partition.cleaned_offset:
            before = self.partition.cleaned_offset
            self.run(self.log.housekeep())
        stable = self.partition.last_stable_offset
        sealed = [s.next_offset for s in self.partition.segments[:-1] if s.next_offset <= stable]
        if sealed or not self.start:
            assert self.partition.cleaned_offset == max(sealed, default=0)
        found = [r for r in self.run(read_all(self.partition, committed_only=True)) if r.offset < before]
        assert len({r.key for r in found}) == len(found)

    @rule(changes=st.integers(0, 25), seed=st.integers(0, 2**32))
    def cut_the_power_while_compacting(self, changes, seed) -> None:
        self.disk.power_off_after(changes)
        with contextlib.suppress(OSError, StorageError):
            self.run(self.log.housekeep())
        abandon(self.log)
        self.disk = self.disk.after_power_cut(adversary(seed))
        self.reopen()

    @rule(part=st.sampled_from(["some", "compacted", "all"]))
    def delete_records(self, part) -> None:
        self.deleted = True
        compacted = max(self.start, self.partition.cleaned_offset)
        self.start = {"some": (self.start + self.end) // 2, "compacted": compacted, "all": self.end}[part]
        assert self.run(housekeeping.delete_records(self.partition, self.start)) == self.start

    @rule()
    def close_and_open(self) -> None:
        self.run(self.log.close())
        self.reopen()

    @rule()
    def kill_and_open(self) -> None:
        abandon(self.log)
        self.disk = self.disk.after_kill()
        self.reopen()

    @precondition(lambda self: not self.deleted)  # a log start offset may have been in the checkpoint alone
    @rule()
    def lose_checkpoint_and_journal(self) -> None:
        """The segments alone lead to the same records and sequences."""
        self.run(self.log.close())
        for name in ("checkpoint", "journal.0", "journal.1"):
            self.disk.unlink(self.path / name)
        self.reopen()

    @invariant()
    def offsets_stay(self) -> None:
        p = self.partition
        assert p.error is None
        assert p.log_start_offset == self.start
        assert p.size_bytes == sum(segment.size for segment in p.segments)
        assert p.high_watermark == p.log_end_offset == self.end
        assert p.last_stable_offset == max(self.start, min([*self.open.values(), self.end]))

    @invariant()
    def a_reader_comes_to_the_end(self) -> None:
        """Whoever has read all but the last offset is given a batch that ends with it."""
        p = self.partition
        for end, committed_only in ((p.high_watermark, False), (p.last_stable_offset, True)):
            if end > self.start:
                result = self.run(p.read(end - 1, 1, committed_only=committed_only))
                assert [header.last_offset for header in iter_headers(joined(result))] == [end - 1]

    @invariant()
    def the_last_value_of_each_key_stays(self) -> None:
        found = self.run(read_all(self.partition, committed_only=True))
        stable = self.partition.last_stable_offset
        committed = [each for each in self.appended if each[0] not in self.aborted and self.start <= each[0] < stable]
        assert {(r.offset, r.key, r.value) for r in found} <= {each[:3] for each in committed}
        assert [r.offset for r in found] == sorted({r.offset for r in found})
        assert _fold((r.key, r.value) for r in found) == _fold((key, value) for _, key, value, _ in committed)

    @invariant()
    def times_stay(self) -> None:
        for record in self.run(read_all(self.partition)):
            assert 1_700_000_000_000 <= record.timestamp <= self.clock.now_ms()


def _fold(items) -> dict[bytes, bytes]:
    state = dict(items)
    return {key: value for key, value in state.items() if value is not None}


async def _wait(future):
    return await future


TestCompactionMachine = CompactionMachine.TestCase
TestCompactionMachine.settings = settings(
    max_examples=examples(50), stateful_step_count=30, suppress_health_check=list(HealthCheck), deadline=None
)
