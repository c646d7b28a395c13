import asyncio

from mainstem.broker.transactions import Producer
from tests.support.broker import (
    crashed,
    start,
    stop,
)
from tests.support.facts import FIRST as A
from tests.support.facts import a_topic
from tests.support.transactions import committed_values, transactional_batch


def test_an_open_transaction_of_nobody_is_aborted_at_the_start(tmp_path, clock):
    """Without an owner nobody could ever end it, and readers of committed records would wait for ever."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        stranger = Producer(4711, 3)
        await broker.partition(A).append(transactional_batch(stranger, 0, b"v", clock))
        assert broker.partition(A).last_stable_offset == 0
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.partition(A).last_stable_offset == 2
        assert await committed_values(broker, A) == []
        await stop(broker)

    asyncio.run(story())


def test_a_marker_by_hand_of_a_higher_coordinator_epoch_does_not_keep_the_broker_from_starting(tmp_path, clock):
    """The start's marker was refused because of it, at every try."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        stranger = Producer(4711, 3)
        await broker.partition(A).append(transactional_batch(stranger, 0, b"v", clock))
        await broker.transactions.write_marker(stranger, A, commit=False, coordinator_epoch=1000)
        await broker.partition(A).append(transactional_batch(stranger, 1, b"w", clock))
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.partition(A).last_stable_offset == broker.partition(A).high_watermark == 4
        assert await committed_values(broker, A) == []
        await stop(broker)

    asyncio.run(story())
