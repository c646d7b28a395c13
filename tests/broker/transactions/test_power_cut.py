"""Coordinator and data lose the machine together, with several requests in the round of the disk that was under way."""

import asyncio
import contextlib
import errno
import time
from random import Random

import msgspec
import pytest

from mainstem.broker.config import BrokerConfig
from mainstem.broker.transactions import STATE_TOPIC
from mainstem.broker.transactions.errors import StaleProducerEpoch
from mainstem.broker.transactions.transaction import COMPLETE_COMMIT, LAST_EPOCH
from mainstem.core import MainstemError, ManualClock, TopicPartition
from mainstem.log import StorageError
from mainstem.records import Record, build_batch
from tests.log.simulated_disk import SimulatedDisk, adversary
from tests.support.broker import committed_records, restarted, start, stop

A, B = TopicPartition("facts", 0), TopicPartition("facts", 1)
STATE = TopicPartition(STATE_TOPIC, 0)
# The clock's own tries would only add rounds at times of their own.
CONFIG = BrokerConfig(
    port=0,
    stop_timeout_ms=200,
    transaction_state_log_num_partitions=1,
    offsets_topic_num_partitions=1,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=3_600_000,
)


class SlowDisk(SimulatedDisk):
    """A sync of the journal takes a while, so that requests meet in rounds; the journal may fail in a certain one."""

    seconds = 0.0
    fails_with = b""
    """The journal takes no round that writes this to a segment."""
    failing = False

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        write, sync = file.write, file.sync
        journal = path.name.startswith("journal")

        def checked_write(pieces, position):
            if journal and self.failing:
                raise OSError(errno.EIO, "the power is off")
            write(pieces, position)
            self.failing = self.failing or (bool(self.fails_with) and self.fails_with in b"".join(pieces))

        def slow_sync():
            time.sleep(self.seconds)
            sync()

        file.write = checked_write
        file.sync = slow_sync if journal else sync
        return file


def produce(broker, transactional_id, producer, sequence, value, partition=A):
    """What the handler of Produce 12 does, once; None if the last transaction is in the way."""
    waits = []

    def verify(header):
        added = broker.transactions.verify_or_add(
            transactional_id, producer.producer_id, producer.producer_epoch, partition, implicit_add=True
        )
        if added is not None:
            waits.append(added)
            raise StaleProducerEpoch(transactional_id, "wait")

    batch = build_batch(
        [Record(0, broker.clock.now_ms(), b"k", value)],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )
    try:
        return broker.partition(partition).append(batch, verify=verify)
    except StaleProducerEpoch:
        if not waits:
            raise
        return waits[0]


async def produced(broker, *request):
    """`produce` until it is durable."""
    while True:
        result = await produce(broker, *request)
        if result is not None:
            return result


async def visible(broker, partition=A):
    found = await committed_records(broker.partition(partition))
    return [record.value for record in found if record.value != b"noise"]


@contextlib.asynccontextmanager
async def traffic(broker, partition):
    """Something is on its way to the disk all the time."""
    going, futures = True, []

    async def append():
        with contextlib.suppress(StorageError):
            while going:
                batch = build_batch([Record(0, 0, b"k", b"noise")])
                futures.append(broker.partition(partition).append(batch))
                await asyncio.sleep(0.0005)

    async with asyncio.TaskGroup() as group:
        group.create_task(append())
        yield
        going = False
    await asyncio.gather(*futures, return_exceptions=True)


