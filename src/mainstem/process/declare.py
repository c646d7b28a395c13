"""What a user's module declares: topics, changelogs, and the jobs that lead from some to others.

Declaring never runs anything and needs no Spark. The declarations of a project are collected while `load_project`
imports it. Outside of that the same module imports just as well, so a test can say `from jobs import enriched` and call
it with ten rows.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

import msgspec

from mainstem.core import UserError, is_topic_name

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = Literal["stream", "changelog"]
Emit = Literal["final", "changes"]
Latency = Literal["batch", "realtime"]

SINCE, UNTIL = "_since", "_until"
"""The columns of a table with its history: when a version of a row began to hold, and when it ended; null: it holds."""
_INTERNAL_PREFIX = "__mainstem."


class Location(msgspec.Struct, frozen=True):
    """Where in the user's code something is declared."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class BadDeclaration(UserError):
    """A declaration that cannot mean anything; the message starts with the user's file and line."""

    def __init__(self, location: Location | str, message: str, *, hint: str = "") -> None:
        super().__init__(f"{location}: {message}", hint=hint)
        self.location = location
        self.reason = message


class Topic(msgspec.Struct, frozen=True):
    """A topic that jobs read: `stream` for facts, `changelog` for the last row per key."""

    name: str
    kind: Kind
    key: tuple[str, ...]
    event_time: str | None
    schema: str | None
    location: Location
    history: str | None = None


class Watermark(msgspec.Struct, frozen=True):
    """Rows whose `column` lies more than `delay` behind the newest one seen may be dropped as late."""

    column: str
    delay: str


class Output(msgspec.Struct, frozen=True):
    """What one result of a job becomes."""

    topic: str
    kind: Kind
    key: tuple[str, ...]
    event_time: str | None


class Job(msgspec.Struct, frozen=True):
    """A function of DataFrames, or one that gives SQL, and the topics that its results go to."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    to: str
    kind: Kind
    key: tuple[str, ...]
    event_time: str | None
    watermark: Watermark | None
    emit: Emit
    location: Location
    also: tuple[Topic, ...] = ()
    """Further topics that it writes: its function gives a result for `to` and one for each of them, in this order."""
    state: Topic | None = None
    """What it keeps over batches is published here."""
    latency: Latency = "batch"

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What its function returns, in this order: `to` first."""
        return (Output(self.to, self.kind, self.key, self.event_time), *map(_output, self.also))

    @property
    def is_realtime(self) -> bool:
        """Whether each row is written as it comes, at least once, and not with its batch, exactly once."""
        return self.latency == "realtime"

    @property
    def written(self) -> tuple[Output, ...]:
        """All that it writes: its results, then its state."""
        return self.outputs if self.state is None else (*self.outputs, _output(self.state))

    @property
    def topics(self) -> tuple[str, ...]:
        """Those of all that it writes."""
        return tuple(output.topic for output in self.written)

    @property
    def doc(self) -> str:
        return (inspect.getdoc(self.function) or "").split("\n\n")[0]


class Declarations:
    """What one project has declared so far, in order."""

    def __init__(self) -> None:
        self.topics: list[Topic] = []
        self.jobs: list[Job] = []


_active: ContextVar[Declarations | None] = ContextVar("mainstem_declarations", default=None)


@contextmanager
def collecting() -> Iterator[Declarations]:
    """Collect what is declared inside the block."""
    declarations = Declarations()
    token = _active.set(declarations)
    try:
        yield declarations
    finally:
        _active.reset(token)


def topic(
    name: str, *, key: str | Sequence[str] | None = None, event_time: str | None = None, schema: str | None = None
) -> Topic:
    """Declare a stream: every record of topic `name`, in order per key.

    A job whose parameter has the name of the variable that this is assigned to reads it.

    Args:
        name: the topic.
        key: the column or columns of its key, if they are columns of its value.
        event_time: the column that says when it happened.
        schema: an Avro schema file of the project, where no producer registers one.
    """
    return _declare_topic(name, "stream", key, event_time, schema)


def changelog(name: str, *, key: str | Sequence[str], schema: str | None = None, history: str | None = None) -> Topic:
    """Declare a table kept as a changelog: a job sees the last row of each key, as of a pinned position.

    Change records of a database table count as rows: a delete or a truncation removes them.

    Args:
        name: the topic.
        key: the column or columns that name a row.
        schema: an Avro schema file of the project, where no producer registers one.
        history: a column that says since when a row is so; `committed_at` of change records. Then a job sees all
            versions of each row, with the columns `_since` and `_until`: see `as_of`.
    """
    if history is not None and not (isinstance(history, str) and history):
        raise BadDeclaration(_caller(), f"table {name}: expected history as the name of a column, found {history!r}")
    return _declare_topic(name, "changelog", key, None, schema, history)


