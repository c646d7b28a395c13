"""What the measurements of the log share: both servers, a topic, Kafka's own perf tools, figures and their table."""

import argparse
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from bench.report import RESULTS, Report
from tests.support import kafka_tools, processes
from tests.support.kafka_cluster import KafkaCluster
from tests.support.ports import free_port
from tests.support.repository import ROOT

NAMES = ("mainstem", "kafka")

# What the harness of the tests changes for speed of start and small memory, back to Kafka's own defaults.
KAFKA_DEFAULTS = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "broker.heartbeat.interval.ms": "2000",
    "broker.session.timeout.ms": "9000",
    "log.cleaner.dedupe.buffer.size": "134217728",
}

DELETED_AT_ONCE = {"log.segment.delete.delay.ms": "0"}
"""A topic's files go with the topic, as ours do: a minute later, they would go in the other's time."""

MEMORY_IS_TAKEN_BACK_SECONDS = 5
"""After so long a hypervisor has what was freed. It is told of that after two seconds, and then all may stand still for
20 to 30 ms at a time.
"""

_PRODUCED = re.compile(
    r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+) ms avg latency, ([\d.]+) ms max latency, "
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99.9th"
)


class Server(msgspec.Struct):
    """A running log: where it listens, the process that is it, and what was measured so far."""

    name: str
    bootstrap: str
    process_id: int
    data: Path = Path()
    """Its directory, in which each partition has one."""
    said: Path | None = None
    """What it wrote about itself."""
    measured: dict[str, list[float]] = {}

    def add(self, what: str, value: float) -> None:
        self.measured.setdefault(what, []).append(value)

    def add_all(self, figures: Mapping[str, float]) -> None:
        for what, value in figures.items():
            self.add(what, value)

    def memory_mb(self) -> tuple[float, float]:
        """Resident now, and its highest so far."""
        status = Path(f"/proc/{self.process_id}/status").read_text()
        now, highest = (int(re.findall(rf"{key}:\s+(\d+) kB", status)[0]) / 1024 for key in ("VmRSS", "VmHWM"))
        return now, highest


def framed(api_key: int, version: int, body: bytes) -> bytes:
    """A request with the header v1, correlation id 7: https://kafka.apache.org/protocol.html#protocol_messages"""
    request = struct.pack(">hhih5s", api_key, version, 7, 5, b"bench") + body
    return struct.pack(">i", len(request)) + request


METADATA = framed(3, 1, struct.pack(">i", 0))
"""Version 1, of no topics: the smallest question about the brokers."""


class Connection:
    """A socket that speaks the protocol's frames."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def send(self, requests: bytes) -> None:
        self._socket.sendall(requests)

    def receive(self) -> bytes:
        size = struct.unpack(">i", self._answers.read(4))[0]
        return self._answers.read(size)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


def wait_for_metadata(port: int, process: "subprocess.Popen[bytes]", *, seconds: float = 60) -> None:
    """Return when a Metadata request is answered with at least one broker."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        assert process.poll() is None, "the server ended"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
                connection.sendall(METADATA)
                answer = connection.makefile("rb")
                size = struct.unpack(">i", answer.read(4))[0]
                body = answer.read(size)
                if struct.unpack_from(">ii", body) >= (7, 1):
                    return
        except (OSError, struct.error):
            time.sleep(0.002)
    raise AssertionError(f"no answer on port {port} in {seconds} s")


def mainstem_command(data: Path, port: int) -> list[str]:
    program = Path(sys.executable).with_name("mainstem")
    return [
        str(program),
        *("log", "start", "--data", str(data), "--listen", f"127.0.0.1:{port}", "--log-level", "warning"),
    ]


@contextmanager
def mainstem_server(
    directory: Path,
    *,
    command: Callable[[Path, int], list[str]] = mainstem_command,
    settings: Mapping[str, str] | None = None,
) -> Iterator[tuple[Server, float]]:
    """The log over `directory`, and the seconds until it answered. A directory that was served before goes on.

    `command` makes the command line from the data's directory and a port; `settings` are of the environment.
    """
    port = free_port()
    environment = {**os.environ, **(settings or {}), "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile all that it imports: 0.3 to 0.5 s
    with (directory / "mainstem.log").open("ab") as out:
        began = time.perf_counter()
        process = processes.start(command(directory / "mainstem", port), stdout=out, stderr=out, env=environment)
    try:
        try:
            wait_for_metadata(port, process)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(directory / 'mainstem.log').read_text()[-2000:]}") from None
        took = time.perf_counter() - began
        yield Server("mainstem", f"127.0.0.1:{port}", process.pid, directory / "mainstem"), took
    finally:
        processes.stop(process)


@contextmanager
def kafka_server(
    directory: Path, heap_mb: int, *, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[Server, float]]:
    """Apache Kafka over `directory`, and the seconds until it answered; `settings` are laid over its defaults."""
    overrides = {**KAFKA_DEFAULTS, **(settings or {})}
    cluster = KafkaCluster(1, directory / "kafka", heap_mb=heap_mb, overrides=overrides)
    try:
        cluster._format()  # its own step in Kafka too: not part of the start
        began = time.perf_counter()
        cluster.start(1, wait=False)
        wait_for_metadata(cluster.ports[1], cluster._processes[1])
        took = time.perf_counter() - began
        cluster.wait_until_ready()
        yield Server("kafka", cluster.bootstrap, cluster.process_id(1), cluster.data(1), cluster.log(1)), took
    finally:
        cluster.close()


