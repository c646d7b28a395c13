import asyncio
import itertools
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.broker.transactions import STATE_TOPIC, Producer, transaction
from mainstem.broker.transactions.errors import (
    CoordinatorUnavailable,
    PartitionNotInTransaction,
    ProducerFenced,
    TransactionError,
)
from mainstem.broker.transactions.transaction import COMPLETE_ABORT, COMPLETE_COMMIT, ONGOING, PREPARED
from mainstem.core import ManualClock, TopicPartition
from mainstem.log import PartitionLog
from mainstem.log.errors import StorageError
from mainstem.wire.errors import Code
from tests.log.simulated_disk import SimulatedDisk, adversary
from tests.support.broker import (
    CONFIG,
    Client,
    committed_records,
    crashed,
    partition_of,
    restarted,
    running,
    start,
    stop,
    until,
)
from tests.support.facts import FIRST as A
from tests.support.facts import SECOND as B
from tests.support.facts import TOPIC, a_topic
from tests.support.properties import examples
from tests.support.transactions import committed_values, transactional_batch


class SetClock(ManualClock):
    """Its wall clock may be set."""

    set_ms = 0

    def now_ms(self):
        return super().now_ms() + self.set_ms


# --- what a crash leaves ----------------------------------------------------------------------------------------------


def test_prepared_found_at_the_start_is_completed(tmp_path, clock):
    """PREPARE_COMMIT is durable, the machine goes down before the markers: the commit was decided."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        transactions = broker.transactions
        producer = await transactions.initialize("t", 60_000)
        await transactions.add_partitions("t", producer, {A, B})
        for partition in (A, B):
            await broker.partition(partition).append(transactional_batch(producer, 0, b"v", clock))
        entry = transactions._entries["t"]
        # What `end` does first, and no more.
        await transactions._change(
            transaction.end(entry.transaction, "t", producer, clock.now_ms(), None, commit=True, version=1)
        )
        assert await committed_values(broker, A) == []
        broker = await crashed(broker, tmp_path / "b", clock)
        await broker.transactions._settle("t")
        assert broker.transactions.describe("t").state is COMPLETE_COMMIT
        assert await committed_values(broker, A) == await committed_values(broker, B) == [b"v"]
        await stop(broker)

    asyncio.run(story())


def test_an_implicit_add_lost_in_a_crash_is_made_good(tmp_path, clock):
    """The batch is on the disk, the add is not: the retry is taken for a duplicate, so the commit must cover it."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        producer = await broker.transactions.initialize("t", 60_000)
        batch = transactional_batch(producer, 0, b"v", clock)
        await broker.partition(A).append(batch)  # as if the record of the add had not reached the disk
        broker = await crashed(broker, tmp_path / "b", clock)
        found = broker.transactions.describe("t")
        assert (found.state, found.partitions) == (ONGOING, {A})
        assert (await broker.partition(A).append(batch)).duplicate
        await broker.transactions.end("t", producer, commit=True, version=2)
        assert await committed_values(broker, A) == [b"v"]
        await stop(broker)

    asyncio.run(story())


