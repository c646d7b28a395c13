"""When a job that has failed is tried again. It lags alone: the other jobs of its driver go on.

What failed is tried again after a pause that doubles up to the longest; where only a person can mend it (`UserError`),
the first pause is longer: nobody is as fast as a broker that comes back. A run of a minute starts over with the first.
"""

import msgspec

from mainstem.core import Backoff, Clock, MainstemError, UserError

PASSING, FOR_A_PERSON = Backoff(first=1.0, longest=60.0), Backoff(first=5.0, longest=60.0)
HEALTHY_AFTER_SECONDS = 60.0
WORKS_AFTER_SECONDS = 15.0


class Failure(msgspec.Struct):
    """Why a job does not run. `retry_at` is in seconds of the monotonic clock."""

    error: str
    hint: str
    needs_a_person: bool
    failures: int
    retry_seconds: float
    retry_at: float
    since_ms: int


class Retries:
    """The failures of jobs, by `<job>@<version>`."""

    def __init__(self, clock: Clock) -> None:
        self.failed: dict[str, Failure] = {}
        """Those that wait for their next try, or have been started again only just now."""
        self._clock = clock
        self._started: dict[str, float] = {}

    def fail(self, key: str, error: MainstemError) -> Failure:
        """A job has failed, or could not be started."""
        before = self.failed.get(key)
        failures = 1 if before is None else before.failures + 1
        final = isinstance(error, UserError)
        delay = (FOR_A_PERSON if final else PASSING).pause(failures)
        self._started.pop(key, None)
        found = self.failed[key] = Failure(
            " ".join(str(error).split()), error.hint, final, failures, delay, self._clock.monotonic() + delay,
            self._clock.now_ms(),
        )  # fmt: skip
        return found

    def is_due(self, key: str) -> bool:
        """Whether the job may be started: always, unless it has failed."""
        failure = self.failed.get(key)
        return failure is None or self._clock.monotonic() >= failure.retry_at

    def start(self, key: str) -> None:
        """The job has been started."""
        self._started[key] = self._clock.monotonic()

    def works(self, key: str) -> bool:
        """Whether the job runs as it should: what has failed, once it has run for longer than a start
        that fails takes.
        """
        started = self._started.get(key)
        return key not in self.failed or (
            started is not None and self._clock.monotonic() - started >= WORKS_AFTER_SECONDS
        )

    def see(self, key: str) -> None:
        """The job still runs: after a while its failures are forgotten."""
        if key in self.failed and self._clock.monotonic() - self._started[key] >= HEALTHY_AFTER_SECONDS:
            del self.failed[key]

    def forget(self, key: str) -> None:
        """The job is gone."""
        self.failed.pop(key, None)
        self._started.pop(key, None)
