"""What a running job passes on of idle and finished inputs: the rules of `heartbeats`, applied to its query."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from mainstem.client.connection import Connection
from mainstem.client.heartbeats import statement_about, write_heartbeats
from mainstem.client.progress import NextOffsets
from mainstem.core.logging import get_logger
from mainstem.process.durations import milliseconds
from mainstem.process.heartbeats import Follower, Inject, State, StatefulRules, StatelessRules, inputs_covered
from mainstem.process.injections import Injections
from mainstem.process.job_spec import JobSpec

log = get_logger()

_END_OF_TIME = 1 << 53  # ms since 1970

LastProgress = Callable[[], Mapping[str, Any] | None]
"""What Spark says of the last finished batch of a query; None before there is one."""


class PassingOn:
    """Used by the thread that looks after the job.

    Attributes:
        injections: the rows that move the watermark of its query.
    """

    def __init__(self, spec: JobSpec, connection: Connection, follower: Follower) -> None:
        self.injections = Injections(spec.home)
        self._spec = spec
        self._connection = connection
        self._follower = follower
        self._rules: StatefulRules | StatelessRules = StatelessRules()
        if spec.analysis.stateful:
            self._rules = StatefulRules(delay_of(spec), spec.analysis.horizon)

    def restart(self) -> None:
        """A new run of the query begins."""
        if isinstance(self._rules, StatefulRules):
            self._rules.restart()

    def wake(self, progress: LastProgress) -> None:
        """Have a batch run that reads a row which says nothing."""
        self.injections.put(0, lambda: last_look(progress()))

    def beat(self, processed: NextOffsets, progress: LastProgress) -> None:
        """Do what follows from what is stated of the inputs, of which the job has processed so much."""
        spoken = {each.topic: self._follower.statement(each.topic) for each in self._spec.streams}
        inputs = inputs_covered(spoken, processed)
        if inputs is None:
            return
        statements = [statement for statement in spoken.values() if statement is not None]
        positions = {statement.topic: statement.positions for statement in statements}
        if self._rules.is_done(inputs, positions) or not self._follower.still_speak(statements):
            return
        if isinstance(self._rules, StatelessRules):
            step: Inject | State | None = self._rules.next_step(inputs, positions)
        else:
            step = self._rules.next_step(inputs, positions, *windows_of(progress()))
        match step:
            case Inject():
                self.injections.put(step.event_time, lambda: last_look(progress()))
                log.debug("heartbeat_injected", job=self._spec.name, event_time=step.event_time)
            case State():
                self._state(step)

    def _state(self, step: State) -> None:
        for topic in self._spec.fixed.outputs:
            statement = statement_about(self._connection, topic, step.event_time, end=step.end)
            if self._follower.statement(topic) != statement:
                write_heartbeats(self._connection, [statement])
                log.info("output_idle", job=self._spec.name, topic=topic, end=step.end)


def delay_of(spec: JobSpec) -> int:
    """That of its watermark, in ms; 0 where it has none."""
    watermark = spec.job.watermark
    return milliseconds(watermark.delay) or 0 if watermark else 0


def last_look(progress: Mapping[str, Any] | None) -> float:
    """When the last finished batch began to look for input, in seconds since 1970; 0 before there is one."""
    return datetime.fromisoformat(progress["timestamp"]).timestamp() if progress else 0.0


def windows_of(progress: Mapping[str, Any] | None) -> tuple[int | None, int]:
    """The watermark of the last finished batch (ms since 1970), and the rows of state that it left; None before the
    first one of this run.
    """
    if not progress or not progress["stateOperators"]:
        return None, 1
    text = progress["eventTime"].get("watermark", "1970-01-01T00:00:00.000Z")
    rows = sum(operator["numRowsTotal"] for operator in progress["stateOperators"])
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000), rows
    except ValueError:  # beyond the year 9999, by its delay or by a heartbeat: nothing can be later
        return _END_OF_TIME, rows
