"""Answers of very many items, made and encoded a few at a time, so that others have their turns in between."""

import asyncio
from typing import Any, Final

from mainstem.broker.handlers import RequestContext
from mainstem.wire import codec
from mainstem.wire.writing import Encoded

AT_ONCE: Final = 32
"""Items that are made before others go on: milliseconds, of settings with what they are for."""


class Pieces:
    """The items of an answer's array, in a `with`: what they hold counts as memory of answers until it ends."""

    def __init__(self, ctx: RequestContext, field: str) -> None:
        self.encoded = Encoded()
        """What stands in the answer for the array."""
        self._ctx = ctx
        self._field = field
        self._held = 0

    async def add(self, item: dict[str, Any]) -> bool:
        """Encode one more; False where nobody wants it any more, since the client has gone."""
        codec.encode_item(self.encoded, self._ctx.api_key, self._ctx.version, self._field, item)
        if self.encoded.count % AT_ONCE == 0:
            made = len(self.encoded.data) - self._held
            self._held += made
            self._ctx.broker.unasked_memory.take(made)
            await asyncio.sleep(0)
        return not self._ctx.connection.closed

    def __enter__(self) -> "Pieces":
        return self

    def __exit__(self, *_: object) -> None:
        self._ctx.broker.unasked_memory.give(self._held)
