"""A log of a program's own: `with mainstem.embedded() as log:` and any Kafka client connects to `log.bootstrap`.

It is the whole broker with its files, on an event loop in a thread of its own, or (`child=True`) in a process of its
own, which a test may kill and start again; nothing is mocked and nothing is installed. A second one has its own
directory and port.
"""

import asyncio
import atexit
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from mainstem.broker.config import MOST_PARTITIONS, BrokerConfig
from mainstem.broker.node import serving
from mainstem.core.address import format_address
from mainstem.core.config import BadSetting, convert
from mainstem.core.errors import hints_in_tracebacks
from mainstem.core.logging import configure
from mainstem.core.process import open_standard_files
from mainstem.core.threads import LastingThreads
from mainstem.log import LogConfig

if TYPE_CHECKING:
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    from mainstem.embedded_child import Child

_ADMIN_SECONDS = 10
_POLL_SECONDS = 0.05
_THREADS = 4
_REMOVALS = 40
_DATA = "the current one is '.'; without `data` the log has one of its own, which goes with it"
_OVER = "its block is over, or it was closed: a new one has a log of its own, or goes on with the same directory"


class EmbeddedLog:
    """A running log: its address and its directory."""

    def __init__(self, bootstrap: str, data: Path, client: Mapping[str, Any]) -> None:
        self.bootstrap = bootstrap
        """`host:port`, for any client's bootstrap servers."""
        self.data = data
        self.client = {"bootstrap.servers": bootstrap, **client}
        """Settings of a confluent-kafka client that reaches it: `Producer(log.client)`."""
        self._ended = False
        self._ends = ExitStack()
        self._owner = os.getpid()
        self._closing = threading.RLock()  # of a signal's handler, which may come while it is closed, it is the thread

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.bootstrap} {self.data}{' (ended)' if self._ended else ''}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = f": a log in a process of its own has it, {_CHILD}" if name in vars(ChildLog) else ""
            raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}", name=name, obj=self)

    def close(self) -> None:
        """End it, as the end of its block does; a temporary directory goes too. Nothing, where it has ended.

        A fork that closes it leaves it running: it is the parent's.
        """
        self._ended = True
        if os.getpid() == self._owner:
            with self._closing:  # another thread may be about it: it is over on return
                self._ends.close()

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Make a topic; `config` has Kafka's names, as in `{"cleanup.policy": "compact"}`.

        Topics that a client writes to come into being by themselves, with one partition.

        Raises:
            TopicRefused: there is one, or its name, a setting or the number of partitions is refused.
            BrokerUnavailable: the log does not answer: it has ended, or its users and certificates need a `client`.
            BadSetting: `client` has what librdkafka does not know.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        from mainstem.client.errors import BrokerUnavailable, TopicRefused

        if self._ended:
            raise BrokerUnavailable(f"{self.bootstrap}: the log has ended", hint=_OVER)

        # Of some, confluent-kafka makes errors of its own.
        if not isinstance(name, str):
            raise TopicRefused(f"topic {name!r}: expected its name as a str, found {type(name).__name__}")
        if not isinstance(partitions, int) or not 1 <= partitions <= MOST_PARTITIONS:
            raise TopicRefused(f"topic {name}: expected 1 to {MOST_PARTITIONS} partitions, found {partitions!r}")
        if not isinstance(config or {}, Mapping):
            raise TopicRefused(f"topic {name}: expected config as a dict of Kafka's names, found {config!r}")
        try:
            self._create(NewTopic(name, partitions, replication_factor=1, config=dict(config or {})))
        except KafkaException as error:
            reason = error.args[0]
            raise TopicRefused(f"topic {name}: {reason.name()}: {reason.str()}") from None

    def _create(self, topic: "NewTopic") -> None:
        """Raises: KafkaException: what the log says. BrokerUnavailable, BadSetting: as `create_topic` does."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient

        from mainstem.client.errors import BrokerUnavailable
        from mainstem.client.topics import is_not_let_in

        told: list[KafkaError] = []
        settings: dict[str, Any] = {"log_level": 0, **self.client, "error_cb": told.append}
        try:
            admin = AdminClient(settings)
        except KafkaException as error:
            raise BadSetting(f"client: {error.args[0].str()}", hint="give what librdkafka's clients take") from None
        done = admin.create_topics([topic], request_timeout=_ADMIN_SECONDS)[topic.topic]
        while not wait([done], _POLL_SECONDS).done and not any(map(is_not_let_in, told)):
            admin.poll(0)
        if done.done() and isinstance(failed := done.exception(), KafkaException):
            told.append(failed.args[0])
        for each in told:
            if is_not_let_in(each):
                hint = "what `client=` says of user, password and certificates has to fit the log's own `broker=`"
                raise BrokerUnavailable(f"{self.bootstrap}: {each.str()}", hint=hint)
        try:
            done.result()
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                raise
            hint = "does it still run? one with users or certificates needs `client=` to be reached"
            raise BrokerUnavailable(f"{self.bootstrap}: no answer within {_ADMIN_SECONDS} s", hint=hint) from None


class ChildLog(EmbeddedLog):
    """A log in a process of its own: `kill` it in the middle of anything, `start` it again at the same address."""

    def __init__(self, bootstrap: str, data: Path, client: Mapping[str, Any], child: "Child") -> None:
        super().__init__(bootstrap, data, client)
        self._child = child

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        if not self._ended and not self.process_id:
            from mainstem.client.errors import BrokerUnavailable

            raise BrokerUnavailable(f"{self.bootstrap}: the log does not run", hint="start() it")
        super().create_topic(name, partitions, config)

    @property
    def process_id(self) -> int:
        """0 while none is running."""
        return self._child.process_id

    def kill(self) -> None:
        """As `kill -9`: all that was acknowledged is there when it is started again."""
        self._child.kill()

    def stop(self) -> None:
        """As an administrator stops it."""
        self._child.stop()

    def start(self) -> None:
        """Start it again after `kill` or `stop`; it serves on return.

        Raises:
            NotStarted: it runs already, or cannot, or its block is over.
        """
        if self._ended:
            from mainstem.embedded_child import NotStarted

            raise NotStarted(f"{self.bootstrap}: the log has ended", hint=_OVER)
        self._child.start()


_CHILD = "mainstem.embedded(child=True)"
_STARTED = "with mainstem.embedded() as log: …, or log = mainstem.embedded().open()"
_OF_A_LOG = frozenset({"bootstrap", "data", "client", *vars(EmbeddedLog)})

T = TypeVar("T")
LogT = TypeVar("LogT", bound=EmbeddedLog)


@overload
def embedded(
    data: str | PathLike[str] | None = None,
    *,
    child: Literal[False] = False,
    broker: BrokerConfig | Mapping[str, Any] | None = None,
    log: LogConfig | Mapping[str, Any] | None = None,
    client: Mapping[str, Any] | None = None,
) -> "Embedded[EmbeddedLog]": ...


@overload
def embedded(
    data: str | PathLike[str] | None = None,
    *,
    child: Literal[True],
    broker: BrokerConfig | Mapping[str, Any] | None = None,
    log: LogConfig | Mapping[str, Any] | None = None,
    client: Mapping[str, Any] | None = None,
) -> "Embedded[ChildLog]": ...


def embedded(
    data: str | PathLike[str] | None = None,
    *,
    child: bool = False,
    broker: BrokerConfig | Mapping[str, Any] | None = None,
    log: LogConfig | Mapping[str, Any] | None = None,
    client: Mapping[str, Any] | None = None,
) -> "Embedded[Any]":
    """A log that runs for as long as the context lasts.

    Args:
        data: its directory, kept afterwards; None makes a temporary one that is removed.
        child: in a process of its own, which takes nothing from this one's interpreter and can be killed.
        broker: settings, as in table `[broker]`; what says no port listens on 127.0.0.1 on a free one. A `BrokerConfig`
            is taken as it is: its port is Kafka's, unless it says another.
        log: settings of the log directory, as in table `[log]`.
        client: what a client of librdkafka needs to reach it, where it has users or certificates; `create_topic` does.

    Raises:
        BadSetting: one is unknown, or of the wrong type; or `data` is no path of a directory.
    """
    with hints_in_tracebacks():
        if not isinstance(broker, BrokerConfig):
            broker = convert({"port": 0, **_table(broker, "broker")}, BrokerConfig, where="broker")
        if not isinstance(log, LogConfig):
            log = convert(_table(log, "log"), LogConfig, where="log")
        directory = None if data is None else _directory(data)
        settings = broker, log, _table(client, "client")
    return Embedded(partial(_open, directory, _start_child if child else _start_thread, *settings))


class Embedded(Generic[LogT]):
    """What runs in a `with` block, or an `async with`; or, where no block can hold it, as in the cells of a notebook,
    from `open` to the log's `close`.
    """

    def __init__(self, start: Callable[[], LogT]) -> None:
        self._start = start
        self._entered: list[tuple[object, LogT]] = []  # by whom: a thread, or a task

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = (
                f": the log that it starts has one, {_STARTED}" if name in _OF_A_LOG or name in vars(ChildLog) else ""
            )
            raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}", name=name, obj=self)

    def open(self) -> LogT:
        """Start it.

        Raises:
            LogDirectoryInUse: `data` belongs to another process (`child`: NotStarted, with what it says).
            AddressInUse: the port that was asked for is taken (`child`: NotStarted).
        """
        with hints_in_tracebacks():
            return self._start()

    def __enter__(self) -> LogT:
        return self._enter(threading.get_ident(), self.open())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave(threading.get_ident()).close()

    async def __aenter__(self) -> LogT:
        opening = asyncio.get_running_loop().run_in_executor(None, self.open)
        try:
            return self._enter(asyncio.current_task(), await _done(opening))
        except asyncio.CancelledError:
            if opening.exception() is None:  # nobody else would end what the thread has started
                await _closed(opening.result())
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await _closed(self._leave(asyncio.current_task()))

    def _enter(self, who: object, log: LogT) -> LogT:
        self._entered.append((who, log))
        return log

    def _leave(self, who: object) -> LogT:
        """The log that it has entered last; one of another's, where the block is a generator that others go on with."""
        number = next((n for n, (each, _) in reversed(list(enumerate(self._entered))) if each == who), -1)
        return self._entered.pop(number)[1]


