"""The log beside Apache Kafka, measured by Kafka's own unmodified programs and by librdkafka in one run.

    python -m bench.log_vs_kafka [--records 5000000] [--rounds 7] [--sizes 100 1000] [--handles 8] [--heap-mb 1024]

Both serve at the same time, each with its defaults: ours answers after an fdatasync, Kafka before any. Rounds are
interleaved, so that both see the same machine; the first of each is a warm-up of a fifth and is not counted. Figures
are medians; everything the programs printed is kept under bench/results/.

Of each size: one producer and one consumer of Kafka's perf tools; the same of librdkafka; then eight producers and
eight consumers, which are librdkafka handles in one process with a partition each (bench/clients.py says why not
eight JVMs, and what that client's own limit is). The millions of records are for the JVMs: the producer's tool compiles
itself in its first five seconds, and that must not decide; its first quarter is not counted.

Files of a topic that is deleted go at once, and the next step waits until a hypervisor has taken their memory back: a
page that is still there costs a tenth of one that must come from the host, and Kafka deletes files a minute later, so
that each step would write into the memory of whichever other one has just ended.
"""

import shutil
import tempfile
from pathlib import Path

from bench.clients import consume_all, produce_all
from bench.report import Report
from bench.servers import (
    DELETED_AT_ONCE,
    NAMES,
    Server,
    both,
    consume,
    create_topic,
    forget,
    kafka_server,
    mainstem_server,
    options_of,
    produce,
    table,
)
from tests.support import kafka_tools

_NO_PAUSE = {"fetch_queue_backoff_ms": 1}  # else the consumer's pause, a second at 100,000 queued records, is measured


def measure_starts(directory: Path, rounds: int, heap_mb: int) -> dict[str, list[float]]:
    starts: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(rounds):
        for name in NAMES if heap_mb else NAMES[:1]:
            place = directory / f"start-{name}-{number}"
            place.mkdir()
            with mainstem_server(place) if name == "mainstem" else kafka_server(place, heap_mb) as (_, took):
                starts[name].append(took)
            shutil.rmtree(place)
    return starts


def measure_tools(server: Server, size: int, records: int, number: int, report: Report) -> dict[str, float]:
    """One JVM that produces, then one that consumes."""
    topic = f"tools-{size}-{number}"
    create_topic(server, topic)
    produced = produce(server, topic, records, size, -1, report, warm_up=records // 4)
    consumed = consume(server, topic, records, report)
    forget(server, topic)
    return {
        f"perf-test, {size} B: produce (records/s)": float(produced[2]),
        f"perf-test, {size} B: consume (records/s)": consumed,
    }


def measure_handles(server: Server, size: int, records: int, number: int, handles: int) -> dict[str, float]:
    """As many librdkafka producers, then consumers, as partitions."""
    topic, who = f"handles-{size}-{handles}-{number}", f"librdkafka x {handles}, {size} B"
    create_topic(server, topic, handles)
    produced = produce_all(server.bootstrap, topic, records, size, handles=handles, partitions=handles)
    count, _, seconds = consume_all(server.bootstrap, topic, handles=handles, partitions=handles, **_NO_PAUSE)
    forget(server, topic)
    return {f"{who}: produce (records/s)": produced, f"{who}: consume (records/s)": count / seconds}


def measure_throughput(
    servers: list[Server], size: int, records: int, rounds: int, handles: list[int], report: Report
) -> None:
    for number in range(rounds + 1):
        count = records if number else max(records // 5, 1)
        for server in servers if number % 2 else servers[::-1]:  # neither is always first
            figures = measure_tools(server, size, count, number, report)
            for some in handles:
                figures.update(measure_handles(server, size, count, number, some))
            if number:
                server.add_all(figures)
            round_name = f"round {number}/{rounds}" if number else "warm-up"
            in_and_out = ", ".join(f"{value:,.0f}" for value in figures.values())
            report.say(f"{round_name}, {size} bytes, {server.name}: {in_and_out}")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--records", type=int, default=5_000_000, help="of 100 bytes; of 1000 two fifths as many")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--handles", type=int, nargs="*", default=[1, 8], help="librdkafka's, and partitions")
    options = parser.parse_args()
    report = Report("log_vs_kafka", options.keep)
    kafka_tools.classpath()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as name:
        directory = Path(name)
        report.say(f"start times, {options.rounds} each")
        starts = measure_starts(directory, options.rounds, options.heap_mb)
        with both(directory, options.heap_mb, kafka=DELETED_AT_ONCE) as servers:
            for server in servers:
                server.measured["start to first Metadata answer (s)"] = starts[server.name]
                server.add("memory after the start (MB)", server.memory_mb()[0])
            for size in options.sizes:
                records = options.records * min(size, 400) // size
                measure_throughput(servers, size, records, options.rounds, options.handles, report)
            for server in servers:
                server.add("memory, highest (MB)", server.memory_mb()[1])
            report.say(f"\n{table(servers)}\n\nours: fdatasync before every answer; Kafka: none")
    print(f"raw output: {report.path}")


if __name__ == "__main__":
    main()
