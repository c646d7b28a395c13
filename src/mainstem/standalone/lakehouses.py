"""A lakehouse that is alone with the directory of its tables.

Two that write the same tables would each append every record. The settings of one project show only its own: there may
be a `mainstem run spark --tables` beside `mainstem up`, or two data directories on one log with the same `path`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mainstem.core import Clock, MainstemError, SystemClock, UserError
from mainstem.core.locks import DirectoryInUse, DirectoryLock
from mainstem.core.logging import get_logger
from mainstem.core.task import Attempts, TaskState

if TYPE_CHECKING:
    from mainstem.connect.sinks.delta_views import Views

log = get_logger()

LOCK = ".lock~"
"""No topic can have such a name, so it is never a table's."""


class Keeper(Protocol):
    """What keeps the tables: `mainstem.connect.sinks.delta.Lakehouse`."""

    @property
    def states(self) -> list[TaskState]: ...

    def start(self) -> None: ...

    def step(self) -> None: ...

    def stop(self) -> None: ...


class WithViews:
    """A lakehouse, and the views of its tables: both are kept by who has the tables."""

    def __init__(self, lakehouse: Keeper, views: "Views") -> None:
        self._lakehouse, self._views = lakehouse, views

    @property
    def states(self) -> list[TaskState]:
        return [*self._lakehouse.states, *self._views.states]

    def start(self) -> None:
        """Start both."""
        self._lakehouse.start()
        self._views.start()

    def step(self) -> None:
        """See after the lakehouse; the views have a thread."""
        self._lakehouse.step()

    def stop(self) -> None:
        """Stop both."""
        self._views.stop()
        self._lakehouse.stop()


class LockedLakehouse:
    """`start`, then `step` now and then from one thread, then `stop`, as of the lakehouse itself, which starts once no
    other process has its tables. Until then `states` says who does.

    Args:
        name: of the sink.
        directory: of its tables.
        lakehouse: what keeps them.
    """

    def __init__(self, name: str, directory: Path, lakehouse: Keeper, *, clock: Clock | None = None) -> None:
        self._name, self._directory, self._lakehouse = name, directory, lakehouse
        self._attempts = Attempts(f"sink {name}", clock or SystemClock())
        self._lock: DirectoryLock | None = None

    @property
    def states(self) -> list[TaskState]:
        return [self._attempts.state] if self._lock is None else self._lakehouse.states

    def start(self) -> None:
        """Start the lakehouse, unless another process has the tables; `step` does once they are free."""
        try:
            self._lock = DirectoryLock(self._directory, LOCK)
        except (MainstemError, OSError) as error:
            self._fail(error)
        else:
            self._lakehouse.start()

    def step(self) -> None:
        """See after the lakehouse, or try again to start it."""
        if self._lock is not None:
            self._lakehouse.step()
        elif self._attempts.is_due:
            self.start()

    def stop(self) -> None:
        """Stop the lakehouse, and let others have the tables."""
        self._attempts.stop()
        if self._lock is not None:
            lock, self._lock = self._lock, None
            with lock:
                self._lakehouse.stop()

    def _fail(self, error: Exception) -> None:
        path = f"give [sinks.{self._name}] a `path` of its own"
        in_use = isinstance(error, DirectoryInUse)
        reason = f"{error}, which writes the tables there" if in_use else str(error)
        hint = f"stop that process, or {path}" if in_use else f"make it writable, or {path}"
        state = self._attempts.fail(reason, hint, needs_a_person=isinstance(error, UserError))
        log.warning("lakehouse_failed", sink=self._name, reason=reason, hint=hint, again_in_seconds=state.retry_seconds)
