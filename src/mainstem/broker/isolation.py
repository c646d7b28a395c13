"""Isolation levels as clients name them: what a reader sees of open transactions."""

from typing import Final

from mainstem.wire.errors import Code, RequestError

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


def reads_committed(level: int) -> bool:
    """Whether nothing of an open transaction is seen.

    Raises:
        RequestError: there is no such level.
    """
    if level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise RequestError(Code.invalid_request, f"isolation level {level}, expected 0 or 1")
    return level == READ_COMMITTED
