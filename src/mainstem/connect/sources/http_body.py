"""The bodies of requests, which all together may hold only so many bytes, and so long,
however many clients there are.
"""

import asyncio
from types import TracebackType
from typing import Self

from starlette.requests import Request

from mainstem.connect.sources.http_append import Overloaded
from mainstem.connect.sources.http_events import BadRequest

BODY_SECONDS = 60.0


class Bodies:
    """What requests hold of their bodies while they are read and until they are answered.

    Args:
        limit_bytes: of all together; a body that is alone may be larger.
        seconds: how long a client may take to send one.
    """

    def __init__(self, limit_bytes: int, *, seconds: float = BODY_SECONDS) -> None:
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
            Overloaded: others hold too much.
        """
        bodies = self._bodies
        if bodies.held > self._size and bodies.held + size > bodies.limit_bytes:
            raise Overloaded(f"requests hold {bodies.held} bytes", hint="try again in a second")
        self._size += size
        bodies.held += size

    async def read(self, request: Request, limit: int) -> bytes:
        """The whole body, at most `limit` bytes.

        Raises:
            BadRequest: 413 too large, 408 too slow.
            Overloaded: others hold too much.
        """
        too_large = BadRequest(
            413, "body_too_large", f"the body is larger than {limit} bytes", hint="send smaller batches"
        )
        if int(request.headers.get("content-length") or 0) > limit:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._bodies.seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        raise too_large
                    self.add(len(part))
                    parts.append(part)
        except TimeoutError:
            raise BadRequest(
                408,
                "body_too_slow",
                f"{size} bytes of the body came in {self._bodies.seconds:.0f} s, and not its end",
                hint="send smaller batches",
            ) from None
        return b"".join(parts)
