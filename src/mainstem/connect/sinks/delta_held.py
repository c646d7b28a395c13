"""Tables of a lakehouse that cannot take what their topics have: the reason of each, and when it is tried again."""

import threading
from collections.abc import Collection

from mainstem.core import Clock, UserError
from mainstem.core.causes import one_line
from mainstem.core.logging import get_logger
from mainstem.core.task import Attempts, TaskState

log = get_logger()


class HeldTables:
    """Of one sink. A table that was held is told of until it has been written, or is gone; for several threads.

    Attributes:
        reasons: those that are left out now, by topic.
    """

    def __init__(self, sink: str, clock: Clock) -> None:
        self.reasons: dict[str, str] = {}
        self._sink = sink
        self._clock = clock
        self._attempts: dict[str, Attempts] = {}
        self._unopened: set[str] = set()  # those that could not even be opened
        self._lock = threading.Lock()

    @property
    def states(self) -> list[TaskState]:
        """How each table is that was held: `failed` where a person has to mend something."""
        with self._lock:
            return [self._attempts[topic].state for topic in sorted(self._attempts)]

    @property
    def is_due(self) -> bool:
        """Whether one of them may be tried again."""
        with self._lock:
            return any(self._attempts[topic].is_due for topic in self.reasons)

    def hold(self, topic: str, error: BaseException, *, unopened: bool = False) -> None:
        """Leave a table out until the next try; the log hears of each reason once."""
        reason, hint = one_line(error), getattr(error, "hint", "")
        with self._lock:
            name = f"sink {self._sink}: table {topic}"
            attempts = self._attempts.setdefault(topic, Attempts(name, self._clock))
            if attempts.state.error != reason:
                log.warning("table_held", topic=topic, reason=reason, hint=hint)
            attempts.fail(reason, hint, needs_a_person=isinstance(error, UserError))
            self.reasons[topic] = reason
            if unopened:
                self._unopened.add(topic)

    def try_again(self) -> None:
        """None is left out any more, until it is held again."""
        with self._lock:
            self.reasons.clear()

    def opened(self, topics: Collection[str]) -> None:
        """Those of `topics` that are not held could be opened; what was held and is no topic is forgotten."""
        with self._lock:
            for topic in self._attempts.keys() - set(topics) - self.reasons.keys():
                del self._attempts[topic]
            mended = self._unopened - self.reasons.keys()
            self._unopened -= mended
        for topic in mended:
            self.written(topic)

    def written(self, topic: str) -> None:
        """The table is held no longer; when that has been so for a while, its failures are forgotten."""
        with self._lock:
            attempts = self._attempts.get(topic)
            if attempts is None:
                return
            if attempts.state.state != "running":
                attempts.start()
            elif attempts.is_healthy:
                del self._attempts[topic]
