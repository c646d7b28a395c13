"""A clock for who need not wait as long as a real driver does before a job is tried again."""

from mainstem.core import SystemClock

_TIMES = 8


class Hurry(SystemClock):
    """So that who is killed every second or two, or refuses a job on purpose, need not wait half a minute."""

    def monotonic(self) -> float:
        return super().monotonic() * _TIMES