async def _closed(log: EmbeddedLog) -> None:
    await _done(asyncio.get_running_loop().run_in_executor(None, log.close))


async def _done(call: "asyncio.Future[T]") -> T:
    """Its result. A thread goes on where its caller is cancelled: that is waited for, then the cancellation raised.

    There may be many of them: anyio cancels again in each turn of the loop, until the block is left.
    """
    cancelled: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return call.result()


def _open(
    data: Path | None,
    start: Callable[..., tuple[LogT, Callable[[], None]]],
    broker: BrokerConfig,
    log: LogConfig,
    client: Mapping[str, Any],
) -> LogT:
    with ExitStack() as ends:
        directory = data
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="mainstem-log-"))
            _at_exit(partial(_remove, directory, os.getpid()), ends)
        running, stop = start(directory, broker, log, client)
        ends.callback(stop)
        if isinstance(running, ChildLog):  # one in a thread ends as by a crash: Python starts no threads any more then
            _at_exit(running.close, ends, is_end=False)
        running._ends = ends.pop_all()
    return running


def _at_exit(call: Callable[[], None], ends: ExitStack, *, is_end: bool = True) -> None:
    """Call it when the program ends, if the log is still open then; `is_end`: else when the log ends."""
    atexit.register(call)

    def end() -> None:
        if is_end:
            call()
        atexit.unregister(call)  # not where a Ctrl-C came amid the call

    ends.callback(end)


