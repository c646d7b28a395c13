"""When a job that has failed is tried again. It lags alone: the other jobs of its driver go on."""

from collections.abc import Callable

from mainstem.core import Clock, MainstemError, UserError
from mainstem.core.backoff import WORKS_AFTER_SECONDS
from mainstem.core.task import Attempts, TaskState
from mainstem.process.diagnosis import JobFailed


class Retries:
    """The failures of jobs, by `<job>@<version>`."""

    def __init__(self, clock: Clock) -> None:
        self.failed: dict[str, TaskState] = {}
        """Those that wait for their next try, or have been started again only a while ago."""
        self._clock = clock
        self._attempts: dict[str, Attempts] = {}
        self._unproven: set[str] = set()  # started again, and nothing done since

    def fail(self, key: str, error: MainstemError) -> TaskState:
        """A job has failed, or could not be started."""
        attempts = self._attempts.setdefault(key, Attempts(f"job {key}", self._clock))
        batch = error.batch if isinstance(error, JobFailed) else None
        found = self.failed[key] = attempts.fail(
            " ".join(str(error).split()),
            error.hint,
            needs_a_person=isinstance(error, UserError),
            details=batch.told() if batch is not None else None,
        )
        return found

    def is_due(self, key: str) -> bool:
        """Whether the job may be started: always, unless it has failed."""
        return key not in self._attempts or self._attempts[key].is_due

    def start(self, key: str) -> None:
        """The job has been started."""
        if key in self._attempts:
            self._unproven.add(key)
            self._attempts[key].start()
            self.failed[key] = self._attempts[key].state

    def see(self, key: str, *, works: Callable[[], bool] = lambda: True) -> None:
        """The job still runs: after a while its failures are forgotten.

        Args:
            key: of the job.
            works: whether it has done something since it was started. Before that it does not count as running again,
                however long its first batch takes: that one may fail as the last one did.
        """
        if key not in self._attempts:
            return
        attempts = self._attempts[key]
        if key in self._unproven and works():
            self._unproven.discard(key)
        if key not in self._unproven:
            if attempts.is_healthy:
                self.forget(key)
        elif attempts.runs_for_seconds >= WORKS_AFTER_SECONDS / 2:
            self.start(key)

    def forget(self, key: str) -> None:
        """The job is gone."""
        self.failed.pop(key, None)
        self._attempts.pop(key, None)
        self._unproven.discard(key)
