"""Whether the plan of a job's function asks for the time: what it gives then depends on when it runs."""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

_ASKS = re.compile(r"\b(current_timestamp|now|current_date|localtimestamp|current_time|curdate)\(")
_MOMENT = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?")
_NUMBER = re.compile(r"(?<![\w.#])(?:\d\.\d+E9|\d{10}(?:\.\d+)?|\d{13}(?:\d{3})?|\d{19})(?![\w.])")
_PER_SECOND = {10: 1, 13: 1e3, 16: 1e6, 19: 1e9}  # by the digits before the point
_ROUNDED = 1  # second: a time may be cut to whole ones


def clock_of(plan: str, began: float, ended: float) -> str | None:
    """What of a plan tells the time, as it stands there; None: nothing.

    A moment between the begin and the end of the call that has made the plan is one that the function has asked Python
    for, as `F.lit(datetime.now())` does: of each later call it is another one.

    Args:
        plan: its text; times in it are in UTC.
        began: when the function was called, in seconds since 1970.
        ended: when it had returned.
    """
    if asks := _ASKS.search(plan):
        return asks[1]
    return next((text for text, at in _moments(plan) if began - _ROUNDED <= at <= ended), None)


def _moments(plan: str) -> Iterator[tuple[str, float]]:
    """What may be a time, and which, in seconds since 1970."""
    for found in _MOMENT.finditer(plan):
        with suppress(ValueError):  # 2026-13-41
            yield found[0], datetime.fromisoformat(found[0]).replace(tzinfo=UTC).timestamp()
    for found in _NUMBER.finditer(plan):
        number = float(found[0])
        yield found[0], number / _PER_SECOND[len(str(int(number)))]
