"""The bodies of requests, which all together may hold only so many bytes, and so long,
however many clients there are.
"""

import asyncio
from collections.abc import AsyncIterable
from types import TracebackType
from typing import Self

from mainstem.core.errors import Retriable, UserError


class BodyTooLarge(UserError):
    """A body has more bytes than its request may."""


class BodyTooSlow(UserError):
    """A body did not come to its end in time."""


class BodiesFull(Retriable):
    """The bodies of others hold too much."""


class Bodies:
    """What requests hold of their bodies while they are read and until they are answered.

    Args:
        limit_bytes: of all together; a body that is alone may be larger.
        seconds: how long a client may take to send one.
    """

    def __init__(self, limit_bytes: int, *, seconds: float) -> None:
        self.limit_bytes = limit_bytes
        self.seconds = seconds
        self.held = 0

    def hold(self) -> "Held":
        """The share of one request; use it in a `with`."""
        return Held(self)


class Held:
    """What one request holds, given back at the end of its `with`."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bodies.held -= self._size

    def add(self, size: int) -> None:
        """Hold `size` bytes more.

        Raises:
            BodiesFull: others hold too much.
        """
        bodies = self._bodies
        if bodies.held > self._size and bodies.held + size > bodies.limit_bytes:
            raise BodiesFull(f"requests hold {bodies.held} bytes", hint="try again in a second")
        self._size += size
        bodies.held += size

    async def read(self, stream: AsyncIterable[bytes], limit: int, *, expected: int = 0) -> bytes:
        """The whole body, at most `limit` bytes; `expected` is how many the request says it has.

        Raises:
            BodyTooLarge, BodyTooSlow, BodiesFull: as they say.
        """
        too_large = BodyTooLarge(f"the body is larger than {limit} bytes", hint="send less at once")
        if expected > limit:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._bodies.seconds):
                async for part in stream:
                    size += len(part)
                    if size > limit:
                        raise too_large
                    self.add(len(part))
                    parts.append(part)
        except TimeoutError:
            raise BodyTooSlow(
                f"{size} bytes of the body came in {self._bodies.seconds:g} s, and not its end",
                hint="send less at once",
            ) from None
        return b"".join(parts)
