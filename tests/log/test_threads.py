import asyncio
import functools
import threading

import pytest

from mainstem.log.threads import FileThreads, WriterThread
from tests.log.support import run


def test_a_call_runs_elsewhere_and_its_error_comes_back():
    async def test():
        threads = FileThreads(1)
        assert await threads.run(threading.get_ident) != threading.get_ident()
        assert await threads.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.run(divmod, 1, 0)
        threads.close()

    run(test())


def test_the_buffer_grows_and_is_used_again():
    async def test():
        threads = FileThreads(1)
        small = threads.buffer(10)
        small[0] = 7
        assert len(small) == 10
        assert threads.buffer(5)[0] == 7
        assert len(threads.buffer(100)) == 100
        threads.close()
        await asyncio.sleep(0)

    run(test())


def test_the_writer_calls_in_order_and_tells_the_loop_how_each_ended():
    async def test():
        loop, thread, told = asyncio.get_running_loop(), WriterThread("writes"), []
        finished = loop.create_future()

        def done(number, error):
            told.append((number, threading.get_ident() == here, error and type(error)))
            if number == 2:
                finished.set_result(None)

        here = threading.get_ident()
        calls = [lambda: None, lambda: 1 / 0, lambda: None]
        for number, call in enumerate(calls):
            thread.run(call, functools.partial(done, number))
        await asyncio.wait_for(finished, 10)
        assert told == [(0, True, None), (1, True, ZeroDivisionError), (2, True, None)]
        thread.close()
        thread.close()

    run(test())


def test_who_was_not_told_when_the_writer_is_closed_is_not_told_any_more():
    async def test():
        thread, told = WriterThread("writes"), []
        thread.run(lambda: None, told.append)
        thread.close()
        await asyncio.sleep(0.01)
        assert told == []

    run(test())


def test_the_writer_ends_where_the_loop_is_gone():
    async def test():
        started, goes_on = threading.Event(), threading.Event()
        thread = WriterThread("writes")
        thread.run(lambda: (started.set(), goes_on.wait(10)), lambda error: None)
        await asyncio.to_thread(started.wait, 10)
        return thread, goes_on

    thread, goes_on = run(test())
    goes_on.set()
    thread.close()
