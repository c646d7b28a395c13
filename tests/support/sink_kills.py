"""A project of two jobs on a log of its own, of which everything is killed over and over while a producer goes on.

with World(directory, seed) as world:
    world.kill([("driver", "ending"), ("log", "")])
    world.finish()
    assert not world.anomalies()
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import psutil
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

import mainstem
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.internal import COMMITS, PROGRESS
from mainstem.client.progress import Progress, Written, read_marker
from mainstem.client.reader import arrived
from mainstem.client.topics import end_offsets, ensure_internal_topics, ensure_topic, list_topics, topic_settings
from mainstem.records.fingerprint import fingerprint, fingerprint_sum
from mainstem.registry import avro
from mainstem.registry.client import Registry
from mainstem.registry.reader import SchemaTexts
from tests.support import sink_driver
from tests.support.live import running_registry
from tests.support.processes import start, stop
from tests.support.raw import RawClient
from tests.support.records import committed
from tests.support.repository import ROOT
from tests.support.sink_books import Anomalies, Job, Totals, check_job, check_reader, check_stable, copies
from tests.support.waiting import wait_until

NUMBERS, COPIES, TOTALS = "numbers", "copies", "totals"
JOB_NAMES = ("copied", "totalled")
PARTITIONS, OUTPUTS, LANES, IN_A_WINDOW = 2, 3, 5, 200
SCHEMA = json.dumps({"type": "record", "name": "Number", "fields": [
    {"name": "number", "type": "long"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]})  # fmt: skip
JOBS = f'''
import time
from mainstem.process import stream, table, topic
from pyspark.sql import functions as F

numbers = topic("{NUMBERS}")

def same(number):
    time.sleep(0.0005)  # so that a kill finds a worker at work
    return number

@stream(to="{COPIES}", key="number")
def copied(numbers):
    return numbers.select(F.udf(same, "long")("number").alias("number"))

@table(to="{TOTALS}", key=["lane", "window"], watermark=("at", "1000 days"), emit="changes")
def totalled(numbers):
    lane, window = (F.col("number") % {LANES}).alias("lane"), F.window("at", "{IN_A_WINDOW} seconds")
    totals = numbers.groupBy(lane, window).agg(F.count("*").alias("count"), F.sum("number").alias("total"))
    return totals.select("lane", (F.unix_seconds("window.start") / {IN_A_WINDOW}).cast("long").alias("window"), "count", "total")
'''
SETTINGS = f"""
[topics.{NUMBERS}]
partitions = {PARTITIONS}
schema = "number.avsc"
event_time = "at"

[topics.{COPIES}]
partitions = {OUTPUTS}

[topics.{TOTALS}]
partitions = {OUTPUTS}
config = {{ "min.compaction.lag.ms" = "86400000" }}  # each change is counted

[jobs.copied]
every = "300 milliseconds"

