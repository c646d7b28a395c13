"""Each task in its own thread: what its errors lead to, and that the others do not care."""

import threading

import msgspec
import psycopg2
import psycopg2.extensions
import pytest
import structlog

from mainstem.client import Connection
from mainstem.client.errors import Fenced
from mainstem.connect.sinks.postgres_config import PostgresReplicaConfig
from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from mainstem.connect.worker import (
    Worker,
    convert_sink,
    convert_source,
    make_sink,
    make_source,
    secrets_of,
)
from mainstem.core import Backoff, CorruptData, Retriable, UserError
from mainstem.core.config import BadSetting
from mainstem.registry.client import Registry


class Script:
    """A task that raises what it is given, one error per run, then works until it is stopped."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.working = threading.Event()
        self.ended = False

    def run(self, stop: threading.Event) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.working.set()
        stop.wait()
        self.ended = True


def run_until(worker: Worker, *events: threading.Event) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    for event in events:
        assert event.wait(10)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def states(worker: Worker) -> dict[str, str]:
    return {state.name: state.state for state in worker.states}


def test_tasks_run_until_they_are_stopped():
    one, two = Script(), Script()
    worker = Worker({"source one": one, "sink two": two})
    run_until(worker, one.working, two.working)
    assert (one.ended, two.ended) == (True, True)
    assert states(worker) == {"source one": "stopped", "sink two": "stopped"}


def test_what_may_pass_is_tried_again_with_growing_pauses_and_one_line_each():
    task = Script(Retriable("down"), Retriable("down"), ValueError("a bug"))
    worker = Worker({"sink slow": task}, passing=Backoff(0.001, 0.002))
    with structlog.testing.capture_logs() as logs:
        run_until(worker, task.working)
    assert [(line["event"], line["error"], line["retry_in_seconds"]) for line in logs] == [
        ("task_waits", "down", 0.001),
        ("task_waits", "down", 0.002),
        ("task_has_a_bug", "ValueError: a bug", 0.002),
    ]
    assert logs[2]["exception"].startswith("Traceback")
    assert "raise self.errors.pop(0)" in logs[2]["exception"]
    assert worker.states[0].error == "ValueError: a bug"
    assert worker.states[0].failures == 3


def test_a_task_that_finds_nothing_to_read_is_idle_until_it_does():
    class Idle(Script):
        on_idle = None

        def run(self, stop):
            self.on_idle("/var/acess.log is not there yet", "see whether its `path` is right")
            self.on_idle("", "")
            super().run(stop)

    task, seen = Idle(), []
    with structlog.testing.capture_logs() as logs:
        run_until(Worker({"source site": task}, on_change=seen.extend), task.working)
    assert [(state.state, state.error, state.needs_a_person) for state in seen] == [
        ("running", "", False),
        ("idle", "/var/acess.log is not there yet", True),
        ("running", "", False),
        ("stopped", "", False),
    ]
    assert [line["event"] for line in logs] == ["task_idle"]


def test_the_name_of_a_task_is_told_once():
    task = Script(Retriable("sink copy: no answer"))
    worker = Worker({"sink copy": task}, passing=Backoff(0.001, 30))
    with structlog.testing.capture_logs() as logs:
        run_until(worker, task.working)
    assert [(line["task"], line["error"]) for line in logs] == [("sink copy", "no answer")]
    assert worker.states[0].error == "no answer"


@pytest.mark.parametrize("error", [UserError("wrong", hint="mend it"), CorruptData("torn")])
def test_what_a_person_has_mended_is_tried_again_and_seen_as_failed_until_then(error):
    task, seen = Script(error, error), []
    worker = Worker({"source bad": task}, on_change=seen.extend, for_a_person=Backoff(0.01, 0.02))
    with structlog.testing.capture_logs() as logs:
        run_until(worker, task.working)
    assert [(line["event"], line["retry_in_seconds"]) for line in logs] == [
        ("task_failed", 0.01),
        ("task_failed", 0.02),
    ]
    assert [state.state for state in seen] == ["running", "failed", "running", "failed", "running", "stopped"]
    again = seen[4]
    assert (again.seen_at(again.since_ms + 1_000).state, again.seen_at(again.since_ms + 20_000).state) == (
        "failed",
        "running",
    )
    assert (seen[1].retry_seconds, seen[1].error, seen[1].hint) == (0.01, str(error), error.hint)


@pytest.mark.parametrize("error", [UserError("wrong", hint="mend it"), CorruptData("torn"), Fenced("another")])
def test_what_a_person_must_mend_fails_and_the_others_go_on(error):
    bad, good, failed = Script(error), Script(), threading.Event()

    def on_change(states):
        if any(state.state == "failed" for state in states):
            failed.set()

    worker = Worker({"source bad": bad, "sink good": good}, on_change=on_change)
    with structlog.testing.capture_logs() as logs:
        run_until(worker, good.working, failed)
    assert states(worker) == {"source bad": "failed", "sink good": "stopped"}
    assert [(line["event"], line["task"], line["error"]) for line in logs] == [
        ("task_failed", "source bad", str(error))
    ]
    assert worker.states[0].hint == error.hint


def test_no_secret_is_in_what_is_told_of_an_error():
    configs = [
        PostgresSourceConfig(url="postgresql://me:hunt%21er2@db/shop"),
        PostgresReplicaConfig(url="host=db password='s3cret' user=me", source="a"),
        FileSourceConfig(path="x", topic="t"),
        PostgresSourceConfig(url="postgresql://me@db/shop"),
    ]
    told = [config.url for config in configs[:2]]
    text = f"{told[0]} and {told[1]}, hunt!er2 and s3cret"
    bug = ValueError(f"{text}\nand {text}")
    bug.__cause__ = KeyError(text)
    task = Script(Retriable(f"{text}\nDETAIL: more"), bug)
    worker = Worker({"source a": task}, secrets=secrets_of(configs), passing=Backoff(0.001, 30))
    with structlog.testing.capture_logs() as logs:
        run_until(worker, task.working)
    assert logs[0]["error"] == "*** and ***, *** and ***"
    assert worker.states[0].error == logs[1]["error"] == "ValueError: *** and ***, *** and ***"
    assert logs[1]["exception"].endswith("ValueError: *** and ***, *** and ***\nand *** and ***, *** and ***")
    for secret in secrets_of(configs):
        assert not [line for line in logs if secret in str(line)]
    assert secrets_of(configs[2:]) == set()


@pytest.mark.parametrize(
    ("url", "quoted"),
    [
        ("host=db password=deep secret user=me", 'missing "=" after "secret"'),
        ("host=db password=deep secret=1", 'invalid connection option "secret"'),
        ("host=db password='deep secret", "unterminated quoted string"),
        (r"host=db password='deep \'secret' user=me", None),
        ("postgresql://me:deep:secret@db/shop", None),
        ("postgresql://me:deep@secret@nowhere/shop", None),  # could not translate host name "secret@nowhere" to address
        ("postgresql://me:deep/secret@db/shop", None),  # invalid integer value "deep" for connection option "port"
        ("postgresql://me:deep%zzsecret@db/shop", 'invalid percent-encoded token: "deep%zzsecret"'),
        ("postgresql://db/shop?password=deep=secret", 'extra key/value separator "="'),
    ],
)
def test_a_password_is_not_told_where_libpq_takes_it_for_something_else(url, quoted):
    parts = {}
    if quoted is None:
        parts = psycopg2.extensions.parse_dsn(url)
    else:
        with pytest.raises(psycopg2.ProgrammingError, match=quoted) as caught:
            psycopg2.extensions.parse_dsn(url)
        quoted = str(caught.value)
    told = f"{url}: {quoted}: {' '.join(parts.values())}"
    task = Script(Retriable(told.replace("\n", " ")))
    worker = Worker({"source a": task}, secrets=secrets_of([PostgresSourceConfig(url=url)]), passing=Backoff(0.001, 30))
    with structlog.testing.capture_logs() as logs:
        run_until(worker, task.working)
    assert "***" in logs[0]["error"]
    for piece in ("deep", "secret"):
        assert piece not in str(logs)


@pytest.mark.parametrize(
    "url",
    [
        "host=db password='' user=me",
        "host=db password= user=me",
        "host=db password=a b c=d",
        "postgresql://me:@db/shop",
        "postgresql://me:a/b@c@db/shop",
        "postgresql://me:x@%20@db/shop",
        "postgresql://db/shop?password=a=b",
    ],
)
def test_no_password_and_single_letters_of_one_leave_a_message_as_it_is(url):
    """An empty one put *** between all letters of each, and a letter instead of all of its kind."""
    message = 'connection to server at "db", port 5432 failed: a bad check of x'
    secrets = secrets_of([PostgresSourceConfig(url=url)])
    task = Script(Retriable(f"{message}: {url}"))
    worker = Worker({"source a": task}, secrets=secrets, passing=Backoff(0.001, 30))
    run_until(worker, task.working)
    assert worker.states[0].error == f"{message}: {'***' if secrets else url}"
    assert bool(secrets) == (url not in ("host=db password='' user=me", "postgresql://me:@db/shop"))


def test_settings_choose_the_kind():
    source = convert_source({"type": "postgres", "url": "postgresql://x"}, where="f: [sources.a]")
    assert source == PostgresSourceConfig(url="postgresql://x")
    files = convert_source({"type": "file", "path": "x", "topic": "t"}, where="f: [sources.a]")
    assert isinstance(files, FileSourceConfig)
    sink = convert_sink({"type": "postgres", "url": "postgresql://x", "source": "a"}, where="f: [sinks.a]")
    assert sink == PostgresReplicaConfig(url="postgresql://x", source="a")
    connection, registry = Connection("127.0.0.1:1"), Registry("http://127.0.0.1:1")
    names = [type(make_source("a", config, connection, registry)).__name__ for config in (source, files)]
    assert names == ["PostgresSource", "FileSource"]
    assert type(make_sink("a", sink, connection, registry)).__name__ == "PostgresReplica"


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"type": "postgres", "url": "x", "tabels": []}, "unknown field `tabels`"),
        ({"type": "oracle", "url": "x"}, "expected type = .*, found 'oracle'"),
        ({"type": "postgres"}, "missing required field `url`"),
    ],
)
def test_a_wrong_setting_names_itself_and_its_place(tree, said):
    with pytest.raises(BadSetting, match=rf"f: \[sources\.a\]: .*{said}"):
        convert_source(tree, where="f: [sources.a]")


def test_settings_are_frozen():
    config = PostgresSourceConfig(url="x")
    with pytest.raises(AttributeError):
        config.url = "y"
    assert msgspec.structs.replace(config, partitions=3).partitions == 3