async def until_the_next_batch_shares_a_round_with_the_end(root, clock, *, last_epoch=False):
    """First transaction committed; COMPLETE_COMMIT, the next add and its batch are in one round,
    which is not written.
    """
    for _ in range(50):
        disk = SlowDisk(root)
        broker = await start(root, clock, CONFIG, disk=disk)
        await broker.topics.create("facts", 2, {})
        producer = await broker.transactions.initialize("t", 60_000)
        if last_epoch:
            current = broker.transactions._entries["t"].transaction
            await broker.transactions._change(msgspec.structs.replace(current, producer_epoch=LAST_EPOCH))
            producer = broker.transactions.describe("t").producer
        await produce(broker, "t", producer, 0, b"first")
        await broker.log.checkpoint()  # the files' names are on the disk
        disk.seconds = 0.01
        async with traffic(broker, B):
            await asyncio.sleep(0.02)
            producer = await broker.transactions.end("t", producer, commit=True, version=2)
            second = produce(broker, "t", producer, 0, b"second")
            dirty = {sink.topic_partition for sink in broker.log._writer._dirty}
            if {STATE, A} <= dirty:
                disk.fails_with = b"second"
                with pytest.raises(StorageError):
                    await second
                return broker, disk, producer
        await stop(broker)
    raise AssertionError("the requests never met in one round")


@pytest.mark.parametrize("last_epoch", [False, True])
@pytest.mark.parametrize("kept", [{A}, {STATE}, {A, STATE}, set()])
def test_a_batch_of_the_next_transaction_is_not_committed_with_the_last_one(tmp_path, kept, last_epoch):
    """The crash kept the batch and lost COMPLETE_COMMIT: PREPARE_COMMIT's marker behind it would commit it unasked.

    The producer sends the batch again, which is taken for a duplicate, and commits: it is there once and no more.
    """
    clock = ManualClock()

    async def story():
        broker, disk, producer = await until_the_next_batch_shares_a_round_with_the_end(
            tmp_path, clock, last_epoch=last_epoch
        )
        for partition in kept:  # the system wrote these pages by itself
            disk.file(tmp_path / str(partition) / "00000000000000000000.log").sync()
        broker = await restarted(broker, clock, disk.after_power_cut(lambda _: 0))
        await broker.transactions._settle("t")
        assert await visible(broker) == [b"first"]
        assert broker.transactions.describe("t").producer == producer
        assert bool(broker.partition(A).open_transactions) is (A in kept)
        assert (await produced(broker, "t", producer, 0, b"second")).duplicate is (A in kept)
        await broker.transactions.end("t", producer, commit=True, version=2)
        assert await visible(broker) == [b"first", b"second"]
        assert broker.partition(A).last_stable_offset == broker.partition(A).high_watermark
        await stop(broker)

    asyncio.run(story())


