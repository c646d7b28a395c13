"""Kafka Streams 4.3.0 over the log: words are counted exactly once, whoever is killed meanwhile.

`WordCount.java` is run by two instances of two threads each, with `processing.guarantee=exactly_once_v2` and no cache,
so that every word comes out with every number from 1 to how often it is in the text: one too many, one missing or one
out of order is seen, wherever it was lost. The text is Python's own documentation, as every Python has it.

The jars of streams.lock and the compiled program are kept in the user's cache directory; to compile it takes a JDK.
"""

import hashlib
import pydoc_data.topics
import re
import signal
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from conformance.frame import Result, Server, Unavailable
from mainstem.process.jars import fetch, read_lock
from mainstem.process.java import cache_directory, find_java
from tests.support import processes
from tests.support.kafka_tools import QUIET_LOGGING

LOCK = Path(__file__).with_name("streams.lock")
PROGRAM = Path(__file__).with_name("WordCount.java")

PARTITIONS = 4
INSTANCES = 2
PARTS = 8
"""The text comes in so many parts; before each but the first somebody may be killed."""
SECONDS = 180.0
"""For the last count to come out. After a kill, a transaction or a session may have to time out first."""

SESSIONS: Mapping[str, int] = {
    f"group_streams_{each}{name}": value
    for name, value in {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000}.items()
    for each in ("", "min_")
}
"""A killed instance comes back with another member id; its tasks are those of the old one until its session ends."""

Protocol = Literal["classic", "streams"]

# --- the program ---


@cache
def classpath() -> str:
    """The jars of Kafka Streams, fetched if missing."""
    return ":".join(str(path) for path in fetch(read_lock(LOCK)))


@cache
def compiled() -> Path:
    """The directory with the program's classes.

    Raises:
        Unavailable: this Java has no compiler, or refuses the program.
    """
    mark = hashlib.sha256(PROGRAM.read_bytes() + LOCK.read_bytes()).hexdigest()[:16]
    home = cache_directory() / "conformance" / f"streams-{mark}"
    if home.exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="streams-", dir=home.parent) as name:
        classes = Path(name) / "classes"
        compiler = [str(find_java().executable), "-m", "jdk.compiler/com.sun.tools.javac.Main", "--release", "17"]
        made = subprocess.run(
            [*compiler, "-cp", classpath(), "-d", str(classes), str(PROGRAM)],
            check=False,
            capture_output=True,
            text=True,
        )
        if made.returncode != 0:
            said = (made.stdout + made.stderr).strip().splitlines() or ["it said nothing"]
            raise Unavailable(
                f"expected a JDK that compiles {PROGRAM.name}: {said[0]}", hint="install a JDK, not a JRE"
            )
        if not home.exists():  # another run may have been faster
            classes.rename(home)
    return home