@pytest.mark.parametrize("version", [1, 2])
def test_a_damaged_partition_with_a_transaction_open_does_not_keep_the_broker_from_starting(tmp_path, clock, version):
    """The checkpoint says that it is open; no marker can be written there before somebody repairs it."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        producer = await broker.transactions.initialize("t", 60_000)
        await broker.transactions.add_partitions("t", producer, {A})
        await broker.partition(A).append(transactional_batch(producer, 0, b"v", clock))
        await broker.log.checkpoint()
        await broker.transactions.end("t", producer, commit=True, version=version)
        await broker.transactions._entries["t"].stored  # COMPLETE_COMMIT is durable
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        await stop(broker)
        (tmp_path / "b" / str(A) / "00000000000000000000.log").unlink()
        with structlog.testing.capture_logs() as logs:
            broker = await start(tmp_path / "b", clock)
        assert [each["partition"] for each in logs if each["event"] == "open_transactions_left"] == [str(A)]
        assert broker.transactions.describe("t").state is COMPLETE_COMMIT, "nothing of it is open that can be ended"
        producer = await broker.transactions.initialize("t", 60_000)
        await broker.transactions.add_partitions("t", producer, {B})
        await broker.partition(B).append(transactional_batch(producer, 0, b"v", clock))
        await broker.transactions.end("t", producer, commit=True, version=1)
        assert await committed_values(broker, B) == [b"v"]
        await stop(broker)

    asyncio.run(story())


def test_a_transaction_of_a_deleted_topic_ends(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            await broker.topics.create("gone", 1, {})
            producer = await broker.transactions.initialize("t", 60_000)
            await broker.transactions.add_partitions("t", producer, {A, TopicPartition("gone", 0)})
            await broker.topics.delete(broker.topics.by_name("gone"))
            await broker.transactions.end("t", producer, commit=True, version=1)
            assert broker.transactions.describe("t").state is COMPLETE_COMMIT

    asyncio.run(story())


def test_producer_ids_are_never_given_twice(tmp_path, clock):
    async def story():
        broker, given = await start(tmp_path / "0", clock), []
        for life in range(1, 4):
            given += [await broker.transactions.new_producer_id() for _ in range(3)]
            given.append((await broker.transactions.initialize(f"t{life}", 60_000)).producer_id)
            broker = await crashed(broker, tmp_path / str(life), clock)
        await stop(broker)
        assert len(set(given)) == len(given)

    asyncio.run(story())


def test_epochs_that_are_used_up_give_a_new_producer_id(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            producer = await transactions.initialize("t", 60_000)
            entry = transactions._entries["t"]
            await transactions._change(msgspec.structs.replace(entry.transaction, producer_epoch=32766))
            last = Producer(producer.producer_id, 32766)
            transactions.verify_or_add("t", *last_fields(last), A, implicit_add=True)
            await broker.partition(A).append(transactional_batch(last, 0, b"v", clock))
            after = await transactions.end("t", last, commit=True, version=2)
            assert after.producer_id != producer.producer_id
            assert after.producer_epoch == 0
            assert await transactions.end("t", last, commit=True, version=2) == after, "a retry"
            assert await committed_values(broker, A) == [b"v"]
            # By InitProducerId too.
            await transactions._change(msgspec.structs.replace(entry.transaction, producer_epoch=32766))
            again = await transactions.initialize("t", 60_000)
            assert (again.producer_epoch, again.producer_id in (producer.producer_id, after.producer_id)) == (0, False)

    asyncio.run(story())


def test_a_timeout_of_the_last_epoch_gives_a_new_producer_id(tmp_path, clock):
    """The transactional id could never be ended again, nor taken over, and no other transaction timed out any more."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        producer = await broker.transactions.initialize("t", 60_000)
        entry = broker.transactions._entries["t"]
        await broker.transactions._change(msgspec.structs.replace(entry.transaction, producer_epoch=32766))
        last = Producer(producer.producer_id, 32766)
        await broker.transactions.add_partitions("t", last, {A})
        await broker.partition(A).append(transactional_batch(last, 0, b"timed out", clock))
        broker = await crashed(broker, tmp_path / "b", clock)  # no id is reserved now
        transactions = broker.transactions
        clock.advance_ms(60_001)
        transactions.expire()
        await until(lambda: transactions._ids.left > 0, "ids are reserved")
        transactions.expire()
        await transactions._settle("t")
        after = await transactions.end("t", last, commit=False, version=2)
        assert (after.producer_epoch, after.producer_id != last.producer_id) == (0, True)
        await transactions.add_partitions("t", after, {A})
        await broker.partition(A).append(transactional_batch(after, 0, b"v", clock))
        await transactions.end("t", after, commit=True, version=2)
        assert await committed_values(broker, A) == [b"v"]
        await stop(broker)

    asyncio.run(story())


def last_fields(producer):
    return producer.producer_id, producer.producer_epoch


# --- waiting ----------------------------------------------------------------------------------------------------------


async def being_ended(transactions, group):
    """The producer of a transaction, and the task that is about to end it."""
    producer = await transactions.initialize("t", 60_000)
    await transactions.add_partitions("t", producer, {A})
    ended = group.create_task(transactions.end("t", producer, commit=True, version=1))
    await asyncio.sleep(0)
    assert transactions.describe("t").state in PREPARED
    return producer, ended


