"""Kafka Connect 4.3.0 over the log: distributed workers that bring the lines of files into topics, and back into files.

A worker keeps everything in three compacted topics and a group; sources write exactly once
(`exactly.once.source.support=enabled`): records and the position in the file are one transaction. Workers, and the log,
are killed meanwhile. The jars are those of connect.lock; they are kept in the user's cache directory.
"""

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from conformance.frame import Result, Server, run_each
from mainstem.process.jars import fetch, read_lock
from mainstem.process.java import find_java
from tests.support import processes
from tests.support.kafka_tools import QUIET_LOGGING
from tests.support.ports import free_ports

LOCK = Path(__file__).with_name("connect.lock")

SECONDS = 180.0
"""For a worker to start, and for what it does after a kill: a session and a transaction may have to time out."""
ROUNDS = 4
"""How often somebody is killed."""


@cache
def classpath() -> str:
    """The jars of a worker, fetched if missing."""
    return ":".join(str(path) for path in fetch(read_lock(LOCK)))


class Worker:
    """One process of a cluster; started again it has the same address."""

    def __init__(self, directory: Path, settings: Mapping[str, str], port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._said = directory / f"worker-{port}.log"
        self._properties = directory / f"worker-{port}.properties"
        lines = {**settings, "listeners": f"http://{self.address}"}
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        """Return at once; `Cluster.start_worker` waits."""
        with self._said.open("ab") as out:
            self._process = processes.start(
                [
                    *(str(find_java().executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
                    *(f"-Dlog4j2.configurationFile={QUIET_LOGGING}", "-cp", classpath()),
                    *("org.apache.kafka.connect.cli.ConnectDistributed", str(self._properties)),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            processes.stop(self._process, signal_number=signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait for its end: it leaves its group."""
        if self._process is not None:
            processes.stop(self._process, seconds=60)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Ask its REST interface; what it answers.

        Raises:
            OSError: it is not there, or refuses.
        """
        request = urllib.request.Request(
            f"http://{self.address}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=90) as response:
            said = response.read()
        return json.loads(said) if said else None


class Cluster:
    """Two workers of one group, with topics, files and a name of their own. The first is asked for everything."""

    def __init__(self, server: Server, directory: Path) -> None:
        directory.mkdir()
        self.name = f"connect-{uuid.uuid4().hex[:10]}"
        self.server = server
        self.admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        self.topics = {what: f"{self.name}-{what}" for what in ("config", "offset", "status")}
        self.source, self.sink = directory / "source.txt", directory / "sink.txt"
        # The group of a sink is named after it alone, whatever its cluster.
        self.reads, self.writes = f"{self.name}-source", f"{self.name}-sink"
        self.source.touch()
        settings = {
            "bootstrap.servers": server.bootstrap,
            "group.id": self.name,
            **{f"{what}.storage.topic": topic for what, topic in self.topics.items()},
            **{f"{what}.storage.replication.factor": "1" for what in self.topics},
            "offset.storage.partitions": "4",
            "status.storage.partitions": "2",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "exactly.once.source.support": "enabled",
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "service_load",
            # Who was killed is missed in seconds, as tests have no minutes.
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "1000",
            "producer.transaction.timeout.ms": "10000",
        }
        self.workers = [Worker(directory, settings, port) for port in free_ports(2)]

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self.workers:
            worker.kill()

    def start(self) -> None:
        """Start the first worker."""
        self.start_worker(self.workers[0])

    def start_worker(self, worker: Worker) -> None:
        """Return when it answers."""
        worker.start()
        self.wait(lambda: worker.call("GET", "connectors") is not None, "a worker answers")

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Ask the first worker, again where it is busy with a rebalance or away."""
        until = time.monotonic() + SECONDS
        while True:
            try:
                return self.workers[0].call(method, path, body)
            except OSError as error:
                told = error.read().decode() if isinstance(error, urllib.error.HTTPError) else str(error)
                final = isinstance(error, urllib.error.HTTPError) and error.code not in (404, 409, 500, 503)
                assert not final, f"{method} {path}: {told}"
                assert time.monotonic() < until, f"{method} {path}: not in {SECONDS:.0f} s: {told}"
            time.sleep(0.3)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it holds; what cannot be asked yet does not hold yet."""
        until = time.monotonic() + SECONDS
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass
            assert time.monotonic() < until, f"not in {SECONDS:.0f} s: {what}; {self.workers[0].said[-1500:]}"
            time.sleep(0.2)

    # --- connectors ---

    def read_file(self, name: str | None = None, topic: str | None = None) -> None:
        """A connector that brings the lines of `source` into the topic, exactly once; `reads`, or another name."""
        settings = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(self.source),
            "topic": topic or self.name,
            "exactly.once.support": "required",
        }
        self.call("PUT", f"connectors/{name or self.reads}/config", settings)

    def write_file(self) -> None:
        """The connector `writes`, which brings the records of the topic into `sink`."""
        settings = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "tasks.max": "1",
            "file": str(self.sink),
            "topics": self.name,
            "consumer.override.isolation.level": "read_committed",
        }
        self.call("PUT", f"connectors/{self.writes}/config", settings)

    def state(self, connector: str) -> tuple[str, list[str]]:
        """Its state and those of its tasks."""
        told = self.workers[0].call("GET", f"connectors/{connector}/status")
        return told["connector"]["state"], [task["state"] for task in told["tasks"]]

    def runs(self, connector: str) -> None:
        self.wait(lambda: self.state(connector) == ("RUNNING", ["RUNNING"]), f"{connector} runs")

    def stop(self, connector: str) -> None:
        self.call("PUT", f"connectors/{connector}/stop")
        self.wait(lambda: self.state(connector) == ("STOPPED", []), f"{connector} is stopped")

    def resume(self, connector: str) -> None:
        self.call("PUT", f"connectors/{connector}/resume")
        self.runs(connector)

    # --- lines ---

    def append(self, lines: Sequence[str]) -> None:
        with self.source.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def written(self) -> list[str]:
        """The lines of `sink`."""
        return self.sink.read_text().splitlines() if self.sink.exists() else []

    def records(self, count: int, topic: str | None = None) -> list[str]:
        """What is committed in the (or another) topic: at least `count` records, and all that come in a second."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.server.bootstrap,
                "group.id": "unused",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic or self.name, 0, 0)])
        found: list[str] = []
        until = time.monotonic() + SECONDS
        try:
            while True:
                some = consumer.consume(1000, timeout=1.0)
                found += [(one.value() or b"").decode() for one in some if one.error() is None]
                if len(found) >= count and not some:
                    return found
                assert time.monotonic() < until, f"{len(found)} of {count} records in {SECONDS:.0f} s"
        finally:
            consumer.close()


# --- the tests: what a name says ---


def lines_go_from_a_file_through_a_topic_to_a_file(cluster: Cluster) -> None:
    cluster.start()
    cluster.append(first := [f"line {number}" for number in range(3000)])
    cluster.read_file()
    cluster.write_file()
    cluster.runs(cluster.reads)
    cluster.runs(cluster.writes)
    assert cluster.records(3000) == first
    cluster.wait(lambda: cluster.written() == first, "all lines are in the other file")
    cluster.append(["one more"])
    cluster.wait(lambda: cluster.written() == [*first, "one more"], "so is the next one")
    for topic, partitions in (("config", 1), ("offset", 4), ("status", 2)):
        name = cluster.topics[topic]
        assert len(cluster.admin.list_topics(name, timeout=30).topics[name].partitions) == partitions, topic
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        policy = cluster.admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value
        assert policy == "compact", f"{topic}: {policy}"
    cluster.call("DELETE", f"connectors/{cluster.writes}")
    cluster.wait(lambda: cluster.workers[0].call("GET", "connectors") == [cluster.reads], "one connector is left")


def offsets_are_told_altered_and_reset(cluster: Cluster) -> None:
    cluster.start()
    cluster.append(lines := ["a", "b", "c", "d"])
    cluster.read_file()
    cluster.write_file()
    cluster.wait(lambda: cluster.written() == lines, "all lines are in the other file")
    place = {"filename": str(cluster.source)}
    [told] = cluster.call("GET", f"connectors/{cluster.reads}/offsets")["offsets"]
    assert told == {"partition": place, "offset": {"position": 8}}, told

    cluster.stop(cluster.reads)
    cluster.call(
        "PATCH", f"connectors/{cluster.reads}/offsets", {"offsets": [{"partition": place, "offset": {"position": 4}}]}
    )
    cluster.resume(cluster.reads)
    cluster.wait(lambda: cluster.written() == [*lines, "c", "d"], "it goes on after the second line")
    cluster.stop(cluster.reads)
    cluster.call("DELETE", f"connectors/{cluster.reads}/offsets")
    assert cluster.call("GET", f"connectors/{cluster.reads}/offsets") == {"offsets": []}
    cluster.resume(cluster.reads)
    cluster.wait(lambda: cluster.written() == [*lines, "c", "d", *lines], "it begins anew")

    everything = cluster.records(10)
    here = {"kafka_topic": cluster.name, "kafka_partition": 0}
    cluster.stop(cluster.writes)
    [told] = cluster.call("GET", f"connectors/{cluster.writes}/offsets")["offsets"]
    end = told["offset"]["kafka_offset"]
    assert told["partition"] == here, told
    assert end > len(everything), f"markers of transactions have offsets, too: {told}"
    before = cluster.written()
    cluster.call("DELETE", f"connectors/{cluster.writes}/offsets")
    cluster.resume(cluster.writes)
    cluster.wait(lambda: cluster.written() == before + everything, "it reads everything again")
    cluster.stop(cluster.writes)
    cluster.call(
        "PATCH",
        f"connectors/{cluster.writes}/offsets",
        {"offsets": [{"partition": here, "offset": {"kafka_offset": 2}}]},
    )
    before = cluster.written()
    cluster.resume(cluster.writes)
    cluster.wait(lambda: cluster.written() == before + everything[2:], "it goes on after the second record")


def a_worker_is_killed_and_goes_on_exactly_once(cluster: Cluster) -> None:
    def kill() -> None:
        cluster.workers[0].kill()
        cluster.workers[0].start()

    _exactly_once(cluster, kill)


def the_log_is_killed_and_workers_go_on_exactly_once(cluster: Cluster) -> None:
    def kill() -> None:
        cluster.server.kill()
        cluster.server.start()

    _exactly_once(cluster, kill)


def _exactly_once(cluster: Cluster, kill: Callable[[], None]) -> None:
    """Lines come while somebody is killed again and again: each is in the topic once, and in order."""
    cluster.start()
    cluster.read_file()
    cluster.write_file()
    cluster.runs(cluster.reads)
    lines: list[str] = []
    for part in range(ROUNDS + 1):
        more = [f"line {number} of part {part}" for number in range(1000)]
        for first in range(0, 1000, 100):  # a transaction each, or so
            if part and first == 500:
                kill()
            cluster.append(more[first : first + 100])
            time.sleep(0.1)
        lines += more
        cluster.wait(lambda: more[0] in cluster.written(), f"part {part} begins to come")  # noqa: B023
    found = cluster.records(len(lines))
    assert found == lines, _difference(found, lines)
    cluster.wait(lambda: set(cluster.written()) == set(lines), "all lines are in the other file")
    cluster.runs(cluster.reads)
    cluster.runs(cluster.writes)


def _difference(found: Sequence[str], lines: Sequence[str]) -> str:
    missing = set(lines) - set(found)
    twice = len(found) - len(set(found))
    return f"{len(lines)} lines, {len(found)} records: {len(missing)} missing, {twice} twice"


def a_second_worker_joins_and_leaves(cluster: Cluster) -> None:
    first, second = cluster.workers
    cluster.start()
    names = [f"{cluster.reads}-{number}" for number in range(4)]
    cluster.append(lines := ["a", "b", "c"])
    for name in names:
        cluster.read_file(name, topic=name)
        cluster.runs(name)

    def at(address: str) -> int:
        """How many tasks run there."""
        told = [first.call("GET", f"connectors/{name}/status") for name in names]
        return sum(task["worker_id"] == address and task["state"] == "RUNNING" for one in told for task in one["tasks"])

    assert at(first.address) == 4
    cluster.start_worker(second)
    cluster.wait(lambda: at(first.address) == 2 and at(second.address) == 2, "each has two tasks")
    second.stop()
    cluster.wait(lambda: at(first.address) == 4, "the other one has all")
    cluster.start_worker(second)
    cluster.wait(lambda: at(first.address) == 2 and at(second.address) == 2, "each has two tasks again")
    second.kill()
    cluster.wait(lambda: at(first.address) == 4, "the tasks of one that was killed go to the other")
    cluster.append(["d"])
    for name in names:
        found = cluster.records(4, name)
        assert found == [*lines, "d"], f"{name}: {found}"


def a_topic_that_is_not_compacted_is_refused(cluster: Cluster) -> None:
    topic = NewTopic(cluster.topics["offset"], 4, 1, config={"cleanup.policy": "delete"})
    cluster.admin.create_topics([topic])[topic.topic].result(30)
    worker = cluster.workers[0]
    worker.start()
    cluster.wait(lambda: worker.has_ended, "it ends")
    assert "'cleanup.policy=compact'" in worker.said, worker.said[-1500:]


TESTS: tuple[Callable[[Cluster], None], ...] = (
    lines_go_from_a_file_through_a_topic_to_a_file,
    offsets_are_told_altered_and_reset,
    a_worker_is_killed_and_goes_on_exactly_once,
    the_log_is_killed_and_workers_go_on_exactly_once,
    a_second_worker_joins_and_leaves,
    a_topic_that_is_not_compacted_is_refused,
)


class Connect:
    """All of `TESTS`, each with workers of its own."""

    title: ClassVar[str] = "workers of Kafka Connect 4.3.0, exactly once"
    log_settings: ClassVar[str] = ""
    kafka_settings: ClassVar[Mapping[str, str]] = {}
    restarts: ClassVar[bool] = False
    expected: ClassVar[Path] = LOCK.with_suffix(".toml")

    def prepare(self) -> None:
        classpath()

    def run(self, server: Server, work: Path, only: str | None) -> Iterator[Result]:
        yield from run_each(TESTS, lambda name: Cluster(server, work / name), only)
