"""What ends the wait of a fetch, and that nothing of it is left."""

import asyncio

import pytest

from mainstem.broker.waiting import Waiting
from tests.log.support import run


class Broker:
    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.on_stop = set()


class Connection:
    def __init__(self):
        self.on_close = set()
        self.closed = False


@pytest.mark.parametrize("ends", ["enough", "time", "stop", "close"])
def test_each_of_four_things_ends_it_and_none_is_left_waiting(ends):
    async def go():
        broker, connection = Broker(), Connection()
        began = broker.loop.time()
        with Waiting(broker, connection, began + (0.02 if ends == "time" else 600)) as waiting:
            assert not waiting.over.done()
            if ends == "enough":
                waiting.end()
                waiting.end()
            elif ends == "stop":
                for each in broker.on_stop:
                    each()
            elif ends == "close":
                for each in connection.on_close:
                    each()
            await asyncio.wait_for(waiting.over, 30)
        assert not connection.on_close
        assert not broker.on_stop
        assert waiting._timer.cancelled() or ends == "time"

    run(go())


def test_nobody_waits_for_a_client_that_has_gone():
    async def go():
        connection = Connection()
        connection.closed = True
        with Waiting(Broker(), connection, asyncio.get_running_loop().time() + 600) as waiting:
            await asyncio.wait_for(waiting.over, 30)

    run(go())


def test_who_gives_up_waiting_leaves_nothing():
    async def go():
        broker, connection = Broker(), Connection()

        async def wait():
            with Waiting(broker, connection, broker.loop.time() + 600) as waiting:
                await waiting.over

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert connection.on_close
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not connection.on_close
        assert not broker.on_stop

    run(go())