class Instance:
    """One process of the application; its state is kept in `directory` over kills, as on a machine of its own."""

    def __init__(self, directory: Path, settings: Mapping[str, str], topics: Sequence[str]) -> None:
        directory.mkdir(parents=True)
        self._said = directory / "said.log"
        self._properties = directory / "streams.properties"
        lines = [f"{name}={value}" for name, value in {**settings, "state.dir": str(directory / "state")}.items()]
        self._properties.write_text("\n".join([*lines, ""]))
        self._topics = topics
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        with self._said.open("ab") as out:
            self._process = processes.start(
                [
                    *(str(find_java().executable), "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
                    *(f"-Dlog4j2.configurationFile={QUIET_LOGGING}", "-cp", f"{compiled()}:{classpath()}"),
                    *("WordCount", str(self._properties), *self._topics),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def check(self) -> None:
        """Raise AssertionError if it ended by itself."""
        assert self._process is not None
        if self._process.poll() is not None:
            tail = self._said.read_text(errors="replace").splitlines()[-10:]
            raise AssertionError("\n".join([f"an instance ended with {self._process.returncode}:", *tail]))

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        processes.stop(self._process, signal_number=signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait for its end: it leaves its group."""
        if self._process is not None:
            processes.stop(self._process, seconds=30)


# --- the text, and what came out ---


def text() -> list[str]:
    """About 60,000 words in lines."""
    return [line for topic in pydoc_data.topics.topics.values() for line in topic.splitlines() if line.strip()]


def words(lines: Sequence[str]) -> Counter[str]:
    """How often each word is there; a word is what the program takes for one."""
    return Counter(word for line in lines for word in re.split("[^a-z]+", line.lower()) if word)


class Counts:
    """The application's output, as it is committed: every word has to come with 1, 2, 3 and so on."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.found: Counter[str] = Counter()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

    def read(self) -> None:
        """Take in what has come since; at most half a second."""
        for record in self._consumer.consume(10_000, timeout=0.5):
            if record.error() is not None:
                continue  # the log is gone for the moment
            key, value = record.key(), record.value()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            word, count = key.decode(), int.from_bytes(value, "big")
            assert count == self.found[word] + 1, f"{word!r} is counted {count} after {self.found[word]}"
            self.found[word] = count

    def close(self) -> None:
        self._consumer.close()


# --- the tests ---


class Application:
    """A word count over topics of its own, and who may be killed."""

    def __init__(self, server: Server, work: Path, protocol: Protocol) -> None:
        name = f"words-{uuid.uuid4().hex[:12]}"
        topics = (f"{name}-in", f"{name}-out")
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
            made.result(30)
        settings = {
            "application.id": name,
            "bootstrap.servers": server.bootstrap,
            "group.protocol": protocol,
            "processing.guarantee": "exactly_once_v2",
            "statestore.cache.max.bytes": "0",
            "commit.interval.ms": "100",
            "num.stream.threads": "2",
            "replication.factor": "1",
            "auto.offset.reset": "earliest",
            # What a crash has left behind is over in seconds, as tests have no minutes.
            "transaction.timeout.ms": "5000",
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
        self.server = server
        self.instances = [Instance(work / name / str(number), settings, topics) for number in range(INSTANCES)]
        self._topic = topics[0]
        self._producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True, "log_level": 0})
        self._counts = Counts(server.bootstrap, topics[1])

    def count(self, lines: Sequence[str], between: Callable[["Application", int], None], *, parts: int = PARTS) -> None:
        """Count the words of `lines`, which come in parts; `between` them something may happen.

        Raises:
            AssertionError: another count came out than the truth, or none in time, or an instance gave up.
        """
        truth = words(lines)
        try:
            for instance in self.instances:
                instance.start()
            for part in range(parts):
                if part:
                    between(self, part)
                for line in lines[part::parts]:
                    self._producer.produce(self._topic, line.encode())
                    self._producer.poll(0)
                self._wait(lambda seen: seen > 0, f"a first count of part {part}")
            assert self._producer.flush(60) == 0, "the text could not be written"
            self._wait(lambda _: self._counts.found == truth, lambda: f"all counts: {self._difference(truth)}")
            for instance in self.instances:
                instance.stop()
            self._counts.read()
            assert self._counts.found == truth, self._difference(truth)
        finally:
            for instance in self.instances:
                instance.kill()
            self._counts.close()

    def _wait(self, done: Callable[[int], bool], what: str | Callable[[], str]) -> None:
        """Read what comes out until `done`, which is told how many new counts there are."""
        before, until = self._counts.found.total(), time.monotonic() + SECONDS
        while not done(self._counts.found.total() - before):
            assert time.monotonic() < until, f"not in {SECONDS:.0f} s: {what if isinstance(what, str) else what()}"
            for instance in self.instances:
                instance.check()
            self._counts.read()

    def _difference(self, truth: Counter[str]) -> str:
        more, less = self._counts.found - truth, truth - self._counts.found
        return f"{more.total()} too many, {less.total()} missing of {truth.total()}"


def nobody_is_killed(application: Application, part: int) -> None:
    """It just runs."""


def instances_are_killed(application: Application, part: int) -> None:
    """One after the other is killed and started again on its state."""
    victim = application.instances[part % INSTANCES]
    victim.kill()
    victim.start()


def the_log_is_killed(application: Application, part: int) -> None:
    """It is killed and started again on its data."""
    application.server.kill()
    application.server.start()


HAPPENINGS = (nobody_is_killed, instances_are_killed, the_log_is_killed)
PROTOCOLS: tuple[Protocol, ...] = ("classic", "streams")


class Streams:
    """The tests of this module, as a suite."""

    title: ClassVar[str] = "word count with Kafka Streams 4.3.0, exactly once"
    log_settings: ClassVar[str] = "\n".join(["[broker]", *(f"{name} = {value}" for name, value in SESSIONS.items())])
    kafka_settings: ClassVar[Mapping[str, str]] = {
        name.replace("_", "."): str(value) for name, value in SESSIONS.items()
    }
    restarts: ClassVar[bool] = False
    expected: ClassVar[Path] = Path(__file__).with_name("streams.toml")

    def prepare(self) -> None:
        classpath()
        compiled()

    def run(self, server: Server, work: Path, only: str | None) -> Iterator[Result]:
        for protocol in PROTOCOLS:
            for happens in HAPPENINGS:
                name = f"{protocol}/{happens.__name__}"
                if only is not None and only not in name:
                    continue
                began = time.monotonic()
                try:
                    Application(server, work, protocol).count(text(), happens)
                except AssertionError as error:
                    yield Result(name, "failed", time.monotonic() - began, str(error))
                else:
                    yield Result(name, "passed", time.monotonic() - began)
