"""A thread that does one thing whenever it is woken, once for however many wake it meanwhile."""

import threading
from collections.abc import Callable

from mainstem.core import MainstemError
from mainstem.core.logging import get_logger

log = get_logger()

AGAIN_SECONDS = 1.0


class Worker:
    """`wake` from any thread; `close` returns when what was asked for until then is done, or has failed.

    Args:
        name: of the thread, and in the log.
        work: what it does; after an error it is tried again.
        pause_seconds: between two times.
    """

    def __init__(self, name: str, work: Callable[[], None], *, pause_seconds: float = 0.0) -> None:
        self._name, self._work, self._pause_seconds = name, work, pause_seconds
        self._woken, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is something to do."""
        self._woken.set()

    def close(self, seconds: float) -> None:
        """Do what is left, in so many seconds at most."""
        self._closing.set()
        self._woken.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        closing = False
        while not closing:
            self._woken.wait()
            self._woken.clear()
            closing = self._closing.is_set()  # before the work: what was asked for before is done by it
            try:
                self._work()
            except (MainstemError, OSError) as error:
                log.warning("not_done", what=self._name, error=str(error))
                self._again()
            except Exception:  # a bug, or a library's own: without this thread nobody hears of anything more
                log.exception("not_done", what=self._name)
                self._again()
            else:
                self._closing.wait(self._pause_seconds)

    def _again(self) -> None:
        self._closing.wait(AGAIN_SECONDS)
        self._woken.set()