def create_topic(
    server: Server, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None, *, seconds: float = 120
) -> None:
    """On return every partition has its leader: a topic of thousands takes Kafka a while after its answer."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(settings or {}))
    admin.create_topics([new], request_timeout=seconds)[topic].result(seconds)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        with suppress(KafkaException):  # it is known, and not led yet
            end_offsets(server.bootstrap, topic, partitions)
            return
        time.sleep(0.05)
    raise AssertionError(f"{server.name}: {topic} has no {partitions} partitions with leaders after {seconds} s")


def end_offsets(bootstrap: str, topic: str, partitions: int) -> int:
    """The sum of all partitions'."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    asked = {TopicPartition(topic, one): OffsetSpec.latest() for one in range(partitions)}  # type: ignore[no-untyped-call]
    return sum(each.result(60).offset for each in admin.list_offsets(asked, request_timeout=60).values())


def set_topic(server: Server, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic; others stay."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def delete_topic(server: Server, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})  # kept: its end would end the request
    admin.delete_topics([topic])[topic].result(30)


def forget(server: Server, *topics: str) -> None:
    """Delete them, so that whoever is measured next notices nothing of it."""
    for topic in topics:
        delete_topic(server, topic)
    time.sleep(MEMORY_IS_TAKEN_BACK_SECONDS)
    settle()


def settle() -> None:
    """Bring to the disk what either has left in the page cache: else it goes there half a minute later, in the time of
    whoever is measured then, and a sync that meets it takes 30 to 60 ms.
    """
    os.sync()


def produce(
    server: Server,
    topic: str,
    records: int,
    size: int,
    throughput: int,
    report: Report,
    *,
    properties: Sequence[str] = (),
    warm_up: int = 0,
) -> re.Match[str]:
    """Kafka's producer-perf-test with acks=all; its last line of figures, which leaves out `warm_up` records."""
    result = kafka_tools.run(
        "kafka-producer-perf-test",
        *("--bootstrap-server", server.bootstrap, "--topic", topic, "--num-records", str(records)),
        *("--record-size", str(size), "--throughput", str(throughput)),
        *(("--warmup-records", str(warm_up)) if warm_up else ()),
        *("--command-property", "acks=all", *properties),
        heap_mb=512,
        seconds=1800,
    )
    report.keep(f"{server.name}: ProducerPerformance, {records} records of {size} bytes", result.stdout + result.stderr)
    return last_figures(result.stdout)


def last_figures(said: str) -> re.Match[str]:
    """What producer-perf-test came to: 2 records/s, 5 the longest wait, 6 to 9 the 50th, 95th, 99th, 99.9th, in ms."""
    return list(_PRODUCED.finditer(said))[-1]


def consume(server: Server, topic: str, records: int, report: Report) -> float:
    """Records per second, without the time until the group was assigned."""
    result = kafka_tools.run(
        "kafka-consumer-perf-test",
        *("--bootstrap-server", server.bootstrap, "--topic", topic, "--num-records", str(records), "--hide-header"),
        heap_mb=512,
        seconds=1800,
    )
    report.keep(f"{server.name}: ConsumerPerformance, {records} records", result.stdout + result.stderr)
    fields = [field.strip() for field in result.stdout.strip().splitlines()[-1].split(",")]
    consumed, per_second = int(fields[4]), float(fields[9])
    assert consumed >= records, f"{server.name}: {consumed} of {records} records consumed"
    return per_second


def table(servers: list[Server], names: Sequence[str] = ("mainstem", "Apache Kafka 4.3.0")) -> str:
    """Medians side by side with their spread, and the first divided by the second; of one server, its alone."""
    if len(servers) == 1:
        width = max(map(len, servers[0].measured))
        return "\n".join(f"{what:<{width}}  {_told(values):>12}" for what, values in servers[0].measured.items())
    ours, kafka = servers
    rows: list[tuple[str, ...]] = [("", *names, "ratio")]
    for what in (what for what in ours.measured if what in kafka.measured):
        values = [server.measured[what] for server in (ours, kafka)]
        middle = [statistics.median(one) for one in values]
        ratio = middle[0] / middle[1] if middle[1] else float("nan")
        rows.append((what, *map(_told, values), f"{ratio:.2f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(width) for c, width in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def _told(values: Sequence[float]) -> str:
    """The median; of several with the lowest and the highest."""
    middle, least, most = (
        f"{each:,.2f}" if each < 100 else f"{each:,.0f}"
        for each in (statistics.median(values), min(values), max(values))
    )
    return middle if len(values) == 1 else f"{middle} ({least}–{most})"


@contextmanager
def both(
    directory: Path, heap_mb: int, *, ours: Mapping[str, str] | None = None, kafka: Mapping[str, str] | None = None
) -> Iterator[list[Server]]:
    """Ours and Kafka, each with settings of its own; a heap of 0 leaves Kafka out."""
    with ExitStack() as stack:
        servers = [stack.enter_context(mainstem_server(directory, settings=ours))[0]]
        if heap_mb:
            servers.append(stack.enter_context(kafka_server(directory, heap_mb, settings=kafka))[0])
        yield servers


def options_of(description: str | None, *, kafka: bool = True) -> argparse.ArgumentParser:
    """A parser with what every program takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=RESULTS, help="directory for the raw output")
    parser.add_argument("--directory", type=Path, help="for the data, on the disk to measure; a temporary one")
    if kafka:
        parser.add_argument(
            "--heap-mb", type=int, default=1024, help="Kafka's heap (its own script: 1 GB); 0: no Kafka"
        )
    return parser