def stream(
    *,
    to: str,
    key: str | Sequence[str] | None = None,
    event_time: str | None = None,
    watermark: tuple[str, str] | None = None,
    also: Sequence[Topic] = (),
    state: Topic | None = None,
    latency: Latency = "batch",
) -> Callable[[Function], Function]:
    """Declare a job whose rows are facts: each is appended to topic `to`.

    The function has its inputs as DataFrames and returns one, or the text of an SQL query over tables that are called
    as its parameters. The records of a key keep the order of their input, unless `mainstem plan` says which operator
    loses it. A row whose column `_rejected` has a text is none of the result: it goes to the topic `<to>.quarantine`,
    with that text as its reason; keep `_record` too, and it is there with the bytes that it came in.

    Args:
        to: the topic that the rows go to; it is created.
        key: the column or columns of its key; records without a key are spread.
        event_time: the column that says when it happened; by default the watermark's, or the input's if it is kept.
        watermark: (column, delay) for a function that keeps state, e.g. one that drops duplicates.
        also: further topics that it writes, declared by `topic` or `changelog`: the function returns a result for `to`,
            and one for each of them. A batch is written to all or to none of them.
        state: a table, declared by `changelog`, for what the job keeps over batches: a row for each entry, until it is
            dropped. It follows one batch behind.
        latency: `batch` writes the rows of a batch together, exactly once. `realtime` writes each within milliseconds,
            at least once: after a crash, and after any other stop, those of the last `realtime_batch` (a setting of
            `[jobs.NAME]`) are written again. It is for jobs that keep no state, have one result, read streams alone,
            and use Spark's own expressions and SQL, no function of Python.
    """
    return _declare_job("stream", to, key, event_time, watermark, "final", also, state, latency)


def table(
    *,
    to: str,
    key: str | Sequence[str],
    watermark: tuple[str, str] | None = None,
    event_time: str | None = None,
    emit: Emit = "final",
    also: Sequence[Topic] = (),
    state: Topic | None = None,
) -> Callable[[Function], Function]:
    """Declare a job whose rows are a table: the last row per key counts, and topic `to` is compacted. Its function is
    as that of a `stream`; where the column `_deleted` of a row is true, the table's row of this key goes.

    Args:
        to: the topic that the rows go to; it is created.
        key: the column or columns that name a row.
        watermark: (column, delay): how far behind the newest event time a row may come and still count.
        event_time: the column of the result that says when it happened.
        emit: `final` writes a window once, when the watermark has passed its end; `changes` writes it whenever it
            changes (Spark does this for windows, not for session windows).
        also: further topics that it writes, as for a `stream`.
        state: a table for what it keeps over batches, as for a `stream`.
    """
    return _declare_job("changelog", to, key, event_time, watermark, emit, also, state)


def _declare_topic(
    name: str,
    kind: Kind,
    key: str | Sequence[str] | None,
    event_time: str | None,
    schema: str | None,
    history: str | None = None,
) -> Topic:
    location = _caller()
    _check_topic_name(name, location)
    result = Topic(name, kind, _columns(key, location), event_time, schema, location, history)
    if (declarations := _active.get()) is not None:
        declarations.topics.append(result)
    return result


def _declare_job(
    kind: Kind,
    to: str,
    key: str | Sequence[str] | None,
    event_time: str | None,
    watermark: tuple[str, str] | None,
    emit: Emit,
    also: Sequence[Topic],
    state: Topic | None,
    latency: Latency = "batch",
) -> Callable[[Function], Function]:
    called_at = _caller()
    _check_topic_name(to, called_at)
    others = _also(to, also, called_at)
    _check_state(state, (to, *(each.name for each in others)), called_at)
    columns = _columns(key, called_at)
    mark = _watermark(watermark, called_at)
    if kind == "changelog" and not columns:
        raise BadDeclaration(called_at, f"table {to}: expected a key, found none", hint='add key="…"')
    if emit not in ("final", "changes"):
        raise BadDeclaration(called_at, f"table {to}: emit is 'final' or 'changes', found {emit!r}")
    _check_latency(latency, {"also": others, "state": state, "watermark": mark}, called_at)

    def declare(function: Function) -> Function:
        if not inspect.isfunction(function):
            raise BadDeclaration(called_at, f"expected a function, found {function!r}")
        location = location_of(function)
        parameters = _parameters(function, location)
        job = Job(
            function.__name__, function, parameters, to, kind, columns, event_time, mark, emit, location, others, state,
            latency,
        )  # fmt: skip
        if (declarations := _active.get()) is not None:
            declarations.jobs.append(job)
        return function

    return declare


