import asyncio
import contextlib
import random
import threading

from mainstem.core import Retriable, SystemClock
from mainstem.dash import live
from mainstem.dash.live import Live, Rates
from mainstem.dash.state import AuditResult, Node, Operation, State


def test_a_rate_is_over_the_last_seconds():
    rates = Rates()
    assert rates.of(100.0, {"a": 10}) == {}
    assert rates.of(101.0, {"a": 30}) == {"a": 20.0}
    for second in range(2, 20):
        found = rates.of(100.0 + second, {"a": 30, "b": 7})
    assert found == {"a": 0.0, "b": 0.0}
    assert rates.of(120.0, {"a": 4}) == {}  # it has begun anew
    assert rates.of(500.0, {"a": 1000}) == {}  # nobody listened meanwhile


class Reads:
    def __init__(self):
        self.count = 0
        self.error = None
        self.go_on = threading.Event()  # while it is not set, a state takes long
        self.go_on.set()

    def __call__(self):
        self.count += 1
        assert self.go_on.wait(30)
        if self.error:
            raise self.error
        return State(self.count, nodes=[Node("topic:a", "topic", "a", self.count * 10)])


async def running(work, monkeypatch):
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.01)
    reads = Reads()
    of_it = Live(reads, SystemClock())
    task = asyncio.get_running_loop().create_task(of_it.run())
    try:
        return await work(of_it, reads)
    finally:
        task.cancel()


def test_all_listeners_share_one_reading_and_nothing_is_read_without_them(monkeypatch):
    async def work(of_it, reads):
        await asyncio.sleep(0)
        assert reads.count == 0
        one, other = of_it.listen(), of_it.listen()
        first, second = await asyncio.gather(anext(one), anext(other))
        assert first is second
        assert (await anext(one)).nodes[0].rate > 0
        await one.aclose()
        await other.aclose()
        assert not of_it._wanted.is_set()

    asyncio.run(running(work, monkeypatch))


def test_an_error_is_told_beside_the_last_state(monkeypatch):
    async def work(of_it, reads):
        states = of_it.listen()
        await anext(states)
        reads.error = Retriable("the log is gone")
        state = await anext(states)
        while not state.problem:
            state = await anext(states)
        assert (state.problem, len(state.nodes)) == ("the log is gone", 1)

    asyncio.run(running(work, monkeypatch))


def test_an_audit_is_told_at_once(monkeypatch):
    async def work(of_it, reads):
        states = of_it.listen()
        await anext(states)
        of_it.audited(AuditResult(1, topics={"a": "balanced"}))
        state = await anext(states)
        while state.audit is None:
            state = await anext(states)
        assert state.nodes[0].audit == "balanced"

    asyncio.run(running(work, monkeypatch))


def test_listeners_are_done_when_it_leaves(monkeypatch):
    async def work(of_it, reads):
        states = of_it.listen()
        await anext(states)
        of_it.leave()
        return [state async for state in states]

    assert asyncio.run(running(work, monkeypatch)) == []


def test_who_comes_while_it_pauses_is_answered_at_once(monkeypatch):
    """After a state that took long, whoever came next waited for the end of a pause of up to 10 seconds."""

    async def work(of_it, reads):
        monkeypatch.setattr(live, "EVERY_SECONDS", 1000.0)
        monkeypatch.setattr(live, "RECENT_SECONDS", 0.0)
        for expected in (1, 2, 3):
            states = of_it.listen()
            async with asyncio.timeout(30):
                assert (await anext(states)).at_ms == expected
            await states.aclose()

    asyncio.run(running(work, monkeypatch))


def test_who_goes_from_page_to_page_sees_the_last_state_at_once(monkeypatch):
    async def work(of_it, reads):
        monkeypatch.setattr(live, "EVERY_SECONDS", 1000.0)
        for _ in range(3):
            states = of_it.listen()
            async with asyncio.timeout(30):
                assert (await anext(states)).at_ms == 1
            await states.aclose()

    asyncio.run(running(work, monkeypatch))


def test_it_reads_while_all_other_threads_wait(monkeypatch):
    """Pages that read a log which does not answer took all the threads that it could have read in."""
    go_on = threading.Event()

    async def work(of_it, reads):
        waiting = [asyncio.ensure_future(asyncio.to_thread(go_on.wait)) for _ in range(100)]
        states = of_it.listen()
        async with asyncio.timeout(30):
            await anext(states)
        go_on.set()
        await asyncio.gather(*waiting)

    try:
        asyncio.run(running(work, monkeypatch))
    finally:
        go_on.set()


def test_what_people_ask_for_is_told_at_once(monkeypatch):
    async def work(of_it, reads):
        states = of_it.listen()
        await anext(states)
        operation = Operation(1, "revert", "sums", "revert of job sums", "running", 7)
        of_it.operated([operation])
        state = await anext(states)
        while not state.operations:
            state = await anext(states)
        assert state.operations == [operation]

    asyncio.run(running(work, monkeypatch))


def test_listeners_come_and_go_at_any_time_and_each_is_told(monkeypatch):
    """Whatever comes between: a state that takes long, one that fails, others that leave while it is read."""
    chance = random.Random(7)

    async def turns(most):
        for _ in range(chance.randrange(most)):
            await asyncio.sleep(0)

    async def one(of_it, reads):
        for _ in range(40):
            states = of_it.listen()
            if chance.random() < 0.3:  # it leaves before anything has come
                reads.go_on.clear()
                task = asyncio.ensure_future(anext(states))
                await turns(20)
                task.cancel()
                reads.go_on.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            else:
                async with asyncio.timeout(30):
                    await anext(states)
            await states.aclose()
            reads.error = chance.choice([None, None, Retriable("gone"), ValueError("bad")])
            await turns(30)

    async def work(of_it, reads):
        monkeypatch.setattr(live, "RECENT_SECONDS", 0.005)
        await asyncio.gather(*(one(of_it, reads) for _ in range(4)))
        assert of_it._listeners == 0

    asyncio.run(running(work, monkeypatch))
