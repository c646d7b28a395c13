"""The log compared with a plain list, over appends, transactions, rolls, restarts, power cuts and full disks, and while
its topic trusts the page cache.
"""

import asyncio
import errno
import shutil
import tempfile
from pathlib import Path
from uuid import UUID

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstem.core import ManualClock
from mainstem.log import LogConfig, StorageError, TopicConfig, housekeeping
from mainstem.records import iter_headers
from tests.log.simulated_disk import SimulatedDisk, adversary
from tests.log.support import TOPIC_ID, TP, abandon, batch, joined, open_log, read_all
from tests.support.properties import examples

CONFIG = LogConfig(read_threads=1, sync_threads=1, journal_bytes=9_000)
TOPIC = TopicConfig(segment_bytes=700, index_interval_bytes=300)

values = st.lists(st.binary(max_size=600), min_size=1, max_size=4)


class LogMachine(RuleBasedStateMachine):
    """`self.records` is what the log must hold from `self.start` on:
    (value, producer id or None, "data" | "marker").
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="log-model-"))
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.disk = SimulatedDisk(self.path)
        self.records: list[tuple[bytes, int | None, str]] = []
        self.start = 0
        self.deleted = False
        """Records were to be deleted: of the calls alone, while `start` depends on what a power cut left, and so on the
        threads' timing; what a rule is chosen by must not."""
        self.topics = 0
        self.sequences = {1: 0, 2: 0}
        self.open: dict[int, int] = {}
        self.aborted: set[int] = set()
        self.retries: dict[int, tuple[bytes, int]] = {}
        self.safe = 0
        """A power cut takes nothing before it, whatever the topic trusted the page cache with."""
        self.batch_ends = {0}

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
        self.safe = self.partition.log_end_offset

    def teardown(self) -> None:
        self.run(self.log.close())
        self.loop.close()
        shutil.rmtree(self.path)

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    @property
    def trusting(self) -> bool:
        return self.partition.config.flush_messages > 1

    def appended(self, content, producer=None, kind="data") -> None:
        self.records += [(value, producer, kind) for value in content]
        self.batch_ends.add(self.end)
        if not self.trusting:
            self.safe = self.end

    # -- appends

    @rule(content=values)
    def append(self, content) -> None:
        result = self.run(_wait(self.partition.append(batch(*content))))
        assert (result.base_offset, result.last_offset) == (self.end, self.end + len(content) - 1)
        self.appended(content)

    @rule(flush_messages=st.sampled_from([1, 5, 1_000]))
    def trust_the_page_cache(self, flush_messages) -> None:
        """With plain batches only: producers and transactions are of topics that promise everything."""
        self.partition.config = msgspec.structs.replace(TOPIC, flush_messages=flush_messages)

    def promise_everything(self) -> None:
        self.partition.config = TOPIC

    @rule(content=values, producer=st.sampled_from([1, 2]), transactional=st.booleans())
    def append_in_sequence(self, content, producer, transactional) -> None:
        self.promise_everything()
        transactional = transactional or producer in self.open
        data = self.in_sequence(content, producer, transactional=transactional)
        result = self.run(_wait(self.partition.append(data)))
        assert (result.base_offset, result.duplicate) == (self.end, False)
        self.sequences[producer] += len(content)
        self.retries[producer] = (data, self.end)
        if transactional:
            self.open.setdefault(producer, self.end)
        self.appended(content, producer if transactional else None)

    def in_sequence(self, content, producer, *, transactional) -> bytes:
        return batch(
            *content, producer_id=producer, producer_epoch=0, base_sequence=self.sequences[producer],
            transactional=transactional,
        )  # fmt: skip

    @precondition(lambda self: self.retries)
    @rule(data=st.data())
    def retry_the_last_batch(self, data) -> None:
        producer = data.draw(st.sampled_from(sorted(self.retries)))
        again, offset = self.retries[producer]
        result = self.run(_wait(self.partition.append(again)))
        assert (result.base_offset, result.duplicate) == (offset, True)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans())
    def end_transaction(self, data, commit) -> None:
        self.promise_everything()
        producer = data.draw(st.sampled_from(sorted(self.open)))
        self.run(_wait(self.partition.append_marker(producer, 0, commit=commit, coordinator_epoch=0)))
        first = self.open.pop(producer)
        if not commit:
            self.aborted |= {
                offset for offset in range(max(first, self.start), self.end)
                if self.records[offset - self.start][1] == producer
            }  # fmt: skip
        self.appended([b""], producer, "marker")

    # -- what goes

    @rule(percent=st.sampled_from([5, 50, 95, 100]))
    def delete_records(self, percent) -> None:
        self.deleted = self.deleted or percent > 0
        before = self.start + len(self.records) * percent // 100
        assert self.run(housekeeping.delete_records(self.partition, before)) == before
        self.records = self.records[before - self.start :]
        self.start = before

    @rule()
    def delete_the_topic_and_create_it_anew(self) -> None:
        self.run(self.log.delete_partition(TP))
        self.start, self.deleted, self.records, self.sequences = 0, False, [], {1: 0, 2: 0}
        self.open, self.aborted, self.retries = {}, set(), {}
        self.safe, self.batch_ends = 0, {0}
        self.topics += 1
        topic_id = UUID(int=TOPIC_ID.int + self.topics)
        self.partition = self.run(self.log.create_partition(TP, topic_id, TOPIC))

    # -- restarts and faults

    @rule()
    def close_and_open(self) -> None:
        epoch = self.partition.leader_epoch
        self.run(self.log.close())
        self.disk = self.disk.after_power_cut(lambda most: 0)
        self.reopen()
        assert self.log.recovered_cleanly
        assert self.partition.leader_epoch == epoch

    @rule()
    def kill_and_open(self) -> None:
        epoch = self.partition.leader_epoch
        abandon(self.log)
        self.disk = self.disk.after_kill()
        self.reopen()
        assert self.partition.leader_epoch > epoch

    @precondition(lambda self: not self.deleted)  # a log start offset may have been in the checkpoint alone
    @rule(how=st.sampled_from(["closed", "killed", "power cut"]))
    def lose_the_checkpoint(self, how) -> None:
        """Segments and what the journal still holds lead to the same records and producers."""
        if how == "closed":
            self.run(self.log.close())
        else:
            abandon(self.log)
        cut = how == "power cut" and self.safe == self.end
        self.disk = self.disk.after_power_cut(lambda most: 0) if cut else self.disk.after_kill()
        self.disk.unlink(self.path / "checkpoint")
        self.reopen()

    @rule(
        contents=st.lists(st.tuples(values, st.booleans()), max_size=6),
        changes=st.integers(0, 30),
        seed=st.integers(0, 2**32),
        delete=st.sampled_from([0, 0, 50, 100]),
    )
    def cut_the_power(self, contents, changes, seed, delete) -> None:
        """While batches are appended, some without waiting for those before them; soon after a deletion perhaps."""
        self.delete_records(delete)
        trusting, safe = self.trusting, self.safe
        self.disk.power_off_after(changes)
        promised, flying = self.run(self.append_until_off(contents))
        abandon(self.log)
        # Not drawn one by one: how many choices there are depends on the threads' timing.
        self.disk = self.disk.after_power_cut(adversary(seed))
        self.reopen()
        for content in promised:
            self.appended(content)
        safe = self.end if promised and not trusting else max(safe, self.start)
        for content in flying:
            self.appended(content)
        # What was not promised may be there all the same, in order and in whole batches.
        found = self.partition.log_end_offset
        assert safe <= found <= self.end
        assert found in self.batch_ends | {self.start}
        del self.records[found - self.start :]
        self.batch_ends = {end for end in self.batch_ends if end <= found}
        self.safe = found

    async def append_until_off(self, contents):
        promised, flying, futures = [], [], []
        for content, wait in contents:
            try:
                futures.append((content, self.partition.append(batch(*content))))
            except StorageError:
                break
            if wait:
                await asyncio.gather(*(future for _, future in futures), return_exceptions=True)
        await asyncio.gather(*(future for _, future in futures), return_exceptions=True)
        for content, future in futures:
            if future.exception() is None:
                assert not flying, "a later batch was promised, an earlier one was not"
                promised.append(content)
            else:
                flying.append(content)
        return promised, flying

    @rule(content=st.lists(values, min_size=1, max_size=3), where=st.sampled_from(["journal", ".log"]))
    def fill_the_disk(self, content, where) -> None:
        """The append fails, nothing is lost, and the log goes on when there is room."""
        config, self.partition.config = self.partition.config, TOPIC
        self.disk.refuse("write", errno.ENOSPC, where)

        async def append():
            futures = [self.partition.append(batch(*each)) for each in content]
            return await asyncio.gather(*futures, return_exceptions=True)

        results = self.run(append())
        assert all(isinstance(result, StorageError) for result in results)
        assert not self.log.offline
        assert self.partition.log_end_offset == self.end
        self.partition.config = config

    # -- what must hold

    @invariant()
    def offsets_are_in_order(self) -> None:
        p = self.partition
        assert p.log_start_offset == self.start
        assert p.size_bytes == sum(segment.size for segment in p.segments)
        assert p.high_watermark == p.log_end_offset == self.end
        stable = min([*self.open.values(), self.end])
        assert p.last_stable_offset == max(stable, self.start)

    @invariant()
    def every_record_is_read(self) -> None:
        found = self.run(self.read(committed_only=False))
        expected = [(self.start + n, value) for n, (value, _, kind) in enumerate(self.records) if kind == "data"]
        assert found == expected, (found, expected)

    @invariant()
    def committed_records_are_read(self) -> None:
        found = self.run(self.read(committed_only=True))
        expected = [
            (self.start + n, value)
            for n, (value, _, kind) in enumerate(self.records)
            if kind == "data"
            and self.start + n not in self.aborted
            and self.start + n < self.partition.last_stable_offset
        ]
        assert found == expected, (found, expected)

    async def read(self, *, committed_only: bool) -> list[tuple[int, bytes]]:
        return [(r.offset, r.value) for r in await read_all(self.partition, committed_only=committed_only)]

    @rule(percent=st.integers(0, 100), size=st.integers(1, 2_000))
    def read_from_the_middle(self, percent, size) -> None:
        offset = self.start + len(self.records) * percent // 100
        result = self.run(self.partition.read(offset, size))
        headers = list(iter_headers(joined(result)))
        if offset == self.end:
            assert not headers
            return
        assert headers[0].base_offset <= offset <= headers[0].last_offset
        assert len(joined(result)) <= max(size, headers[0].size)


async def _wait(future):
    return await future


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=30, suppress_health_check=list(HealthCheck), deadline=None
)
