"""The embedded log beside Apache Kafka, measured by Kafka's own unmodified programs in one run.

    python -m bench.log_vs_kafka [--records 2000000] [--rounds 3] [--sizes 100 1000] [--heap-mb 1024]

Both serve at the same time, each with its defaults: ours answers after an fdatasync, Kafka before any. Rounds are
interleaved, so that both see the same machine; the first of each is a warm-up of a fifth and is not counted. Figures
are medians; everything the programs printed is kept under bench/results/.
"""

import argparse
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.report import RESULTS, machine
from tests.support import kafka_tools, processes
from tests.support.kafka_cluster import KafkaCluster
from tests.support.ports import free_port

NAMES = ("mainstem", "kafka")

# What the harness of the tests changes for speed of start and small memory, back to Kafka's own defaults.
KAFKA_DEFAULTS = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "broker.heartbeat.interval.ms": "2000",
    "broker.session.timeout.ms": "9000",
    "log.cleaner.dedupe.buffer.size": "134217728",
}

_PRODUCED = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+) ms avg latency, ([\d.]+) ms max latency, "
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th"
)


class Server(msgspec.Struct):
    """A running log: where it listens, the process that is it, and what was measured so far."""

    name: str
    bootstrap: str
    process_id: int
    measured: dict[str, list[float]] = {}

    def add(self, what: str, value: float) -> None:
        self.measured.setdefault(what, []).append(value)

    def memory_mb(self) -> tuple[float, float]:
        """Resident now, and its highest so far."""
        status = Path(f"/proc/{self.process_id}/status").read_text()
        now, highest = (int(re.findall(rf"{key}:\s+(\d+) kB", status)[0]) / 1024 for key in ("VmRSS", "VmHWM"))
        return now, highest