[jobs.totalled]
every = "300 milliseconds"
state_partitions = 2
"""
SOON = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
    "metadata.recovery.strategy": "none",
}
MOST_AHEAD = 1000
PATIENCE_SECONDS = 240  # for what comes by itself, on a machine that may be busy
_DRIVER = "from tests.support.sink_driver import main; main()"


class Driver:
    """A driver of the project; Spark starts at once, its jobs when they are let go."""

    def __init__(self, config: sink_driver.Config, log: Path) -> None:
        self.java, self.at, self.job = 0, "", ""
        self.failed: list[str] = []
        self.refused: list[str] = []
        self.committed: Counter[str] = Counter()  # batches by job
        self.scratch = config.scratch
        self._changed = threading.Condition()
        command = [sys.executable, "-c", _DRIVER, msgspec.json.encode(config).decode()]
        with log.open("a") as err:
            self.process = start(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._changed:
                if line.startswith("{"):  # others are of its log
                    self._take(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _take(self, said: dict[str, Any]) -> None:
        self.java = said.get("ready", self.java)
        if "at" in said:
            self.at, self.job = said["at"], said["job"]
        if "committed" in said:
            self.committed[said["committed"]] += 1
        if "failed" in said:
            self.failed.append(f"{said['failed']}: {said['reason']}")
            if said["needs_a_person"]:
                self.refused.append(f"{self.failed[-1]} ({said['hint']})")

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def wait(self, reached: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> bool:
        """Whether it was reached: not where the process has ended, or it takes too long."""
        until = time.monotonic() + seconds
        with self._changed:
            while not reached():
                if not self.runs or time.monotonic() > until:
                    return bool(reached())
                self._changed.wait(0.2)
        return True

    def tell(self, line: str) -> None:
        with suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def go(self, settings: sink_driver.Settings) -> None:
        assert self.wait(lambda: self.java), "Spark has not started"
        self.tell(f"go {msgspec.json.encode(settings).decode()}")

    def go_on(self) -> None:
        self.at = ""
        self.tell("on")

    def workers(self) -> list[psutil.Process]:
        """Python processes of Spark's tasks: forks of a daemon, and the daemon. Where that was killed, Spark goes on to
        use its forks, which are nobody's children then: what tells them is where they import from.
        """
        return [each for each in psutil.process_iter() if _imports_from(each, self.scratch)]

    def everything(self) -> list[psutil.Process]:
        """All of its processes."""
        own = psutil.Process(self.process.pid)
        return [*{own, *own.children(recursive=True), *self.workers()}]

    def end(self, number: int = signal.SIGKILL) -> None:
        stop(self.process, signal_number=number, seconds=60)
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


def _imports_from(process: psutil.Process, place: str) -> bool:
    with suppress(psutil.Error):
        return "mainstem.process.worker_daemon" in process.cmdline() and f"{place}/" in process.environ().get(
            "PYTHONPATH", ""
        )
    return False


class World:
    """The log, the producer, a reader of all that is committed, and drivers one after the other: `drivers` at most."""

    def __init__(self, directory: Path, seed: int, *, drivers: int, sparks_own: bool = False) -> None:
        self.directory, self.random, self.sparks_own = directory, random.Random(seed), sparks_own
        self._drivers = drivers
        self.kills: Counter[str] = Counter()
        self.sent = 0
        self.seen: dict[str, dict[int, list[tuple[int, Any]]]] = {}
        self.stable: dict[str, dict[int, list[int]]] = {}
        self.driver: Driver | None = None
        self._spare: Driver | None = None
        self._started = 0
        self._stop, self._done = threading.Event(), threading.Event()
        self._failures: list[BaseException] = []

    def __enter__(self) -> "World":
        self._ends = ExitStack()
        try:
            self._start()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._done.set()
        self._ends.close()
        if self._failures:
            raise self._failures[0]

    def _start(self) -> None:
        project = self.directory / "project"
        project.mkdir()
        (project / "jobs.py").write_text(dedent(JOBS))
        (project / "mainstem.toml").write_text(SETTINGS)
        (project / "number.avsc").write_text(SCHEMA)
        self.log = self._ends.enter_context(mainstem.embedded(child=True))
        self.connection = Connection(self.log.bootstrap)
        ensure_internal_topics(self.connection)
        self.registry = self._ends.enter_context(running_registry(self.connection))
        ensure_topic(self.connection, NUMBERS, PARTITIONS, topic_settings("stream", {}))
        self._ends.callback(self._end_drivers)
        self._start_spare()
        self._producer = self._run(self._produce)
        self.start_driver()
        wait_until(lambda: {COPIES, TOTALS} <= set(list_topics(self.connection)), "outputs are there")
        watched = (COPIES, TOTALS) if self.sparks_own else (COPIES, TOTALS, PROGRESS)
        for topic in watched:
            self._run(lambda topic=topic: self._read(topic))
        self._run(lambda: self._look(watched))

    def _run(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._failures.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        self._ends.callback(thread.join)
        self._ends.callback(self._done.set)
        self._ends.callback(self._stop.set)
        return thread

    # -- what goes on meanwhile

    def _produce(self) -> None:
        schema_id = Registry(self.registry).register(f"{NUMBERS}-value", SCHEMA)
        own = random.Random(self.random.random())
        producer = Producer(
            self.connection.confluent(enable_idempotence=True, linger_ms=5, message_timeout_ms=600_000) | SOON
        )
        while not self._stop.wait(own.uniform(0.05, 0.5)):
            if self.sent > sum(map(len, self.seen.get(COPIES, {}).values())) + MOST_AHEAD:
                continue  # on a slow machine the jobs would come to an end of it long after
            for _ in range(own.randint(1, 30)):
                row = {"number": self.sent, "at": self.sent * 1_000_000}
                producer.produce(NUMBERS, avro.encode(schema_id, SCHEMA, row), partition=own.randrange(PARTITIONS))
                self.sent += 1
            producer.poll(0)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def _read(self, topic: str) -> None:
        settings = self.connection.confluent(isolation_level="read_committed", enable_auto_commit=False)
        consumer = Consumer(
            settings | SOON | {"group.id": "watcher", "auto.offset.reset": "error", "fetch.wait.max.ms": 50}
        )
        partitions = OUTPUTS if topic in (COPIES, TOTALS) else 1
        found = self.seen[topic] = {partition: [] for partition in range(partitions)}
        consumer.assign([ConfluentPartition(topic, partition, 0) for partition in found])
        while not self._done.is_set():
            for message in arrived(consumer, 0.1):
                if message.error() is None:
                    found[message.partition()].append((message.offset(), print_of(message)))
        consumer.close()

    def _look(self, topics: tuple[str, ...]) -> None:
        """At what is stable: what a reader who comes at that moment sees."""
        while not self._done.wait(0.25):
            for topic in topics:
                with suppress(BrokerUnavailable):
                    for partition, offset in end_offsets(self.connection, topic, committed=True).items():
                        offsets = self.stable.setdefault(topic, {}).setdefault(partition, [])
                        if not offsets or offsets[-1] != offset:
                            offsets.append(offset)

    # -- drivers

    def _start_spare(self) -> None:
        if self._started == self._drivers:
            self._spare = None
            return
        self._started += 1
        config = sink_driver.Config(
            str(self.directory / "project"),
            self.connection.bootstrap,
            self.registry,
            str(self.directory / "data"),
            str(self.directory / f"driver-{self._started}"),
            self.random.choice((2, 3)),
            self.sparks_own,
        )
        self._spare = Driver(config, self.directory / "drivers.log")

    def start_driver(self, armed: str = "") -> None:
        """The next driver runs, divides what was begun in its own way, and the one after it starts."""
        assert self._spare is not None, "there are more drivers to kill"
        self.driver = self._spare
        self.driver.go(sink_driver.Settings(self.random.random() < 0.5, self.random.choice((100, 200, 1000)), armed))
        self._start_spare()

    def _end_drivers(self) -> None:
        for each in (self.driver, self._spare):
            if each is not None:
                each.end()

    # -- kills

    def kill(self, victims: Iterable[tuple[str, str]]) -> None:
        """Each of `victims`: who, and at which step, of any job or of one (`planned copied`); at any moment where that
        is empty.
        """
        for victim, step in victims:
            self._kill_one(victim, step)
            if self.random.random() < 0.7:
                self.wait_for_batch()

    def _kill_one(self, victim: str, step: str) -> None:
        if step in sink_driver.OPENING:
            self.kill_driver()
            self.start_driver(armed=step)
        elif step:
            self.driver.tell(f"arm {step}")
        if step:
            self.wait_for(lambda: self.driver.at, f"a job comes to {step}")
        else:
            time.sleep(self.random.uniform(0, 2))
        name = f"{victim} at {step}" if step else victim
        match victim:
            case "driver" | "JVM":
                self.kill_driver(name)
                self.start_driver()
            case "log":
                self._kill_log(name)
            case "worker":
                self._kill_worker(name)
            case "zombie":
                self._stop_and_go_on(name)
        self.driver.go_on()

    def kill_driver(self, name: str = "driver") -> None:
        os.kill(self.driver.java if name.startswith("JVM") else self.driver.process.pid, signal.SIGKILL)
        self.kills[name] += 1
        self.driver.process.wait(PATIENCE_SECONDS)
        self.driver.end()

    def _kill_log(self, name: str) -> None:
        self.log.kill()
        self.kills[name] += 1
        time.sleep(self.random.uniform(0, 0.5))
        self.log.start()

    def _kill_worker(self, name: str) -> None:
        """While the job goes on: a worker has nothing to do while the sink waits."""
        self.driver.go_on()
        time.sleep(self.random.uniform(0, 0.3))
        self.wait_for(self.driver.workers, "Spark has a Python worker")
        for each in self.random.sample(found := self.driver.workers(), len(found)):
            with suppress(psutil.NoSuchProcess):
                each.kill()
                self.kills[name] += 1
                return

    def _stop_and_go_on(self, name: str) -> None:
        """The driver is stopped as a whole, past the fence of its successor."""
        zombie = self.driver
        everything = zombie.everything()
        _signal(everything, signal.SIGSTOP)
        self.start_driver()
        self.wait_for_batch(zombie.job)
        zombie.go_on()
        failed = len(zombie.failed)
        _signal(everything, signal.SIGCONT)

        def told() -> list[str]:
            return [each for each in zombie.failed[failed:] if each.startswith(zombie.job)]

        assert zombie.wait(told), "it was not told that it is fenced"
        reasons = ("a newer holder", "more than its timeout")  # which of them, is a matter of how long it was stopped
        assert any(reason in each for each in told() for reason in reasons), told()
        self.kills[name] += 1
        zombie.end()

    def wait_for_batch(self, job: str = "") -> None:
        """Until the next one is committed, by a job or by any."""
        before = self.driver.committed.copy()
        jobs = (job,) if job else JOB_NAMES
        self.wait_for(
            lambda: any(self.driver.committed[each] > before[each] for each in jobs), f"a batch of {jobs} is committed"
        )

    def wait_for(self, reached: Callable[[], object], what: str) -> None:
        there = self.driver.wait(reached)
        if self._failures:
            raise self._failures[0]
        assert there, f"not {what}: {self.driver.process.poll()}, {self.driver.failed[-3:]}"
        assert not self.driver.refused, self.driver.refused

    # -- the end

    def finish(self) -> None:
        """Let everything come to its end."""
        self._stop.set()
        self._producer.join()
        self.wait_for(self._is_done, "all is done")
        self.driver.tell("stop")
        assert self.driver.process.wait(PATIENCE_SECONDS) == 0
        self.driver.end()
        self.written = {topic: list(committed(self.connection, topic)) for topic in self.seen}
        wait_until(self._have_seen_all, "a reader has seen all")
        self._done.set()

    def _is_done(self) -> bool:
        time.sleep(0.5)
        if self.sparks_own:
            return len({message.value() for message in committed(self.connection, COPIES)}) == self.sent
        ends = end_offsets(self.connection, NUMBERS)
        markers = [read_marker(self.connection, job, "1", decided=True) for job in JOB_NAMES]
        return all(each is not None and each.end_offsets["numbers"] == {NUMBERS: ends} for each in markers)

    def _have_seen_all(self) -> bool:
        return all(sum(map(len, self.seen[topic].values())) >= len(found) for topic, found in self.written.items())

    def anomalies(self) -> Anomalies:
        """What is wrong with what is there, and with what was seen meanwhile."""
        source = self._numbers()
        found = Anomalies()
        for topic, messages in self.written.items():
            partitions = self.seen[topic]
            there = {
                each: [(m.offset(), print_of(m)) for m in messages if m.partition() == each] for each in partitions
            }
            found += check_reader(topic, partitions, there) + check_stable(topic, self.stable.get(topic, {}))
        said = [msgspec.json.decode(message.value(), type=Progress) for message in self.written[PROGRESS]]
        for job in (
            Job("copied", NUMBERS, COPIES, copies),
            Job("totalled", NUMBERS, TOTALS, Totals(LANES, IN_A_WINDOW)),
        ):
            rows = self._rows(job.output)
            progress = [each for each in said if each.job == job.name]
            found += check_job(job, source, progress, rows, self.stable.get(job.output, {}))
            self._check_books(job, progress)
        self._check_nothing_open()
        return found

    @property
    def batches(self) -> int:
        """How many were committed."""
        return len(self.written[PROGRESS])

    def duplicates(self) -> tuple[int, int]:
        """How many numbers a job that copies them has lost, and how many it has written again."""
        found = Counter(row for rows in self._rows(COPIES).values() for _, row in rows)
        return self.sent - len(found), found.total() - len(found)

    def _numbers(self) -> dict[int, dict[int, int]]:
        source: dict[int, dict[int, int]] = {partition: {} for partition in range(PARTITIONS)}
        for message in committed(self.connection, NUMBERS):
            source[message.partition()][message.offset()] = self._decoded(message)["number"]
        numbers = Counter(number for each in source.values() for number in each.values())
        assert numbers == Counter(range(self.sent)), "the producer's own records: each is there once"
        return source

    def _rows(self, topic: str) -> dict[int, list[tuple[int, Any]]]:
        rows: dict[int, list[tuple[int, Any]]] = {partition: [] for partition in range(OUTPUTS)}
        for message in self.written[topic]:
            row = tuple(self._decoded(message).values())
            rows[message.partition()].append((message.offset(), row[0] if len(row) == 1 else row))
        return rows

    @cached_property
    def _schemas(self) -> SchemaTexts:
        return SchemaTexts(self.connection)

    def _decoded(self, message: Any) -> dict[str, Any]:
        return dict(avro.decode(message.value(), self._schemas))

    def _check_books(self, job: Job, progress: Sequence[Progress]) -> None:
        """The marker of the last batch counts what is there."""
        marker = read_marker(self.connection, job.name, "1")
        assert marker is not None
        assert marker.batch == max(each.batch for each in progress)
        there: dict[int, list[tuple[bytes, bytes]]] = {}
        for message in self.written[job.output]:
            there.setdefault(message.partition(), []).append((message.key(), message.value()))
        expected = {each: Written(len(pairs), fingerprint_sum(pairs)) for each, pairs in there.items()}
        assert marker.written[job.output] == expected

    def ongoing(self) -> set[str]:
        """The transactional ids of what is open."""
        with RawClient(self.connection.bootstrap) as raw:
            return {each.transactional_id for each in raw.call(66, 0, state_filters=["Ongoing"]).transaction_states}

    def _check_nothing_open(self) -> None:
        for topic in (*self.written, COMMITS):
            ends = end_offsets(self.connection, topic)
            assert end_offsets(self.connection, topic, committed=True) == ends, f"{topic}: a transaction is open"
        assert not self.ongoing()


def print_of(message: Any) -> int:
    """Which record it is."""
    return fingerprint(message.key(), message.value())


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)
