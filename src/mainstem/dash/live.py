"""The state once a second, for all who listen; nothing is read while nobody does."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from mainstem.core import MainstemError
from mainstem.core.clock import Clock
from mainstem.core.logging import get_logger
from mainstem.dash.state import AuditResult, Operation, State

log = get_logger()

EVERY_SECONDS = 1.0
SHARE = 4  # a state that takes long to read is read more rarely: a fourth of the time at most
MOST_SECONDS = 10.0
RECENT_SECONDS = 10.0  # whoever goes from page to page sees the last state at once
WINDOW_SECONDS = 5.0
"""Rates are over so long: batches come in jumps."""


class Rates:
    """What counts grow by in a second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque()

    def of(self, now: float, counts: Mapping[str, int]) -> dict[str, float]:
        """By name, of those that were there before. One that became smaller has begun anew: none is told of it."""
        while self._seen and now - self._seen[0][0] > 2 * WINDOW_SECONDS:  # nobody listened
            self._seen.popleft()
        while len(self._seen) > 1 and now - self._seen[1][0] >= WINDOW_SECONDS:
            self._seen.popleft()
        self._seen.append((now, counts))
        rates: dict[str, float] = {}
        for name, count in counts.items():
            earlier = next(((at, seen[name]) for at, seen in self._seen if name in seen), (now, count))
            if now > earlier[0] and count >= earlier[1]:
                rates[name] = (count - earlier[1]) / (now - earlier[0])
        return rates


class Live:
    """The last state, and who waits for the next. For one event loop.

    Args:
        read: the state without its rates; it blocks.
        clock: what rates and pauses are measured with.
    """

    def __init__(self, read: Callable[[], State], clock: Clock) -> None:
        self._read, self._clock = read, clock
        self._rates = Rates()
        self._state: State | None = None
        self._read_at = 0.0
        self._listeners = 0
        self._wanted = asyncio.Event()
        self._hurry = asyncio.Event()
        self._news = asyncio.Event()
        self._closed = False
        self.audit: AuditResult | None = None
        self.operations: list[Operation] = []

    async def run(self) -> None:
        """Read for as long as somebody listens; to be cancelled. In a thread of its own: it waits for nobody."""
        thread = ThreadPoolExecutor(1, "dashboard-state")
        try:
            while True:
                await self._wanted.wait()
                self._hurry.clear()
                began = self._clock.monotonic()
                state = await asyncio.get_running_loop().run_in_executor(thread, self._next)
                self._read_at = self._clock.monotonic()
                self._tell(state)
                took = self._read_at - began
                with contextlib.suppress(TimeoutError):
                    pause = max(EVERY_SECONDS - took, min(took * (SHARE - 1), MOST_SECONDS))
                    await asyncio.wait_for(self._hurry.wait(), pause)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    async def listen(self) -> AsyncIterator[State]:
        """States as they come; the last one at once, unless it is of long ago: then the next is read at once."""
        if self._listeners == 0 and self._clock.monotonic() - self._read_at > RECENT_SECONDS:
            self._state = None
        if self._state is None:
            self._hurry.set()
        self._listeners += 1
        self._wanted.set()
        try:
            if self._state is not None:
                yield self._state
            while not self._closed:
                await self._news.wait()
                if self._state is not None and not self._closed:
                    yield self._state
        finally:
            self._listeners -= 1
            if self._listeners == 0:
                self._wanted.clear()

    def audited(self, result: AuditResult) -> None:
        """Tell of an audit, at once."""
        self.audit = result
        self._tell_news()

    def operated(self, operations: list[Operation]) -> None:
        """Tell of what people have asked for, at once; when one has ended, what it has changed is read at once."""
        self.operations = operations
        self._hurry.set()
        self._tell_news()

    def leave(self) -> None:
        """Nothing more comes: whoever listens is done."""
        self._closed = True
        self._news.set()

    def _tell_news(self) -> None:
        if self._state is not None:
            self._tell(self._with_news(self._state))

    def _tell(self, state: State) -> None:
        self._state = state
        news, self._news = self._news, asyncio.Event()
        if self._closed:
            self._news.set()
        news.set()

    def _next(self) -> State:
        try:
            state = self._read()
        except MainstemError as error:
            before = self._state or State(self._clock.now_ms())
            hint = f" ({error.hint})" if error.hint else ""
            return msgspec.structs.replace(before, problem=f"{error}{hint}")
        except Exception as error:  # the next one may go well, and the page says what it was
            log.exception("dashboard_state_unreadable")
            before = self._state or State(self._clock.now_ms())
            return msgspec.structs.replace(before, problem=f"{type(error).__name__}: {error}")
        counts = {node.id: node.count for node in state.nodes}
        counts |= {f"{view.node}/{view.view}": view.count for view in state.views}
        rates = self._rates.of(self._clock.monotonic(), counts)
        nodes = [_with_rate(node, rates.get(node.id)) for node in state.nodes]
        jobs = [_with_rate(job, rates.get(f"job:{job.job}@{job.version}")) for job in state.jobs]
        views = [_with_rate(view, rates.get(f"{view.node}/{view.view}")) for view in state.views]
        return self._with_news(msgspec.structs.replace(state, nodes=nodes, jobs=jobs, views=views))

    def _with_news(self, state: State) -> State:
        verdicts = self.audit.topics if self.audit else {}
        nodes = [
            msgspec.structs.replace(node, audit=verdicts.get(node.name, "")) if node.kind == "topic" else node
            for node in state.nodes
        ]
        return msgspec.structs.replace(state, nodes=nodes, audit=self.audit, operations=self.operations)


def _with_rate(thing: Any, rate: float | None) -> Any:
    return msgspec.structs.replace(thing, rate=rate)
