import asyncio
import threading

import pytest

from mainstem.client.loop import LoopThread


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_other_threads_wait_for_results_and_errors():
    loop = LoopThread()
    assert loop.run(double(21)) == 42

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        loop.run(fail())
    loop.close()


def test_closing_cancels_what_still_runs_and_ends_the_thread():
    before = threading.active_count()
    loop, cancelled = LoopThread(), threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    work = loop.start(forever())
    loop.run(double(1))
    loop.close()
    assert cancelled.is_set()
    assert work.cancelled()
    assert threading.active_count() == before
