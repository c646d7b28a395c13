"""The memory of batches that grow by the compression of their topic."""

import asyncio
import gc

import psutil
import pytest

from mainstem.broker.config import BrokerConfig
from mainstem.broker.handlers.produce import _Produce
from mainstem.broker.recompression import PLACES, Growth, Places
from mainstem.broker.request_memory import RequestMemory
from mainstem.core import ManualClock, SystemClock
from mainstem.log import BatchTooLarge
from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code
from tests.support.broker import Client, running, until

MB = 1 << 20
HERE, THERE = "/10.0.0.1", "/10.0.0.2"


def growths(count, limit=10 * MB):
    memory = RequestMemory(limit, ManualClock(), lambda _: None, lambda *_: None)
    places = Places()
    return memory, places, [Growth(memory, places, HERE) for _ in range(count)]


async def free_again(places):
    await until(lambda: places.free == PLACES, "all places are free")


def test_what_has_grown_is_of_the_budget_and_gives_its_place_to_the_next():
    async def check() -> None:
        memory, places, (one,) = growths(1)
        await one.begin()
        one.came_to(MB)
        assert (memory.held, one.has_place) == (MB, False)
        one.end()
        one.end()
        assert (memory.held, memory._held_by) == (0, {})
        await free_again(places)

    asyncio.run(check())


def test_where_there_is_no_room_it_keeps_its_place_until_it_ends():
    async def check() -> None:
        memory, places, all_ = growths(PLACES + 1)
        for each in all_[:-1]:
            await each.begin()
            each.came_to(100 * MB)
        assert memory.held == 0
        last = asyncio.create_task(all_[-1].begin())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not last.done()
        all_[0].end()
        await last
        for each in all_:
            each.end()
        await free_again(places)

    asyncio.run(check())


def test_an_append_that_is_tried_again_counts_once():
    """It had to wait for its transaction, or is made anew since the topic has other settings."""

    async def check() -> None:
        memory, places, (one,) = growths(1)
        await one.begin()
        for _ in range(3):
            one.came_to(MB)
            assert memory.held == MB
        one.end()
        assert memory.held == 0
        await free_again(places)

    asyncio.run(check())


def test_places_are_of_the_addresses_that_have_had_them_least():
    async def check() -> None:
        places, order = Places(1), []

        async def work(host, seconds):
            await places.acquire(host)
            order.append(host)
            await asyncio.sleep(0)
            places.release(host, seconds)

        async with asyncio.TaskGroup() as group:
            for host, seconds in [(HERE, 3)] * 3 + [(THERE, 1)] * 5:
                group.create_task(work(host, seconds))
        assert order == [HERE, THERE, THERE, THERE, HERE, THERE, THERE, HERE]
        assert (places.free, places._waiting, places._used) == (1, {}, {})

    asyncio.run(check())


async def producers(places, host, count, *, until_served, served):
    """So many at once, each asking again when it has had its place for a while, until all together had it so often."""

    async def work():
        while len(served) < until_served:
            await places.acquire(host)
            served.append(host)
            await asyncio.sleep(0)
            places.release(host, 0.1)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(work())


def test_an_address_that_comes_later_does_not_make_up_for_the_time_before():
    """It had all places until it had used as many seconds: others waited as long as they had been at it, 22 s."""

    async def check() -> None:
        places, served = Places(), []
        async with asyncio.TaskGroup() as group:
            group.create_task(producers(places, HERE, 4, until_served=600, served=served))
            while len(served) < 300:
                await asyncio.sleep(0)
            group.create_task(producers(places, THERE, 4, until_served=600, served=served))
        later = served[300:600]
        assert 140 <= later.count(THERE) <= 160
        assert all(HERE in later[at : at + 8] for at in range(290))

    asyncio.run(check())


def test_who_waits_no_more_leaves_nothing_behind():
    """All that had been cancelled was gone through with the next release: 1.3 s of 8,000."""

    async def check() -> None:
        places = Places(1)
        await places.acquire(HERE)
        waiting = [asyncio.create_task(places.acquire(f"/10.1.0.{number % 7}")) for number in range(21)]
        await asyncio.sleep(0)
        for each in waiting[1:]:
            each.cancel()
        await asyncio.wait(waiting[1:])
        assert list(map(len, places._waiting.values())) == [1]
        places.release(HERE, 0.1)
        waiting[0].cancel()  # it has its turn, and does not know yet
        await asyncio.wait(waiting)
        assert (places.free, places._waiting) == (1, {})

    asyncio.run(check())


def test_addresses_that_come_once_do_not_keep_others_waiting():
    """Each began as one that had had nothing, so whoever had had something waited as long as new ones came."""

    async def check() -> None:
        places, served = Places(), []

        async def newcomers(number):
            while len(served) < 600:
                host = f"/10.1.{number}.{len(served)}"
                await places.acquire(host)
                served.append(host)
                await asyncio.sleep(0)
                places.release(host, 0.1)

        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(newcomers(number))
            group.create_task(producers(places, HERE, 1, until_served=600, served=served))
        assert all(HERE in served[at : at + 20] for at in range(580))
        assert (places.free, places._waiting, places._used) == (PLACES, {}, {})

    asyncio.run(check())