def location_of(function: Callable[..., Any]) -> Location:
    """File and line of a function's first line (of its first decorator, if it has some)."""
    code = inspect.unwrap(function).__code__
    return Location(code.co_filename, code.co_firstlineno)


def _caller() -> Location:
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


def _check_topic_name(name: object, location: Location) -> None:
    if not isinstance(name, str) or not is_topic_name(name):
        raise BadDeclaration(location, f"expected a topic name (letters, digits, '.', '_', '-'), found {name!r}")
    if name.startswith(_INTERNAL_PREFIX):
        raise BadDeclaration(location, f"topic {name}: names that start with {_INTERNAL_PREFIX} are Mainstem's own")


def _columns(key: str | Sequence[str] | None, location: Location) -> tuple[str, ...]:
    columns = () if key is None else tuple(key) if isinstance(key, list | tuple) else (key,)
    if not all(isinstance(column, str) and column for column in columns):
        raise BadDeclaration(location, f"expected the key as a column name or a list of them, found {key!r}")
    if len(set(columns)) != len(columns):
        raise BadDeclaration(location, f"the key names a column twice: {list(columns)}")
    return columns


def _also(to: str, also: object, location: Location) -> tuple[Topic, ...]:
    if not isinstance(also, list | tuple) or not all(isinstance(each, Topic) for each in also):
        raise BadDeclaration(
            location,
            f"expected also=[…] as a list of declared topics, found {also!r}",
            hint='give it what topic("…") gave',
        )
    for each in also:
        _check_no_schema(each, location)
    names = [to, *(each.name for each in also)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadDeclaration(location, f"topic {twice} is named twice among what the job writes")
    return tuple(also)


def _check_state(state: object, others: Sequence[str], location: Location) -> None:
    if state is None:
        return
    if not isinstance(state, Topic) or state.kind != "changelog":
        raise BadDeclaration(
            location,
            f"expected state=… as a declared table, found {state!r}",
            hint='give it what changelog("…", key=…) gave',
        )
    _check_no_schema(state, location)
    if state.name in others:
        raise BadDeclaration(location, f"topic {state.name} is named twice among what the job writes")


def _check_latency(latency: object, others: Mapping[str, object], location: Location) -> None:
    """`others` are arguments that a job whose rows are written one by one cannot have."""
    if latency not in ("batch", "realtime"):
        raise BadDeclaration(location, f"expected latency='batch' or 'realtime', found {latency!r}")
    found = [f"{name}=…" for name, value in others.items() if value]
    if latency == "realtime" and found:
        raise BadDeclaration(
            location,
            f'expected latency="realtime" for a job with one result and without state, found {" and ".join(found)}',
            hint='remove that, or latency="realtime": the log connects jobs of both kinds',
        )


def _check_no_schema(topic: Topic, location: Location) -> None:
    if topic.schema is not None:
        raise BadDeclaration(location, f"topic {topic.name}: schema: the job gives it its schema")


def _output(topic: Topic) -> Output:
    return Output(topic.name, topic.kind, topic.key, topic.event_time)


def _watermark(watermark: object, location: Location) -> Watermark | None:
    if watermark is None:
        return None
    if (
        not isinstance(watermark, tuple | list)
        or len(watermark) != 2
        or not all(isinstance(part, str) and part for part in watermark)
    ):
        raise BadDeclaration(
            location, f'expected watermark=("column", "10 minutes"), found {watermark!r}', hint="give column and delay"
        )
    return Watermark(*watermark)


def _parameters(function: Callable[..., Any], location: Location) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadDeclaration(
                location, f"{function.__name__}: parameter {parameter} has no name that could be a topic's"
            )
        if not parameter.name.isascii():
            raise BadDeclaration(
                location, f"{function.__name__}: parameter {parameter}: Spark's source names are ASCII"
            )
    if not parameters:
        raise BadDeclaration(location, f"{function.__name__}: expected at least one input as a parameter, found none")
    return tuple(parameter.name for parameter in parameters)