def _remove(directory: Path, owner: int) -> None:
    """Where the program ends without an end of its log, that may still make files."""
    for _ in range(_REMOVALS):
        if os.getpid() != owner or not directory.exists():
            return
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            time.sleep(_POLL_SECONDS)


def _table(given: Any, name: str) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise BadSetting(
            f"{name}: expected a mapping of settings, found {type(given).__name__}", hint='as in {"name": "value"}'
        )
    return dict(given or {})


def _directory(data: Any) -> Path:
    """It is absolute: a program may change its own before it starts the child again."""
    if not isinstance(data, (str, PathLike)) or not isinstance(os.fspath(data), str):
        raise BadSetting(f"data: expected the path of a directory, found {type(data).__name__}", hint=_DATA)
    if str(data) == "" or "\0" in str(data):
        raise BadSetting(f"data: expected the path of a directory, found {str(data)!r}", hint=_DATA)
    return Path(data).absolute()


def _start_child(
    directory: Path, broker: BrokerConfig, log: LogConfig, client: Mapping[str, Any]
) -> tuple[EmbeddedLog, Callable[[], None]]:
    """The log, and what stops it."""
    from mainstem.embedded_child import Child

    open_standard_files()
    process = Child(directory, broker, log)
    try:
        return ChildLog(process.start(), directory, client, process), process.stop
    except BaseException:
        process.stop()
        raise


def _start_thread(
    directory: Path, broker: BrokerConfig, log: LogConfig, client: Mapping[str, Any]
) -> tuple[EmbeddedLog, Callable[[], None]]:
    """The log, and what stops it."""
    open_standard_files()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]] = Future()
    thread = threading.Thread(
        target=_run, args=(directory, broker, log, started), name="mainstem-embedded-log", daemon=True
    )

    def end(begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]]) -> None:
        if begun.exception() is None:
            loop, ended, _ = begun.result()
            loop.call_soon_threadsafe(ended.set)

    def stop() -> None:
        end(started)
        thread.join()

    try:
        thread.start()
        _, _, address = started.result()
    except BaseException:  # it cannot; or a Ctrl-C, amid the start
        started.add_done_callback(end)
        if thread.is_alive():
            thread.join()
        raise
    return EmbeddedLog(address, directory, client), stop


def _run(
    directory: Path,
    broker: BrokerConfig,
    log: LogConfig,
    started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]]",
) -> None:
    """The thread: a loop that serves until `stop` is set; what prevents the start is raised in the caller."""
    import structlog
    import uvloop

    if not structlog.is_configured():  # a program that says nothing about logs gets warnings only, on stderr
        configure("embedded-log", level="warning")

    async def serve() -> None:
        # Python ends a loop's threads with the main one; others of the program may still need their log.
        asyncio.get_running_loop().set_default_executor(LastingThreads(_THREADS, "embedded-log"))
        stop = asyncio.Event()
        async with serving(directory, broker, log) as running:
            started.set_result((asyncio.get_running_loop(), stop, format_address(running.host, running.port)))
            await stop.wait()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
