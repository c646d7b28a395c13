import asyncio
import threading

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


def test_a_closed_loop_is_called_no_more():
    loop = asyncio.new_event_loop()
    called = []
    call_soon(loop, called.append, 1)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    call_soon(loop, called.append, 2)
    assert called == [1]
