"""A request that was started, until its answer has left."""

from typing import Any

import msgspec


class Pending(msgspec.Struct):
    """The request, and the chunks of its answer once it has one; `chunks` empty means no answer."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    request: Any
    """Where a failure of it is told by what was asked."""
    chunks: list[Any] = []
    done: bool = False
    size: int = 0
    """Bytes of its frame."""
    is_at_work: bool = False
    """They are in memory until it is done, whether or not its client is still there."""
    answer_size: int = 0
    """Bytes of a large answer; small ones do not count."""
    meter: Any = None
    """`security.quotas.Meter`, where some client has a quota."""
