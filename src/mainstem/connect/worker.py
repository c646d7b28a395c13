"""Runs the sources and sinks of a project in one process, each in a thread of its own: one that fails lags only itself.

What becomes of an error:

    Retriable            tried again after a pause that doubles (`core.backoff`)
    Fenced               failed: another process runs the same source, and trying again would fence that one
    UserError            failed: a person has to mend something; the line says what. Tried again after longer pauses
    CorruptData          failed: nothing is skipped in silence. Tried again like a UserError
    anything else        a bug of ours: logged with its stack, tried again like a Retriable

A run of a minute starts over with the first pause. One line per failure, and the others go on. `failed` stays while it
is tried again, until it has worked for a while.
"""

import re
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable
from urllib.parse import unquote

from mainstem.client.connection import Connection
from mainstem.client.errors import Fenced
from mainstem.connect.sinks.postgres_config import PostgresReplicaConfig
from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from mainstem.core import Backoff, Clock, CorruptData, MainstemError, SystemClock, UserError
from mainstem.core.backoff import FOR_A_PERSON, PASSING
from mainstem.core.config import check_type, convert
from mainstem.core.logging import get_logger
from mainstem.core.task import Attempts, TaskState
from mainstem.registry.client import Registry

log = get_logger()

SourceConfig: TypeAlias = PostgresSourceConfig | FileSourceConfig
SinkConfig: TypeAlias = PostgresReplicaConfig
SOURCES: dict[str, type[SourceConfig]] = {"file": FileSourceConfig, "postgres": PostgresSourceConfig}

STOP_SECONDS = 15.0


class Task(Protocol):
    """A source or a sink: `run` works until `stop` is set, or raises; it can be called again."""

    def run(self, stop: threading.Event) -> None: ...


def secrets_of(configs: Iterable[SourceConfig | SinkConfig]) -> set[str]:
    """Passwords, and addresses that hold them: a driver's message may quote an address that it cannot read."""
    secrets = set()
    for url in (config.url for config in configs if not isinstance(config, FileSourceConfig)):
        found = _passwords(url)
        if found:
            secrets |= {url, *found}
    return secrets


def _passwords(url: str) -> set[str]:
    """With the pieces that libpq quotes as a host, a port or a word, where a password has letters that end one; one or
    two letters are in every message.
    """
    if "://" in url:
        whole = [*re.findall(r"://[^:@/]*:(.*)@", url), *re.findall(r"password=([^&]+)", url)]
        pieces = [piece for text in whole for piece in re.split("[@/?,&=]", text)]
    else:
        import psycopg2
        from psycopg2.extensions import parse_dsn

        try:
            whole, pieces = [value for name, value in parse_dsn(url).items() if name.endswith("password")], []
        except psycopg2.ProgrammingError:  # all that is behind it may belong to it
            whole = [url.partition("password")[2].strip(" =")]
            pieces = re.split(r"[\s=']+", whole[0])
    passwords = {text for each in whole for text in (each, unquote(each)) if text}
    return passwords | {text for each in pieces for text in (each, unquote(each)) if len(text) > 2}


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


@runtime_checkable
class IdleTask(Task, Protocol):
    """A task that may find nothing to read yet."""

    on_idle: Callable[[str, str], None]
    """Called with what it waits for and what a person can do; with "" once it goes on."""


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
        self._attempts = {
            name: Attempts(name, self._clock, passing=passing, for_a_person=for_a_person) for name in self._tasks
        }

    @property
    def states(self) -> list[TaskState]:
        return [each.state for each in self._attempts.values()]

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
        attempts = self._attempts[name]
        if isinstance(task, IdleTask):
            task.on_idle = partial(self._idle, name)
        while not stop.is_set():
            attempts.start()
            self._on_change(self.states)
            try:
                task.run(stop)
            except Fenced as error:
                attempts.give_up(self._text(name, error), error.hint)
                self._on_change(self.states)
                self._tell_failed(name, error)
                return
            except Exception as error:  # whatever it is, the other tasks go on and this one is tried again
                needs_a_person = isinstance(error, (UserError, CorruptData))
                text, hint = self._text(name, error), getattr(error, "hint", "")
                delay = attempts.fail(text, hint, needs_a_person=needs_a_person).retry_seconds
                self._on_change(self.states)
                if isinstance(error, (UserError, CorruptData)):
                    self._tell_failed(name, error, retry_in_seconds=delay)
                    if stop.wait(delay):
                        return
                else:
                    self._tell(name, error, delay)
                    stop.wait(delay)
        attempts.stop()
        self._on_change(self.states)

    def _idle(self, name: str, what: str, hint: str) -> None:
        if what:
            self._attempts[name].idle(what, hint)
            log.warning("task_idle", task=name, reason=what, hint=hint)
        else:
            self._attempts[name].go_on()
        self._on_change(self.states)

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
