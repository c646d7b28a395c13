import asyncio
import gc
import threading
import weakref

import pytest

from mainstem.web.threads import Overloaded, Threads, call_soon


def test_who_waits_for_too_many_others_is_told():
    go_on = threading.Event()

    async def work():
        threads = Threads("the dashboard", 1, 1)
        first, second = (asyncio.ensure_future(threads.call(go_on.wait)) for _ in range(2))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="the dashboard answers 2 requests already"):
            await threads.call(print)
        go_on.set()
        assert await asyncio.gather(first, second) == [True, True]
        assert await threads.call(int, "7") == 7
        threads.close()

    asyncio.run(work())


def test_who_waits_longer_than_it_has_time_is_told():
    go_on = threading.Event()

    async def work():
        threads = Threads("the dashboard", 1, 5)
        first = asyncio.ensure_future(threads.call(go_on.wait, within=0))  # at once
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=r"the turn of this one did not come in 0\.1 s"):
            await threads.call(print, "never", within=0.1)
        last = asyncio.ensure_future(threads.call(int, "7", within=300))
        given_up = asyncio.ensure_future(threads.call(print, "never", within=300))
        await asyncio.sleep(0)
        given_up.cancel()
        go_on.set()
        assert await asyncio.gather(first, last) == [True, 7]
        with pytest.raises(asyncio.CancelledError):
            await given_up
        threads.close()

    asyncio.run(work())


def test_an_answer_is_not_kept_for_as_long_as_its_turn_could_have_taken():
    """Thirty answers of 64 MB each stayed in memory for five minutes after they were given."""

    class Answer:
        pass

    go_on = threading.Event()

    async def work():
        threads = Threads("the dashboard", 1, 5)
        first = asyncio.ensure_future(threads.call(go_on.wait))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(threads.call(Answer, within=300))
        await asyncio.sleep(0)
        go_on.set()
        kept = weakref.ref(await second)
        await first
        del second
        await asyncio.sleep(0)  # the step of the loop that brought it holds it, too
        gc.collect()
        assert kept() is None
        threads.close()

    asyncio.run(work())


def test_a_closed_loop_is_called_no_more():
    loop = asyncio.new_event_loop()
    called = []
    call_soon(loop, called.append, 1)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    call_soon(loop, called.append, 2)
    assert called == [1]
