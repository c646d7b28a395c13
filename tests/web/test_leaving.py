import asyncio

import pytest

from mainstem.web.leaving import Leaving, Stopping


async def wait_for_ever(leaving, seconds=None):
    async with leaving.bounded(seconds):
        await asyncio.Event().wait()


def test_those_who_wait_are_told_at_once_and_those_who_come_later_too():
    async def run():
        leaving = Leaving("the node")
        waiting = [asyncio.ensure_future(wait_for_ever(leaving, seconds)) for seconds in (None, 300)]
        await asyncio.sleep(0)
        leaving.leave()
        leaving.leave()
        told = await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(Stopping, match="the node is stopping"):
            await wait_for_ever(leaving)
        return told

    told = asyncio.run(run())
    assert [(type(each), str(each), each.hint) for each in told] == 2 * [
        (Stopping, "the node is stopping", "ask again")
    ]


def test_a_time_that_is_over_and_errors_are_what_they_are():
    async def run():
        leaving = Leaving("the node")
        with pytest.raises(TimeoutError):
            await wait_for_ever(leaving, 0)
        with pytest.raises(KeyError):
            async with leaving.bounded(300):
                raise KeyError("x")
        async with leaving.bounded():
            pass

    asyncio.run(run())