def test_version_2_after_version_1_waits_until_the_end_is_durable(tmp_path):
    """Version 1's end leaves the epoch as it is: nothing would tell the next batch from one of the last transaction."""
    clock = ManualClock()

    async def story():
        broker = await start(tmp_path, clock, CONFIG, disk=SimulatedDisk(tmp_path))
        await broker.topics.create("facts", 2, {})
        producer = await broker.transactions.initialize("t", 60_000)
        await broker.transactions.add_partitions("t", producer, {A})
        await broker.partition(A).append(
            build_batch(
                [Record(0, 0, b"k", b"first")],
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
        )
        await broker.transactions.end("t", producer, commit=True, version=1)
        stored = broker.transactions._entries["t"].stored
        assert not stored.done(), "COMPLETE_COMMIT is on its way"
        added = broker.transactions.verify_or_add(
            "t", producer.producer_id, producer.producer_epoch, A, implicit_add=True
        )
        assert added is not None
        await added
        assert stored.done()
        await produced(broker, "t", producer, 1, b"second")
        await stop(broker)

    asyncio.run(story())


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_holds_where_a_topic_trusts_the_page_cache(tmp_path, version):
    """The disk kept the batch and lost its marker: COMPLETE_COMMIT is of no use to who finds the batch open."""
    clock = ManualClock()

    async def story():
        disk = SimulatedDisk(tmp_path)
        broker = await start(tmp_path, clock, CONFIG, disk=disk)
        await broker.topics.create("facts", 2, {"flush.messages": "10000"})
        producer = await broker.transactions.initialize("t", 60_000)
        if version == 1:
            await broker.transactions.add_partitions("t", producer, {A})
        await produced(broker, "t", producer, 0, b"v")
        await broker.log.checkpoint()  # the batch is synced
        producer = await broker.transactions.end("t", producer, commit=True, version=version)
        await broker.transactions._entries["t"].stored
        broker = await restarted(broker, clock, disk.after_power_cut(lambda _: 0))
        assert await visible(broker) == [b"v"]
        assert broker.transactions.describe("t").state is COMPLETE_COMMIT
        assert broker.transactions.describe("t").producer == producer
        await stop(broker)

    asyncio.run(story())


class Client:
    """A producer that commits and aborts transactions until the power fails, and remembers what it was told."""

    def __init__(self, name, seed):
        self.name = name
        self.random = Random(f"{name}{seed}")
        self.producer = None
        self.sequences = {}
        self.committed = []  # (partition, value) of transactions whose commit was answered
        self.asked = []  # of one whose commit was not answered
        self.open = []  # (partition, sequence, value) of the transaction that was open

    async def run(self, broker):
        with contextlib.suppress(MainstemError):
            self.producer = await broker.transactions.initialize(self.name, 60_000)
            for number in range(1000):
                await self.transaction(broker, number)

    async def transaction(self, broker, number):
        partitions = self.random.choice(((A,), (B,), (A, B)))
        self.open = []
        for place in range(self.random.randint(1, 2)):
            for partition in partitions:
                sequence = self.sequences.get(partition, 0)
                self.sequences[partition] = sequence + 1
                self.open.append((partition, sequence, f"{self.name}-{number}-{place}-{partition.partition}".encode()))
        await asyncio.gather(
            *(
                produced(broker, self.name, self.producer, sequence, value, partition)
                for partition, sequence, value in self.open
            )
        )
        commit = self.random.random() < 0.7
        said = [(partition, value) for partition, _, value in self.open]
        self.asked = said if commit else []
        self.producer = await broker.transactions.end(self.name, self.producer, commit=commit, version=2)
        self.open, self.sequences, self.asked = [], {}, []
        self.committed += said if commit else []


def test_transactions_stay_whole_when_the_power_fails_among_many(tmp_path):
    """Three producers and other traffic meet in rounds; the power fails at any change of the disk."""
    clock = ManualClock()

    async def cut(seed):
        root = tmp_path / str(seed)
        disk = SlowDisk(root)
        broker = await start(root, clock, CONFIG, disk=disk)
        await broker.topics.create("facts", 2, {})
        disk.seconds = 0.001
        clients = [Client(name, seed) for name in "abc"]
        disk.power_off_after(Random(seed).randint(20, 150))
        async with traffic(broker, B):
            await asyncio.gather(*(client.run(broker) for client in clients))
        for image_seed in range(6):
            image = disk.after_power_cut(adversary(seed * 100 + image_seed))
            broker = await restarted(broker, clock, image)
            for client in clients:
                await broker.transactions._settle(client.name)
            seen = {partition: await visible(broker, partition) for partition in (A, B)}
            for partition, values in seen.items():
                assert len(values) == len(set(values)), "twice"
                told = [value for client in clients for each, value in client.committed if each == partition]
                asked = [value for client in clients for each, value in client.asked if each == partition]
                assert set(told) <= set(values), "a commit that was answered is lost"
                assert set(values) <= set(told + asked), "what nobody committed is seen"
            for client in clients:
                whole = {value in seen[partition] for partition, value in client.asked}
                assert len(whole) <= 1, "half a transaction"
                if client.producer is not None:  # whoever takes over finds nothing that holds readers back
                    await broker.transactions.initialize(client.name, 60_000)
            for partition in (A, B):
                found = broker.partition(partition)
                assert found.last_stable_offset == found.high_watermark
        await stop(broker)

    for seed in range(25):
        asyncio.run(cut(seed))
