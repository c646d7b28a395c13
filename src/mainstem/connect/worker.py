"""Runs the sources and sinks of a project in one process, each in a thread of its own: one that fails lags only itself.

What becomes of an error:

    Retriable            tried again after a pause that doubles from 0.5 s up to 30 s
    Fenced               failed: another process runs the same source, and trying again would fence that one
    UserError            failed: a person has to mend something; the line says what. Tried again after 5 s, 10 s, … 60 s
    CorruptData          failed: nothing is skipped in silence. Tried again like a UserError
    anything else        a bug of ours: logged with its stack, tried again like a Retriable

A run of a minute starts over with the first pause. One line per failure, and the others go on. `failed` stays while it
is tried again, until it has worked for a while.
"""

import re
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol, TypeAlias
from urllib.parse import unquote

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.errors import Fenced
from mainstem.connect.sinks.postgres_config import PostgresReplicaConfig
from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from mainstem.core import Backoff, Clock, CorruptData, MainstemError, SystemClock, UserError
from mainstem.core.config import check_type, convert
from mainstem.core.logging import get_logger
from mainstem.registry.client import Registry

log = get_logger()

SourceConfig: TypeAlias = PostgresSourceConfig | FileSourceConfig
SinkConfig: TypeAlias = PostgresReplicaConfig
SOURCES: dict[str, type[SourceConfig]] = {"file": FileSourceConfig, "postgres": PostgresSourceConfig}

PASSING, FOR_A_PERSON = Backoff(first=0.5, longest=30.0), Backoff(first=5.0, longest=60.0)
HEALTHY_AFTER_SECONDS = 60.0
STOP_SECONDS = 15.0
WORKS_AFTER_SECONDS = 10.0  # a task that failed and runs again for so long is no longer said to wait


class Task(Protocol):
    """A source or a sink: `run` works until `stop` is set, or raises; it can be called again."""

    def run(self, stop: threading.Event) -> None: ...


class TaskState(msgspec.Struct):
    """What people see of a task. `state`: running, idle (a job whose input is not there yet), waiting (for the next try
    after a failure), failed, stopped.

    `error` is the last one, on one line, or what an idle one waits for; `retry_seconds` is the pause before the next
    try of a task that waits or has failed, 0 where there is none. `needs_a_person`:
    a person has to mend what the error says.
    """

    name: str
    state: str = "running"
    failures: int = 0
    error: str = ""
    hint: str = ""
    since_ms: int = 0
    retry_seconds: float = 0.0
    needs_a_person: bool = False

    def seen_at(self, now_ms: int) -> "TaskState":
        """The state as people should see it: a task that has only just been started again may fail again at once."""
        tried = self.state == "running" and bool(self.error) and now_ms - self.since_ms < WORKS_AFTER_SECONDS * 1000
        if tried:
            state = "failed" if self.needs_a_person else "waiting"
            return msgspec.structs.replace(self, state=state, retry_seconds=0.0)
        return msgspec.structs.replace(self, error="", hint="") if self.state == "running" else self

    @property
    def told(self) -> str:
        """The error with what to do and when the next try is, on one line; "" where there is none."""
        hint = f" ({self.hint})" if self.hint else ""
        retry = f"; retry in {self.retry_seconds:g} s" if self.retry_seconds else ""
        return f"{self.error}{hint}{retry}"


def secrets_of(configs: Iterable[SourceConfig | SinkConfig]) -> set[str]:
    """Passwords, and addresses that hold them: a driver's message may quote an address that it cannot read."""
    secrets = set()
    for url in (config.url for config in configs if not isinstance(config, FileSourceConfig)):
        found = {*re.findall(r":([^:@/]+)@", url), *re.findall(r"password\s*=\s*'?([^'\s&]+)", url)}
        if found:
            secrets |= {url, *found, *map(unquote, found)}
    return secrets


def convert_source(tree: Any, *, where: str) -> SourceConfig:
    """The settings of one source; `type` says which.

    Raises:
        BadSetting: an unknown type, field or value; the message starts with `where`.
    """
    check_type(tree, SOURCES, where=where)
    return convert(tree, SOURCES[tree["type"]], where=where)


def convert_sink(tree: Any, *, where: str) -> SinkConfig:
    """The settings of one sink that runs here; `type` says which."""
    return convert(tree, SinkConfig, where=where)


