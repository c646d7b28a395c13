import asyncio

import pytest

from mainstem.broker.transactions import Producer, transaction
from mainstem.broker.transactions.transaction import COMPLETE_ABORT, COMPLETE_COMMIT
from tests.support.broker import (
    crashed,
    running,
    start,
    stop,
)
from tests.support.facts import FIRST as A
from tests.support.facts import SECOND as B
from tests.support.facts import a_topic
from tests.support.transactions import committed_values, transactional_batch


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_ends_after_a_marker_by_hand_of_a_higher_coordinator_epoch(tmp_path, clock, version, commit):
    """Its own marker was refused, the client was told that it committed, and readers waited for ever."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            producer = await transactions.initialize("t", 60_000)
            await transactions.add_partitions("t", producer, {A})
            await transactions.write_marker(producer, A, commit=False, coordinator_epoch=1000)
            await broker.partition(A).append(transactional_batch(producer, 0, b"v", clock))
            producer = await transactions.end("t", producer, commit=commit, version=version)
            assert await committed_values(broker, A) == ([b"v"] if commit else [])
            assert broker.partition(A).last_stable_offset == broker.partition(A).high_watermark == 3
            await transactions.add_partitions("t", producer, {A})
            await broker.partition(A).append(transactional_batch(producer, 1 if version == 1 else 0, b"w", clock))
            await transactions.end("t", producer, commit=True, version=version)
            assert (await committed_values(broker, A))[-1:] == [b"w"]

    asyncio.run(story())


@pytest.mark.parametrize("restart", [False, True])
def test_what_a_later_epoch_has_open_is_not_committed_with_an_older_transaction(tmp_path, clock, restart):
    """As after a repair of `__transaction_state`: the record is older than what is in the log. It hung for ever."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        transactions = broker.transactions
        producer = await transactions.initialize("t", 60_000)
        await transactions.add_partitions("t", producer, {A, B})
        await broker.partition(B).append(transactional_batch(producer, 0, b"v", clock))
        later = Producer(producer.producer_id, producer.producer_epoch + 5)
        await broker.partition(A).append(transactional_batch(later, 0, b"of a later epoch", clock))
        if restart:
            prepared = transaction.end(
                transactions.describe("t"), "t", producer, clock.now_ms(), None, commit=True, version=2
            )
            await transactions._change(prepared)
            broker = await crashed(broker, tmp_path / "b", clock)
            await broker.transactions._settle("t")
        else:
            await transactions.end("t", producer, commit=True, version=2)
        assert broker.transactions.describe("t").state is COMPLETE_COMMIT
        assert (await committed_values(broker, A), await committed_values(broker, B)) == ([], [b"v"])
        for partition in (A, B):
            assert broker.partition(partition).last_stable_offset == broker.partition(partition).high_watermark == 2
        await stop(broker)

    asyncio.run(story())


def test_a_marker_that_a_later_epoch_has_outrun_is_not_waited_for(tmp_path, clock):
    """Somebody has ended by hand what was open, with the producer's next epoch."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            transactions = broker.transactions
            producer = await transactions.initialize("t", 60_000)
            await transactions.add_partitions("t", producer, {A})
            await broker.partition(A).append(transactional_batch(producer, 0, b"v", clock))
            by_hand = Producer(producer.producer_id, producer.producer_epoch + 5)
            await transactions.write_marker(by_hand, A, commit=False, coordinator_epoch=0)
            await transactions.end("t", producer, commit=False, version=1)
            assert transactions.describe("t").state is COMPLETE_ABORT
            assert broker.partition(A).last_stable_offset == broker.partition(A).high_watermark == 2

    asyncio.run(story())
