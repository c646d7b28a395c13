import asyncio

from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.basis import furthest, reaches
from mainstem.serve.waits import Changes, Overtaken, Waits, missing

positions = st.dictionaries(
    st.sampled_from("ab"), st.dictionaries(st.integers(0, 2), st.integers(0, 5), max_size=3), max_size=2
)


def covers(position, wanted):
    return all(reaches(position.get(topic, {}), each) for topic, each in wanted.items())


@given(st.lists(positions, max_size=8), st.lists(positions, min_size=1, max_size=5))
def test_whoever_waits_is_woken_by_the_step_that_reaches_what_they_want_and_by_no_earlier_one(steps, wanted):
    async def run():
        waits, woken = Waits(), {}

        async def wait(number):
            await waits.reached(wanted[number])
            woken[number] = waits.position

        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(wait(number)) for number in range(len(wanted))]
            await settle()
            for step in [{}, *steps]:
                waits.advance(step)
                await settle()
                for number, each in enumerate(wanted):
                    assert (number in woken) == covers(waits.position, each)
            for task in waiting:
                task.cancel()
        assert all(covers(position, wanted[number]) for number, position in woken.items())

    asyncio.run(run())


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


@given(positions, positions)
def test_what_is_missing_is_what_is_not_reached(position, wanted):
    assert (not missing(position, wanted)) == covers(position, wanted)
    assert not missing(furthest(position, wanted), wanted)


def test_those_who_give_up_are_not_kept():
    async def run():
        waits = Waits()
        for _ in range(5000):
            task = asyncio.ensure_future(waits.reached({"t": {0: 1}}))
            await asyncio.sleep(0)
            task.cancel()
            assert len(waits._waiting.get(("t", 0), ())) < 2000
        await settle()
        assert len(waits) == 0

    asyncio.run(run())


def test_nothing_is_left_of_partitions_that_nobody_waits_for_any_more():
    async def run():
        waits = Waits()
        tasks = [asyncio.ensure_future(waits.reached({"t": {number: 1}})) for number in range(300)]
        stays = asyncio.ensure_future(waits.reached({"t": {7: 2}}))
        await settle()
        for task in tasks:
            task.cancel()
        await settle()
        assert list(waits._waiting) == [("t", 7)]
        waits.advance({"t": {7: 2}})
        await stays
        assert not waits._waiting
        late = asyncio.ensure_future(waits.reached({"t": {7: 3}}))
        await settle()
        waits.overtake()
        await settle()
        assert isinstance(late.exception(), Overtaken)
        assert not waits._waiting

    asyncio.run(run())


def test_a_position_that_is_lost_is_waited_for_again():
    async def run():
        waits = Waits()
        waits.advance({"t": {0: 9}})
        waits.begin_again({"t": {0: 2}})
        task = asyncio.ensure_future(waits.reached({"t": {0: 5}}))
        await settle()
        assert not task.done()
        waits.advance({"t": {0: 5}})
        await task

    asyncio.run(run())


def test_a_change_wakes_all_who_wait_for_the_next_one():
    async def run():
        changes = Changes()
        waiting = [asyncio.ensure_future(changes.next()) for _ in range(3)]
        await settle()
        changes.tell()
        await asyncio.gather(*waiting)
        late = asyncio.ensure_future(changes.next())
        await settle()
        assert not late.done()
        late.cancel()

    asyncio.run(run())
