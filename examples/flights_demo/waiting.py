"""Waiting that ends: with what was waited for, or with one line that says why it will not come."""

import threading
import time
from collections.abc import Callable

LONGEST_WAIT_S = 600.0
"""Nothing in the demo takes so long without moving, on any machine."""


class Stuck(Exception):
    """What was waited for will not come; the message says what that was."""


def until(what: str, reached: Callable[[], bool], check: Callable[[], None]) -> None:
    """Wait until `reached()`; `check` is called meanwhile, and raises where there is nothing to wait for any more.

    Raises:
        Stuck: not within `LONGEST_WAIT_S`.
    """
    began = time.monotonic()
    while not reached():
        check()
        if time.monotonic() - began > LONGEST_WAIT_S:
            raise Stuck(f"{what}: not within {LONGEST_WAIT_S:.0f} s")
        time.sleep(0.05)


class Background(threading.Thread):
    """A thread whose error is not lost: `check` raises it, and so does `finish`, which waits for the thread's end."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        self.join()
        self.check()
