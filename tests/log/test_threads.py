import asyncio
import threading

import pytest

from mainstem.log.threads import FileThreads
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