def test_requests_during_the_end_of_a_transaction_wait_for_it(tmp_path, clock):
    """No CONCURRENT_TRANSACTIONS: Kafka's clients would sleep 20 to 200 ms after each."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            async with asyncio.TaskGroup() as group:
                producer, ended = await being_ended(transactions, group)
                repeated = group.create_task(transactions.end("t", producer, commit=True, version=1))
                added = group.create_task(transactions.add_partitions("t", producer, {B}))
            assert ended.result() == repeated.result() == producer
            assert added.done()
            assert transactions.describe("t").partitions == {B}

    asyncio.run(story())


def test_who_takes_a_transactional_id_over_waits_for_the_end_of_its_transaction(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            async with asyncio.TaskGroup() as group:
                producer, ended = await being_ended(transactions, group)
                taken = group.create_task(transactions.initialize("t", 60_000))
            assert ended.result() == producer
            assert taken.result() == Producer(producer.producer_id, producer.producer_epoch + 1)

    asyncio.run(story())


def test_an_implicit_add_during_the_end_is_to_be_asked_again(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            producer = await transactions.initialize("t", 60_000)
            assert transactions.verify_or_add("t", *last_fields(producer), A, implicit_add=True) is None
            async with asyncio.TaskGroup() as group:
                ended = group.create_task(transactions.end("t", producer, commit=True, version=2))
                await asyncio.sleep(0)
                raised = Producer(producer.producer_id, producer.producer_epoch + 1)
                waiting = transactions.verify_or_add("t", *last_fields(raised), B, implicit_add=True)
                assert waiting is not None
                await waiting
                assert transactions.verify_or_add("t", *last_fields(raised), B, implicit_add=True) is None
            assert ended.result() == raised

    asyncio.run(story())


def test_partitions_of_one_request_are_added_with_one_record(tmp_path, clock):
    """Each wrote all that came before it once more: 200 MB for a request to 10,000 partitions."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            producer = await transactions.initialize("t", 60_000)
            before = sum(each.log_end_offset for each in transactions.storage.logs)
            for partition in (A, B):
                added = transactions.verify_or_add(
                    "t", *last_fields(producer), partition, implicit_add=True, beside={A, B}
                )
                assert added is None
            assert transactions.describe("t").partitions == {A, B}
            assert sum(each.log_end_offset for each in transactions.storage.logs) == before + 1

    asyncio.run(story())


