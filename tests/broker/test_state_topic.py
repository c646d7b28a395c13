import asyncio

import pytest

from mainstem.broker.placement import place_of
from mainstem.broker.state_topic import StateTopic
from mainstem.core import MainstemError, ManualClock
from mainstem.log.errors import BatchTooLarge, StorageError
from mainstem.records import Record, build_batch
from tests.log.support import joined
from tests.support.broker import running, start, stop

TOPIC = "states"
PARTITIONS = 4


class NotThere(MainstemError):
    def __init__(self, name, reason):
        super().__init__(f"{name}: {reason}")


def a_batch(name, size=1):
    return build_batch([Record(0, 0, name.encode(), b"v" * size)])


async def a_state_topic(broker):
    return StateTopic(await broker.ensure_internal_topic(TOPIC, PARTITIONS, {}), NotThere)


async def keys_of(partition_log):
    partition_log.check_usable()
    found = await partition_log.read(0, 1 << 20)
    return joined(found)


def names_of_others(name):
    return [each for each in "abcdefgh" if place_of(each, PARTITIONS) != place_of(name, PARTITIONS)]


def test_what_belongs_to_a_name_is_appended_where_it_is_looked_for(tmp_path):
    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            states = await a_state_topic(broker)
            offsets = await asyncio.gather(states.append("a", a_batch("a")), states.append("a", a_batch("a")))
            assert offsets == [0, 1]
            assert states.partition_for("a") == states.logs[place_of("a", PARTITIONS)].topic_partition
            assert broker.partition(states.partition_for("a")).log_end_offset == 2
            elsewhere = (states.number("a") + 1) % PARTITIONS
            assert await states.append("a", a_batch("a"), number=elsewhere) == 0

    asyncio.run(story())


def test_what_is_refused_is_said_in_the_words_of_the_coordinator(tmp_path):
    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            states = await a_state_topic(broker)
            with pytest.raises(BatchTooLarge):
                states.append("a", a_batch("a", 2 << 20))
            on_its_way = states.append("a", a_batch("a"))
            broker.partition(states.partition_for("a")).go_offline(StorageError("the disk is gone"))
            with pytest.raises(NotThere, match=r"a: .*the disk is gone"):
                states.append("a", a_batch("a"))
            await asyncio.wait([on_its_way])
            for other in names_of_others("a"):
                await states.append(other, a_batch(other))

    asyncio.run(story())


def test_a_damaged_partition_is_left_out_and_only_its_names_wait(tmp_path):
    async def story():
        broker = await start(tmp_path, ManualClock())
        states = await a_state_topic(broker)
        for name in "abcdefgh":
            await states.append(name, a_batch(name))
        damaged = states.partition_for("a")
        assert sorted(await states.read(keys_of, event="not_read")) == list(range(PARTITIONS))
        assert states.knows_all
        await stop(broker)
        (segment,) = (tmp_path / str(damaged)).glob("*.log")
        content = bytearray(segment.read_bytes())
        content[30] ^= 1
        segment.write_bytes(content)
        broker = await start(tmp_path, ManualClock())
        states = await a_state_topic(broker)
        found = await states.read(keys_of, event="not_read")
        assert sorted(found) == [number for number in range(PARTITIONS) if number != damaged.partition]
        assert not states.knows_all
        assert not states.is_read("a")
        with pytest.raises(NotThere, match=f"a: .*{damaged}"):
            states.check_read("a")
        for other in names_of_others("a"):
            states.check_read(other)
        await stop(broker)

    asyncio.run(story())


def test_a_machine_that_is_short_of_something_is_no_damage(tmp_path):
    async def fails(_):
        raise StorageError("no file descriptor is left")

    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            states = await a_state_topic(broker)
            with pytest.raises(StorageError, match="no file descriptor"):
                await states.read(fails, event="not_read")
            assert states.knows_all

    asyncio.run(story())
