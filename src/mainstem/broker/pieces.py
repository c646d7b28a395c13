"""Answers of very many items, made and encoded a few at a time, so that others have their turns in between."""

import asyncio
from typing import Any, Final

from mainstem.broker.handlers import RequestContext
from mainstem.wire import codec
from mainstem.wire.writing import Encoded

AT_ONCE: Final = 32
"""Items that are made before others go on: milliseconds, of settings with what they are for."""
_SECONDS_BETWEEN_LOOKS: Final = 0.1


class Pieces:
    """The items of an answer's array, in a `with`: what they hold counts as memory of answers until it ends."""

    def __init__(self, ctx: RequestContext, field: str) -> None:
        self.encoded = Encoded()
        """What stands in the answer for the array."""
        self._ctx = ctx
        self._field = field
        self._memory = ctx.broker.unasked_memory
        self._held = 0

    async def add(self, item: dict[str, Any]) -> bool:
        """Encode one more, and wait while it is not its turn to go on; False where nobody wants it any more, since the
        client has gone or was cut off.
        """
        connection = self._ctx.connection
        if not self.encoded.count and not self._memory.may_begin(connection):
            await self._wait_for_turn()
        codec.encode_item(self.encoded, self._ctx.api_key, self._ctx.version, self._field, item)
        if self.encoded.count % AT_ONCE == 0:
            await self._wait_for_turn()
        return not connection.closed

    async def _wait_for_turn(self) -> None:
        if not self._ctx.connection.closed:
            made = len(self.encoded.data) - self._held
            self._held += made
            self._memory.make(self._ctx.connection, made)
            await asyncio.sleep(0)
            while not self._may_go_on():  # noqa: ASYNC110 - it may also since time has passed
                await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

    def _may_go_on(self) -> bool:
        return self._ctx.connection.closed or self._memory.may_go_on_making(self._ctx.connection)

    def __enter__(self) -> "Pieces":
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.end_making(self._ctx.connection)