def make_source(name: str, config: SourceConfig, connection: Connection, registry: Registry) -> Task:
    """A source that runs here; its driver is loaded only now."""
    if isinstance(config, FileSourceConfig):
        from mainstem.connect.sources.file import FileSource

        return FileSource(name, config, connection, registry)
    from mainstem.connect.sources.postgres import PostgresSource

    return PostgresSource(name, config, connection, registry)


def make_sink(name: str, config: SinkConfig, connection: Connection, registry: Registry) -> Task:
    """A sink that runs here; the lakehouse, which needs Spark, runs beside the jobs."""
    from mainstem.connect.sinks.postgres import PostgresReplica

    return PostgresReplica(name, config, connection, registry)


class Worker:
    """Keeps `tasks` running until it is stopped.

    Args:
        tasks: by name, e.g. `source shop`; the name is in every line about it.
        on_change: called with all states when one has changed, from the thread in which it changed.
        secrets: words that never appear in what is told of an error.
        passing: how long to wait after an error that may pass by itself.
        for_a_person: how long to wait where a person has to mend something.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        *,
        on_change: Callable[[list[TaskState]], None] = lambda _: None,
        secrets: Collection[str] = (),
        clock: Clock | None = None,
        passing: Backoff = PASSING,
        for_a_person: Backoff = FOR_A_PERSON,
    ) -> None:
        self._tasks = dict(tasks)
        self._on_change = on_change
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._clock = clock or SystemClock()
        self._passing, self._for_a_person = passing, for_a_person
        self._lock = threading.Lock()
        self._states = {name: TaskState(name, since_ms=self._clock.now_ms()) for name in self._tasks}

    @property
    def states(self) -> list[TaskState]:
        with self._lock:
            return [msgspec.structs.replace(state) for state in self._states.values()]

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; then every task ends what it has in hand, and what does not end in 15 s is left."""
        threads = [
            threading.Thread(target=self._keep, args=(name, task, stop), name=name, daemon=True)
            for name, task in self._tasks.items()
        ]
        for thread in threads:
            thread.start()
        stop.wait()
        deadline = self._clock.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.1, deadline - self._clock.monotonic()))
            if thread.is_alive():
                log.warning("task_does_not_stop", task=thread.name)

    def _keep(self, name: str, task: Task, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set():
            started = self._clock.monotonic()
            try:
                self._change(name, "running", failures)
                task.run(stop)
            except Fenced as error:
                self._change(name, "failed", failures + 1, error)
                self._tell_failed(name, error)
                return
            except Exception as error:  # whatever it is, the other tasks go on and this one is tried again
                failures = 1 if self._clock.monotonic() - started >= HEALTHY_AFTER_SECONDS else failures + 1
                if isinstance(error, (UserError, CorruptData)):
                    delay = self._for_a_person.pause(failures)
                    self._change(name, "failed", failures, error, delay)
                    self._tell_failed(name, error, retry_in_seconds=delay)
                    if stop.wait(delay):
                        return
                else:
                    delay = self._passing.pause(failures)
                    self._change(name, "waiting", failures, error, delay)
                    self._tell(name, error, delay)
                    stop.wait(delay)
        self._change(name, "stopped", failures)

    def _tell_failed(self, name: str, error: MainstemError, **more: float) -> None:
        log.error("task_failed", task=name, error=self._text(name, error), hint=error.hint, **more)

    def _tell(self, name: str, error: Exception, delay: float) -> None:
        if isinstance(error, MainstemError):
            log.warning("task_waits", task=name, error=self._text(name, error), hint=error.hint, retry_in_seconds=delay)
        else:
            stack = self._redacted("".join(traceback.format_exception(error)).rstrip())
            log.error(
                "task_has_a_bug", task=name, error=self._text(name, error), retry_in_seconds=delay, exception=stack
            )

    def _text(self, name: str, error: Exception) -> str:
        """What is told of an error: one line, without secrets, and without the task's name, which stands beside it."""
        lines = str(error).strip().splitlines() or [""]
        line = lines[0].removeprefix(f"{name}: ")
        return self._redacted(line if isinstance(error, MainstemError) else f"{type(error).__name__}: {line}")

    def _redacted(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _change(
        self, name: str, state: str, failures: int, error: Exception | None = None, retry_seconds: float = 0.0
    ) -> None:
        with self._lock:
            entry = self._states[name]
            entry.state, entry.since_ms, entry.retry_seconds = state, self._clock.now_ms(), retry_seconds
            entry.failures = failures
            if error is not None:
                entry.error, entry.hint = self._text(name, error), getattr(error, "hint", "")
                entry.needs_a_person = state == "failed"
        self._on_change(self.states)