class Raw:
    """Everything that was printed, into one file."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def keep(self, title: str, text: str) -> None:
        self._out.write(f"== {title}\n{text.rstrip()}\n\n")
        self._out.flush()


def wait_for_metadata(port: int, process: "subprocess.Popen[bytes]", *, seconds: float = 60) -> None:
    """Return when a Metadata request is answered with at least one broker."""
    # Metadata v1, no topics: https://kafka.apache.org/protocol.html#The_Messages_Metadata
    request = struct.pack(">hhih5si", 3, 1, 7, 5, b"bench", 0)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        assert process.poll() is None, "the server ended"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
                connection.sendall(struct.pack(">i", len(request)) + request)
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
        "log",
        "start",
        "--data",
        str(data),
        "--listen",
        f"127.0.0.1:{port}",
        "--log-level",
        "warning",
    ]


@contextmanager
def mainstem_server(directory: Path) -> Iterator[tuple[Server, float]]:
    port = free_port()
    with (directory / "mainstem.log").open("ab") as out:
        began = time.perf_counter()
        process = processes.start(mainstem_command(directory / "mainstem", port), stdout=out, stderr=out)
        wait_for_metadata(port, process)
        took = time.perf_counter() - began
    try:
        yield Server("mainstem", f"127.0.0.1:{port}", process.pid), took
    finally:
        processes.stop(process)


@contextmanager
def kafka_server(directory: Path, heap_mb: int) -> Iterator[tuple[Server, float]]:
    cluster = KafkaCluster(1, directory / "kafka", heap_mb=heap_mb, overrides=KAFKA_DEFAULTS)
    try:
        cluster._format()  # its own step in Kafka too: not part of the start
        began = time.perf_counter()
        cluster.start(1, wait=False)
        wait_for_metadata(cluster.ports[1], cluster._processes[1])
        took = time.perf_counter() - began
        cluster.wait_until_ready()
        yield Server("kafka", cluster.bootstrap, cluster.process_id(1)), took
    finally:
        cluster.close()


def measure_starts(directory: Path, rounds: int, heap_mb: int) -> dict[str, list[float]]:
    starts: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(rounds):
        for name in NAMES:
            place = directory / f"start-{name}-{number}"
            place.mkdir()
            with mainstem_server(place) if name == "mainstem" else kafka_server(place, heap_mb) as (_, took):
                starts[name].append(took)
            shutil.rmtree(place)
    return starts


def create_topic(server: Server, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(30)


def delete_topic(server: Server, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})  # kept: its end would end the request
    admin.delete_topics([topic])[topic].result(30)


def produce(server: Server, topic: str, records: int, size: int, throughput: int, raw: Raw) -> re.Match[str]:
    result = kafka_tools.run(
        "kafka-producer-perf-test",
        *("--bootstrap-server", server.bootstrap, "--topic", topic, "--num-records", str(records)),
        *("--record-size", str(size), "--throughput", str(throughput), "--command-property", "acks=all"),
        heap_mb=512,
        seconds=900,
    )
    raw.keep(f"{server.name}: ProducerPerformance, {records} records of {size} bytes", result.stdout + result.stderr)
    return list(_PRODUCED.finditer(result.stdout))[-1]


def consume(server: Server, topic: str, records: int, raw: Raw) -> float:
    """Records per second, without the time until the group was assigned."""
    result = kafka_tools.run(
        "kafka-consumer-perf-test",
        *("--bootstrap-server", server.bootstrap, "--topic", topic, "--num-records", str(records), "--hide-header"),
        heap_mb=512,
        seconds=900,
    )
    raw.keep(f"{server.name}: ConsumerPerformance, {records} records", result.stdout + result.stderr)
    fields = [field.strip() for field in result.stdout.strip().splitlines()[-1].split(",")]
    consumed, per_second = int(fields[4]), float(fields[9])
    assert consumed >= records, f"{server.name}: {consumed} of {records} records consumed"
    return per_second


def measure_throughput(
    servers: list[Server], size: int, records: int, rounds: int, raw: Raw, say: Callable[[str], None]
) -> None:
    for number in range(rounds + 1):
        count = records if number else max(records // 5, 1)
        for server in servers if number % 2 else servers[::-1]:  # neither is always first
            topic = f"bench-{size}-{number}"
            create_topic(server, topic)
            produced = produce(server, topic, count, size, -1, raw)
            consumed = consume(server, topic, count, raw)
            delete_topic(server, topic)
            if number:
                server.add(f"produce {size} B (records/s)", float(produced[2]))
                server.add(f"consume {size} B (records/s)", consumed)
            round_name = f"round {number}/{rounds}" if number else "warm-up"
            say(
                f"{round_name}, {size} bytes, {server.name}: {float(produced[2]):,.0f} in, {consumed:,.0f} out per second"
            )


def measure_latency(servers: list[Server], rate: int, rounds: int, raw: Raw) -> None:
    """100-byte records at a rate that both carry easily: what a producer waits for acks=all."""
    for number in range(rounds):
        for server in servers:
            topic = f"latency-{number}"
            create_topic(server, topic)
            produced = produce(server, topic, rate * 5, 100, rate, raw)
            delete_topic(server, topic)
            server.add(f"latency p50 at {rate:,}/s (ms)", float(produced[6]))
            server.add(f"latency p99 at {rate:,}/s (ms)", float(produced[8]))


def table(servers: list[Server]) -> str:
    ours, kafka = servers
    rows: list[tuple[str, ...]] = [("", "mainstem", "Apache Kafka 4.3.0", "ratio")]
    for what in ours.measured:
        values = [server.measured[what] for server in (ours, kafka)]
        middle = [statistics.median(one) for one in values]
        cells = [f"{m:,.2f}" if m < 100 else f"{m:,.0f}" for m in middle]
        spread = [f" ({min(one):,.0f}–{max(one):,.0f})" if max(one) >= 100 and len(one) > 1 else "" for one in values]
        ratio = middle[0] / middle[1] if middle[1] else float("nan")
        rows.append((what, *(c + s for c, s in zip(cells, spread, strict=True)), f"{ratio:.2f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(width) for c, width in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000, help="of 100 bytes; of larger ones as many bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rate", type=int, default=20_000, help="records/s of the latency rounds; 0 leaves them out")
    parser.add_argument("--heap-mb", type=int, default=1024, help="Kafka's heap; its own script gives it 1 GB")
    parser.add_argument("--keep", type=Path, default=RESULTS, help="directory for the raw output")
    options = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    options.keep.mkdir(parents=True, exist_ok=True)
    where = options.keep / f"log_vs_kafka-{datetime.now(UTC):%Y%m%d-%H%M%S}.txt"
    about = machine()
    kafka_tools.classpath()
    with tempfile.TemporaryDirectory(prefix="bench-") as name, where.open("w") as out:
        directory, raw = Path(name), Raw(out)
        raw.keep("machine", about)
        say(f"{about}\nstart times, {options.rounds} each")
        starts = measure_starts(directory, options.rounds, options.heap_mb)
        with mainstem_server(directory) as (ours, _), kafka_server(directory, options.heap_mb) as (kafka, _):
            servers = [ours, kafka]
            for server in servers:
                server.measured["start to first Metadata answer (s)"] = starts[server.name]
                server.add("memory after the start (MB)", server.memory_mb()[0])
            for size in options.sizes:
                records = max(options.records * 100 // size, 1)
                measure_throughput(servers, size, records, options.rounds, raw, say)
            if options.rate:
                say(f"latency at {options.rate} records/s")
                measure_latency(servers, options.rate, options.rounds, raw)
            for server in servers:
                server.add("memory, highest (MB)", server.memory_mb()[1])
            summary = table(servers)
            raw.keep("medians", summary)
    print(f"{about}\n\n{summary}\n\nours: fdatasync before every answer; Kafka: none. Raw output: {where}")


if __name__ == "__main__":
    main()
