import asyncio

from mainstem.core import Retriable, SystemClock
from mainstem.dash import live
from mainstem.dash.live import Live, Rates
from mainstem.dash.state import AuditResult, Node, State


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

    def __call__(self):
        self.count += 1
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
