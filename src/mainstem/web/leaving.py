"""Who is told when a server stops: those who wait for something that may not come, or not soon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mainstem.core.errors import Retriable


class Stopping(Retriable):
    """The server stops, and answers nothing more that takes long."""


class Leaving:
    """Lives on one event loop. A server waits for the answers under way before anything else ends: whoever is told only
    then waits for as long as the server is patient.

    Args:
        who: the subject of what is told: `the gateway`.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._scopes: set[asyncio.Timeout] = set()
        self.is_set = False

    def leave(self) -> None:
        """End every wait, those under way and those to come."""
        self.is_set = True
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)

    @asynccontextmanager
    async def bounded(self, seconds: float | None = None) -> AsyncIterator[None]:
        """What is awaited here ends after `seconds` (None: never), or when the server stops.

        Raises:
            TimeoutError: the time is over.
            Stopping: the server stops.
        """
        if self.is_set:
            raise self.told()
        try:
            async with asyncio.timeout(seconds) as scope:
                self._scopes.add(scope)
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            if self.is_set:
                raise self.told() from None
            raise

    def told(self) -> Stopping:
        """What whoever waits is told."""
        return Stopping(f"{self._who} is stopping", hint="ask again")
