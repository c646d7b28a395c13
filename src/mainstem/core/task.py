"""How a source, a sink or a job is, as people see it, and when it is tried again after a failure.

running ──fails──> waiting, or failed where a person has to mend something ──pause (`core.backoff`)──> running
"""

from collections.abc import Mapping

import msgspec

from mainstem.core.backoff import FOR_A_PERSON, HEALTHY_AFTER_SECONDS, PASSING, WORKS_AFTER_SECONDS, Backoff
from mainstem.core.clock import Clock


class TaskState(msgspec.Struct, frozen=True):
    """What people see of a task. `state`: running, idle (what it reads is not there yet), waiting (for the next try
    after a failure), failed, stopped.

    `error` is the last one, on one line, or what an idle one waits for; `retry_seconds` is the pause before the next
    try of a task that waits or has failed, 0 where there is none. `needs_a_person`: a person has to mend what the error
    says, or what an idle one waits for. `details` are what else is known of the error, each by its name. `figures` are
    what a running one measures, each by a name that ends in its unit.
    """

    name: str
    state: str = "running"
    failures: int = 0
    error: str = ""
    hint: str = ""
    since_ms: int = 0
    retry_seconds: float = 0.0
    needs_a_person: bool = False
    details: dict[str, str] = {}
    figures: dict[str, int] = {}

    def seen_at(self, now_ms: int) -> "TaskState":
        """The state as people should see it: a task that has only just been started again may fail again at once, and
        one that has run for long has no failures any more.
        """
        if self.state != "running":
            return self
        runs_for = (now_ms - self.since_ms) / 1000
        if self.error and runs_for < WORKS_AFTER_SECONDS:
            state = "failed" if self.needs_a_person else "waiting"
            return msgspec.structs.replace(self, state=state, retry_seconds=0.0)
        failures = self.failures if runs_for < HEALTHY_AFTER_SECONDS else 0
        return msgspec.structs.replace(self, failures=failures, error="", hint="", details={})

    @property
    def told(self) -> str:
        """The error with what to do and when the next try is, on one line; "" where there is none."""
        hint = f" ({self.hint})" if self.hint else ""
        retry = f"; retry in {self.retry_seconds:g} s" if self.retry_seconds else ""
        return f"{self.error}{hint}{retry}"


class Attempts:
    """The tries of one task: `state` is how it is now. For one thread at a time.

    Args:
        name: of the task.
        clock: what pauses and runs are measured with.
        passing: how long to wait after an error that may pass by itself.
        for_a_person: how long to wait where a person has to mend something.
    """

    def __init__(
        self, name: str, clock: Clock, *, passing: Backoff = PASSING, for_a_person: Backoff = FOR_A_PERSON
    ) -> None:
        self.state = TaskState(name, since_ms=clock.now_ms())
        self._clock = clock
        self._passing, self._for_a_person = passing, for_a_person
        self._started = clock.monotonic()
        self._again_at = self._started

    @property
    def is_due(self) -> bool:
        """Whether it may be started: its pause is over."""
        return self._clock.monotonic() >= self._again_at

    @property
    def is_healthy(self) -> bool:
        """Whether it has run for so long that earlier failures do not count any more."""
        return self.state.state == "running" and self.runs_for_seconds >= HEALTHY_AFTER_SECONDS

    @property
    def runs_for_seconds(self) -> float:
        """Since its last start."""
        return self._clock.monotonic() - self._started

    def start(self) -> None:
        """It runs; its last error stays until it has run for a while (`TaskState.seen_at`)."""
        self._started = self._clock.monotonic()
        self._change("running")

    def idle(self, what: str, hint: str) -> None:
        """It runs, and what it reads is not there yet; perhaps a person named the wrong thing."""
        self.state = TaskState(
            self.state.name, "idle", error=what, hint=hint, since_ms=self._clock.now_ms(), needs_a_person=True
        )

    def go_on(self) -> None:
        """What it was idle for has come."""
        self.state = TaskState(self.state.name, since_ms=self._clock.now_ms())

    def fail(
        self, error: str, hint: str = "", *, needs_a_person: bool = False, details: Mapping[str, str] | None = None
    ) -> TaskState:
        """It has failed, or could not be started; `retry_seconds` of the answer is the pause before the next try."""
        failures = 1 if self.is_healthy else self.state.failures + 1
        pause = (self._for_a_person if needs_a_person else self._passing).pause(failures)
        self._again_at = self._clock.monotonic() + pause
        return self._failed(error, hint, needs_a_person, failures, pause, details)

    def give_up(self, error: str, hint: str = "") -> TaskState:
        """It has failed, and is not tried again."""
        return self._failed(error, hint, True, self.state.failures + 1, 0.0)

    def stop(self) -> None:
        """It runs no more, as it was told."""
        self._change("stopped")

    def _failed(
        self,
        error: str,
        hint: str,
        needs_a_person: bool,
        failures: int,
        pause: float,
        details: Mapping[str, str] | None = None,
    ) -> TaskState:
        state = "failed" if needs_a_person else "waiting"
        self.state = TaskState(
            self.state.name,
            state,
            failures,
            error,
            hint,
            self._clock.now_ms(),
            pause,
            needs_a_person,
            dict(details or {}),
        )
        return self.state

    def _change(self, state: str) -> None:
        self.state = msgspec.structs.replace(self.state, state=state, since_ms=self._clock.now_ms(), retry_seconds=0.0)
