"""Time is passed in, so that tests move it by hand."""

import time
from typing import Protocol

# Linux lets the monotonic clock stand still while the machine sleeps; elsewhere it goes on.
_COUNTS_SLEEP: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> float:
    """Seconds that never run backwards, those asleep included: to know what has timed out meanwhile somewhere else."""
    return time.clock_gettime(_COUNTS_SLEEP)


class Clock(Protocol):
    """What the rooms ask of time."""

    def now_ms(self) -> int:
        """Wall clock: milliseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for timeouts."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until a test advances it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance_ms(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
        self._monotonic += milliseconds / 1000

    def set_back_ms(self, milliseconds: int) -> None:
        """Somebody sets the wall clock; timeouts go on."""
        self._now_ms -= milliseconds