def test_a_request_of_many_partitions_waits_once_for_others():
    """It waited for another address's append before each of its own: 40 partitions for 30 s."""

    async def check() -> None:
        memory = RequestMemory(10 * MB, ManualClock(), lambda _: None, lambda *_: None)
        places, order = Places(1), []

        async def request(host, appends, seconds):
            for _ in range(appends):
                growth = Growth(memory, places, host)
                await asyncio.wait_for(growth.begin(), 30)
                order.append(host)
                await asyncio.sleep(seconds)
                growth.came_to(0)

        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(request(HERE, 3, 0.1))
            group.create_task(request(THERE, 20, 0.001))
        first = order.index(THERE)
        assert first <= 1
        assert order[first : first + 20] == [THERE] * 20

    asyncio.run(check())


def test_who_is_cancelled_as_it_gets_its_place_gives_it_to_the_next():
    async def check() -> None:
        places = Places(1)
        await places.acquire(HERE)
        first, second = [asyncio.create_task(places.acquire(HERE)) for _ in range(2)]
        await asyncio.sleep(0)
        places.release(HERE, 1)
        first.cancel()
        await asyncio.wait_for(second, 5)
        assert first.cancelled()
        places.release(HERE, 1)
        assert places.free == 1

    asyncio.run(check())


def test_who_gives_up_before_it_has_a_place_takes_none():
    async def check() -> None:
        _, places, all_ = growths(PLACES + 1)
        for each in all_[:-1]:
            await each.begin()
        last = asyncio.create_task(asyncio.wait_for(all_[-1].begin(), 0.01))
        await asyncio.wait([last])
        assert isinstance(last.exception(), TimeoutError)
        for each in all_:
            each.end()
        await free_again(places)

    asyncio.run(check())


@pytest.mark.parametrize(("acks", "count"), [(-1, 0), (0, 1)])
def test_who_has_gone_before_it_has_a_place_was_promised_nothing(tmp_path, acks, count):
    """Else what it has sent would be in memory as long as others take; who wants no answer may go at once."""

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            await broker.topics.create("t", 1, {"compression.type": "gzip"})
            (_, places), log = broker.growth.args, broker.topics.by_name("t").logs[0]
            for _ in range(PLACES):
                await places.acquire(HERE)
            client = await Client.connect(broker)
            batch = build_batch([Record(0, 1_700_000_000_000, None, bytes(20_000))])
            topics = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
            client.send(0, 9, transactional_id=None, acks=acks, timeout=1, topic_data=topics)
            await until(lambda: bool(places._waiting), "it waits")
            client.close()
            await until(lambda: not broker.connections, "it has gone")
            assert broker.admission._all == 1
            for _ in range(PLACES):
                places.release(HERE, 0)
            await until(lambda: places.free == PLACES and broker.admission._all == 0, "nothing of it is left")
            assert log.log_end_offset == count

    asyncio.run(check(tmp_path))


def test_what_a_refused_batch_was_unpacked_to_is_let_go_of_at_once(tmp_path):
    """The error's traceback held it, in a ring of references: 16 MB for each request of 641 bytes, until the collector
    of garbage came by.
    """

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            await broker.topics.create("t", 1, {"compression.type": "uncompressed"})
            large = build_batch([Record(0, 1_700_000_000_000, None, bytes(16_000_000))], compression="zstd")
            topics = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(large)}]}]
            body = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": topics}
            process, sizes = psutil.Process(), []
            client = await Client.connect(broker)
            gc.collect()
            gc.disable()
            try:
                for _ in range(12):
                    answer = await client.call(0, 9, **body)
                    assert answer.responses[0].partition_responses[0].error_code == Code.message_too_large
                    sizes.append(process.memory_info().rss)
                await until(  # the last answer has left before all who made it have ended
                    lambda: not any(isinstance(each, (_Produce, BatchTooLarge)) for each in gc.get_objects()),
                    "nothing is left of them",
                )
            finally:
                gc.enable()
            client.close()
            assert sizes[-1] - sizes[1] < 40_000_000

    asyncio.run(check(tmp_path))


def test_small_requests_that_grow_a_thousandfold_stay_within_the_budget(tmp_path):
    """Forty of 4 KB held 1.1 GB: batches of zeros, in a topic that is not compressed."""
    most = 0

    async def produce(broker, batches):
        client = await Client.connect(broker)
        topics = [{"name": "t", "partition_data": [{"index": 0, "records": batches}]}]
        body = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": topics}
        answer = await client.call(0, 9, **body)
        client.close()
        return answer.responses[0].partition_responses[0].error_code

    async def check(directory) -> None:
        nonlocal most
        config = BrokerConfig(port=0, queued_max_request_bytes=8 * MB)
        async with running(directory, SystemClock(), config) as broker:
            await broker.topics.create("t", 1, {"compression.type": "uncompressed"})
            memory, take = broker.request_memory, broker.request_memory.take

            def watched(size, host):
                nonlocal most
                take(size, host)
                most = max(most, memory.held)

            memory.take = watched
            one = build_batch([Record(0, 1_700_000_000_000, None, bytes(1_000_000))], compression="zstd")
            codes = await asyncio.gather(*(produce(broker, bytes(one) * 3) for _ in range(40)))
            assert set(codes) == {Code.none}
            codes = await asyncio.gather(*(produce(broker, bytes(one) * 32) for _ in range(10)))
            assert set(codes) == {Code.message_too_large}
            assert 3 * MB < most <= 8 * MB
            assert memory.held == 0
            await free_again(broker.growth.args[1])

    asyncio.run(check(tmp_path))