def test_an_open_transaction_is_aborted_by_the_clock(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            producer = await transactions.initialize("t", 60_000)
            await transactions.add_partitions("t", producer, {A})
            await broker.partition(A).append(transactional_batch(producer, 0, b"v", clock))
            clock.advance_ms(60_000)
            transactions.expire()
            assert transactions.describe("t").state is ONGOING, "not a moment too early"
            clock.advance_ms(1)
            transactions.expire()
            await transactions._settle("t")
            assert transactions.describe("t").state is COMPLETE_ABORT
            assert broker.partition(A).last_stable_offset == 2
            with pytest.raises(ProducerFenced):
                await transactions.end("t", producer, commit=True, version=1)

    asyncio.run(story())


def test_a_wall_clock_that_is_set_ends_no_transaction_and_keeps_none(tmp_path):
    """Set forward, it ended all that was open: a source took that for a rival, and was failed for good."""
    clock = SetClock()

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            producer = await transactions.initialize("t", 60_000)
            await transactions.add_partitions("t", producer, {A})
            clock.set_ms = 3_600_000
            transactions.expire()
            assert transactions.describe("t").state is ONGOING
            await transactions.end("t", producer, commit=True, version=1)
            await transactions.add_partitions("t", producer, {A})
            clock.set_ms = 0
            clock.advance_ms(60_001)
            transactions.expire()
            await transactions._settle("t")
            assert transactions.describe("t").state is COMPLETE_ABORT

    asyncio.run(story())


def test_what_was_open_before_a_start_is_as_old_as_it_is(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            await broker.transactions.add_partitions("t", await broker.transactions.initialize("t", 60_000), {A})
        clock.advance_ms(50_000)
        async with running(tmp_path, clock) as broker:
            clock.advance_ms(10_000)
            broker.transactions.expire()
            assert broker.transactions.describe("t").state is ONGOING
            clock.advance_ms(1)
            broker.transactions.expire()
            await broker.transactions._settle("t")
            assert broker.transactions.describe("t").state is COMPLETE_ABORT

    asyncio.run(story())


def test_an_offline_partition_does_not_stop_the_clock_of_the_others(tmp_path, clock):
    """The first transaction that could not be stored ended the clock: no other timed out any more."""

    async def story():
        config = msgspec.structs.replace(CONFIG, transaction_abort_timed_out_transaction_cleanup_interval_ms=5)
        async with running(tmp_path, clock, config) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            names = "abcdefgh"
            for name in names:
                await transactions.add_partitions(name, await transactions.initialize(name, 1000), {A})
            offline = transactions.storage.partition_for("a")
            others = [name for name in names if transactions.storage.partition_for(name) != offline]
            assert others
            broker.partition(offline).go_offline(StorageError("bit rot"))
            clock.advance_ms(1001)
            await until(
                lambda: all(transactions.describe(name).state is COMPLETE_ABORT for name in others), "they time out"
            )
            assert transactions.describe("a").state is ONGOING
            await transactions.add_partitions("b", await transactions.initialize("b", 1000), {A})
            clock.advance_ms(1001)
            await until(lambda: transactions.describe("b").state is COMPLETE_ABORT, "the clock goes on")

    asyncio.run(story())


def test_an_error_nobody_foresaw_does_not_stop_the_clock_of_the_others(tmp_path, clock, monkeypatch):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            names = "abcd"
            for name in names:
                await transactions.add_partitions(name, await transactions.initialize(name, 1000), {A})
            broken = next(iter(transactions._watched))  # the first to have its turn
            right = transaction.fence

            def wrong(current, *rest):
                return 1 // 0 if current.transactional_id == broken else right(current, *rest)

            monkeypatch.setattr(transaction, "fence", wrong)
            clock.advance_ms(1001)
            transactions.expire()
            for name in names:
                await transactions._settle(name)
            states = {name: transactions.describe(name).state for name in names}
            assert states == {name: ONGOING if name == broken else COMPLETE_ABORT for name in names}

    asyncio.run(story())


def test_an_error_nobody_foresaw_does_not_leave_the_transactional_id_hanging(tmp_path, clock, monkeypatch):
    """The end was never settled: every later request of that id waited for ever."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            producer = await transactions.initialize("t", 60_000)
            await transactions.add_partitions("t", producer, {A})
            monkeypatch.delattr(PartitionLog, "append_marker")  # a bug
            with pytest.raises(CoordinatorUnavailable):
                await transactions.end("t", producer, commit=True, version=1)
            monkeypatch.undo()
            transactions.expire()
            await transactions.end("t", producer, commit=True, version=1)
            assert transactions.describe("t").state is COMPLETE_COMMIT

    asyncio.run(story())


def test_an_id_that_nobody_uses_is_forgotten(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await broker.transactions.initialize("t", 60_000)
        clock.advance_ms(broker.config.transactional_id_expiration_ms - 1)
        broker.transactions.expire()
        assert broker.transactions.describe("t").producer_epoch == 0
        clock.advance_ms(3_600_000)
        broker.transactions.expire()
        with pytest.raises(TransactionError, match="not known"):
            broker.transactions.describe("t")
        stored = broker.partition(broker.transactions.storage.partition_for("t"))
        await until(lambda: stored.high_watermark == stored.log_end_offset, "the tombstone is durable")
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.transactions.all_transactions() == []
        await stop(broker)

    asyncio.run(story())


def test_ids_that_nobody_uses_are_looked_for_also_after_the_clock_was_set_back(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await broker.transactions.initialize("t", 60_000)
            clock.advance_ms(broker.config.transactional_id_expiration_ms - 1)
            broker.transactions.expire()
            clock.set_back_ms(10_000_000)
            clock.advance_ms(10_000_001)
            broker.transactions.expire()
            with pytest.raises(TransactionError, match="not known"):
                broker.transactions.describe("t")

    asyncio.run(story())


def test_version_1_is_verified_in_the_same_turn_as_the_append(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            producer = await transactions.initialize("t", 60_000)
            with pytest.raises(PartitionNotInTransaction):
                transactions.verify_or_add("t", *last_fields(producer), A, implicit_add=False)
            await transactions.add_partitions("t", producer, {A})
            assert transactions.verify_or_add("t", *last_fields(producer), A, implicit_add=False) is None
            async with asyncio.TaskGroup() as group:
                group.create_task(transactions.end("t", producer, commit=True, version=1))
                await asyncio.sleep(0)
                with pytest.raises(PartitionNotInTransaction):
                    transactions.verify_or_add("t", *last_fields(producer), A, implicit_add=False)

    asyncio.run(story())


# --- everything at once -----------------------------------------------------------------------------------------------


class Handle:
    """A producer as its client sees itself."""

    def __init__(self, transactional_id, producer, version):
        self.transactional_id = transactional_id
        self.producer = producer
        self.version = version
        self.sequences = {}
        self.added = set()
        self.open = {}  # value: partition, of its open transaction
        self.offset = None  # the group's offset in its open transaction
        self.last = None  # the outcome of its last transaction
        self.timed_out = False


class Transactions(RuleBasedStateMachine):
    """Producers of two transactional ids, both versions, zombies, timeouts, kills, power cuts and compaction,
    against a model.

    The model knows the fate of every value that was acknowledged. A request whose answer a crash has swallowed is
    repeated afterwards, as every client does, and must then be answered as if nothing had happened.
    """

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="transactions-"))
        self.clock = ManualClock()
        self.numbers = itertools.count()
        self.committed = {0: [], 1: []}
        self.handles = []
        self.owners = {}
        self.offset = -1
        self.run(self._begin())

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    async def _begin(self):
        self.disk = SimulatedDisk(self.root)
        by_hand = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 3_600_000}
        config = msgspec.structs.replace(CONFIG, **by_hand)
        self.broker = await start(self.root, self.clock, config, disk=self.disk)
        await a_topic(self.broker)
        for name in (OFFSETS_TOPIC, STATE_TOPIC):  # small enough to be compacted all the time
            topic = self.broker.topics.by_name(name)
            small = {"segment.bytes": "400", "min.cleanable.dirty.ratio": "0.0", "delete.retention.ms": "0"}
            await self.broker.topics.set_config(topic, topic.config | small)
        self.client = await Client.connect(self.broker)

    def teardown(self):
        self.client.close()
        self.run(stop(self.broker))
        self.run(asyncio.sleep(0))
        self.loop.close()
        shutil.rmtree(self.root)

    # --- what producers do ---

    @rule(transactional_id=st.sampled_from("ab"), version=st.sampled_from((1, 2)))
    def initialize(self, transactional_id, version):
        answer = self.run(self.client.call(22, 4, transactional_id=transactional_id, transaction_timeout=60_000))
        assert answer.error_code == Code.none
        producer = Producer(int(answer.producer_id), int(answer.producer_epoch))
        handle = Handle(transactional_id, producer, version)
        self.owners[transactional_id] = handle  # whoever had it is a zombie, and its transaction is aborted
        self.handles.append(handle)

    def _alive(self, handle):
        return self.owners.get(handle.transactional_id) is handle and not handle.timed_out

    def _produce_request(self, handle, partition, value):
        sequence = handle.sequences.get((partition, handle.producer), 0)
        return {
            "transactional_id": handle.transactional_id,
            "acks": -1,
            "timeout": 10_000,
            "topic_data": [
                {
                    "name": TOPIC,
                    "partition_data": [
                        {
                            "index": partition,
                            "records": transactional_batch(handle.producer, sequence, value, self.clock),
                        }
                    ],
                }
            ],
        }

    async def _add(self, handle, partition):
        answer = await self.client.call(
            24,
            3,
            v3_and_below_transactional_id=handle.transactional_id,
            v3_and_below_producer_id=handle.producer.producer_id,
            v3_and_below_producer_epoch=handle.producer.producer_epoch,
            v3_and_below_topics=[{"name": TOPIC, "partitions": [partition]}],
        )
        return Code(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def _produce(self, handle, partition, value):
        version = 12 if handle.version == 2 else 9
        answer = await self.client.call(0, version, **self._produce_request(handle, partition, value))
        return Code(answer.responses[0].partition_responses[0].error_code)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), partition=st.sampled_from((0, 1)), add_first=st.sampled_from((True, True, True, False)))
    def produce(self, data, partition, add_first):
        handle = data.draw(st.sampled_from(self.handles[-4:]))
        value = b"%d" % next(self.numbers)
        alive = self._alive(handle)
        if handle.version == 1 and partition not in handle.added and add_first:
            added = self.run(self._add(handle, partition))
            assert added is (Code.none if alive else Code.producer_fenced)
            if alive:
                handle.added.add(partition)
        code = self.run(self._produce(handle, partition, value))
        if not alive:
            assert code is Code.invalid_producer_epoch, "fenced producers change nothing"
        elif handle.version == 1 and partition not in handle.added:
            assert code is Code.invalid_txn_state
        else:
            assert code is Code.none
            key = (partition, handle.producer)
            handle.sequences[key] = handle.sequences.get(key, 0) + 1
            handle.open[value] = partition
            handle.added.add(partition)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def commit_offset(self, data):
        handle = data.draw(st.sampled_from(self.handles[-4:]))
        alive, offset = self._alive(handle), next(self.numbers)
        code = self.run(self._commit_offset(handle, offset))
        if alive:
            assert code is Code.none
            handle.offset = offset
            handle.added.add("offsets")
        else:
            assert code in (Code.invalid_producer_epoch, Code.producer_fenced)

    async def _commit_offset(self, handle, offset):
        producer = {
            "transactional_id": handle.transactional_id,
            "producer_id": handle.producer.producer_id,
            "producer_epoch": handle.producer.producer_epoch,
            "group_id": "g",
        }
        if handle.version == 1 and "offsets" not in handle.added:
            added = Code((await self.client.call(25, 3, **producer)).error_code)
            if added is not Code.none:
                return added
        topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
        answer = await self.client.call(28, 5 if handle.version == 2 else 3, **producer, topics=topics)
        return Code(answer.topics[0].partitions[0].error_code)

    async def _end(self, handle, commit):
        return await self.client.call(
            26,
            5 if handle.version == 2 else 3,
            transactional_id=handle.transactional_id,
            producer_id=handle.producer.producer_id,
            producer_epoch=handle.producer.producer_epoch,
            committed=commit,
        )

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data, commit):
        handle = data.draw(st.sampled_from(self.handles[-4:]))
        answer = self.run(self._end(handle, commit))
        expected = self._expected_end(handle, commit)
        assert answer.error_code == expected
        if expected is not Code.none:
            return
        if handle.added:
            self._ended(handle, commit)
        if handle.version == 2:
            handle.producer = Producer(int(answer.producer_id), int(answer.producer_epoch))
            handle.timed_out = False  # it may go on with the raised epoch

    def _expected_end(self, handle, commit):
        if self.owners.get(handle.transactional_id) is not handle:
            return Code.producer_fenced
        if handle.timed_out:
            recovers = Code.invalid_txn_state if commit else Code.none
            return Code.producer_fenced if handle.version == 1 else recovers
        if handle.added:
            return Code.none
        if handle.version == 2:
            return Code.invalid_txn_state if commit else Code.none
        return Code.none if handle.last is commit else Code.invalid_txn_state

    def _ended(self, handle, commit):
        if commit:
            for value, partition in handle.open.items():
                self.committed[partition].append(value)
            if handle.offset is not None:
                self.offset = handle.offset
        handle.open, handle.added, handle.offset, handle.last = {}, set(), None, commit

    # --- what befalls them ---

    @rule()
    def time_passes(self):
        self.clock.advance_ms(60_001)
        self.broker.transactions.expire()
        self.run(self._settle())
        for handle in self.owners.values():
            if handle.added:
                self._ended(handle, commit=False)
                handle.timed_out = True

    async def _settle(self):
        for transactional_id in "ab":
            await self.broker.transactions._settle(transactional_id)

    @rule(milliseconds=st.sampled_from((0, 20_000)))
    def compact(self, milliseconds):
        self.clock.advance_ms(milliseconds)
        self.run(self.broker.log.housekeep())

    @rule(data=st.data(), turns=st.integers(0, 25), power_cut_seed=st.none() | st.integers(0, 2**32))
    def crash(self, data, turns, power_cut_seed):
        """The end of the process or of the machine, perhaps while a producer waits for an answer it will not get."""
        alive = sorted(name for name, handle in self.owners.items() if not handle.timed_out)
        waiting = data.draw(st.sampled_from(("nothing", "produce", "commit", "abort"))) if alive else "nothing"
        handle = self.owners[data.draw(st.sampled_from(alive))] if waiting != "nothing" else None
        value = b"%d" % next(self.numbers)
        if waiting == "produce" and handle.version == 1 and 0 not in handle.added:
            waiting = "nothing"
        if waiting in ("commit", "abort") and not handle.added:
            waiting = "nothing"
        self.run(self._crash(handle, waiting, value, turns, power_cut_seed))
        if waiting == "produce":
            self._resolve_produce(handle, value)
        elif waiting in ("commit", "abort"):
            self._resolve_end(handle, waiting == "commit")

    async def _crash(self, handle, waiting, value, turns, power_cut_seed):
        task = None
        if waiting == "produce":
            task = self.loop.create_task(self._produce(handle, 0, value))
        elif waiting in ("commit", "abort"):
            task = self.loop.create_task(self._end(handle, waiting == "commit"))
        for _ in range(turns):
            await asyncio.sleep(0)
        self.client.close()
        if power_cut_seed is None:
            self.disk = self.disk.after_kill()
        else:
            self.disk = self.disk.after_power_cut(adversary(power_cut_seed))
        self.broker = await restarted(self.broker, self.clock, self.disk)
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
        self.client = await Client.connect(self.broker)
        await self._settle()

    def _resolve_produce(self, handle, value):
        """The client sends the batch again: it is taken once, whether it was there before or not."""
        assert self.run(self._produce(handle, 0, value)) is Code.none
        key = (0, handle.producer)
        handle.sequences[key] = handle.sequences.get(key, 0) + 1
        handle.open[value] = 0
        handle.added.add(0)

    def _resolve_end(self, handle, commit):
        """The client sends EndTxn again, and is answered as it would have been."""
        answer = self.run(self._end(handle, commit))
        assert answer.error_code == Code.none
        self._ended(handle, commit)
        if handle.version == 2:
            handle.producer = Producer(int(answer.producer_id), int(answer.producer_epoch))

    # --- what always holds ---

    @invariant()
    def g8_readers_see_committed_transactions_whole_and_nothing_of_aborted_ones(self):
        for number in (0, 1):
            found = self.run(committed_records(partition_of(self.broker, TOPIC, number)))
            seen = [record.value for record in found]
            assert sorted(seen) == sorted(set(seen) & set(self.committed[number])), "an aborted or open value is seen"
            partition = partition_of(self.broker, TOPIC, number)
            for first_offset in partition.open_transactions.values():
                assert partition.last_stable_offset <= first_offset
            if not partition.open_transactions:
                assert sorted(seen) == sorted(self.committed[number])
                assert partition.last_stable_offset == partition.high_watermark

    @invariant()
    def the_groups_offset_is_that_of_the_last_committed_transaction(self):
        partition = TopicPartition(TOPIC, 0)
        found = self.broker.groups.offsets.get("g", partition)
        assert (-1 if found is None else found.offset) == self.offset
        pending = any(handle.offset is not None for handle in self.owners.values())
        assert self.broker.groups.offsets.is_unstable("g", partition) is pending

    @invariant()
    def an_open_transaction_in_the_log_is_one_the_coordinator_knows(self):
        ongoing = {
            each.producer_id: each.partitions
            for each in self.broker.transactions.all_transactions()
            if each.state is ONGOING
        }
        for number in (0, 1):
            partition = partition_of(self.broker, TOPIC, number)
            for producer_id in partition.open_transactions:
                assert partition.topic_partition in ongoing[producer_id]


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=examples(30), stateful_step_count=25, deadline=None)
