"""What a producer waits for its answer, and a reader for a record, beside Apache Kafka in one run.

    python -m bench.latency [--rounds 7] [--seconds 30] [--rate 5000] [--end-to-end-rate 1000]

Three measurements in turn, with linger 0, acks=all, and ours after an fdatasync:
- Kafka's own producer-perf-test at a rate; its JVM's first seconds are a warm-up and not counted;
- a librdkafka producer at the same rate;
- from one librdkafka handle that produces to another that polls, with clients' defaults else (fetch.wait.max.ms 500).
librdkafka's are counted from when a record was due, so a pause counts for all records that it held up.
"""

import tempfile
from pathlib import Path

from bench.clients import end_to_end, produce_at_rate
from bench.report import Report
from bench.servers import (
    DELETED_AT_ONCE,
    Server,
    both,
    create_topic,
    delete_topic,
    options_of,
    produce,
    settle,
    table,
)
from bench.waits import Waits
from tests.support import kafka_tools


def measure_tool(server: Server, topic: str, rate: int, size: int, seconds: float, report: Report) -> dict[str, float]:
    """The tool knows whole ms only."""
    warm_up = rate * 10 if seconds >= 5 else rate
    found = produce(
        server,
        topic,
        int(rate * seconds) + warm_up,
        size,
        rate,
        report,
        properties=("linger.ms=0",),
        warm_up=warm_up,
    )
    what = f"perf-test at {rate:,}/s of {size:,} B"
    names = ("p50", "p99", "p99.9", "max")
    return {f"{what}: {name} (ms)": float(found[at]) for name, at in zip(names, (6, 8, 9, 5), strict=True)}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=30, help="of each measurement, more than 1")
    parser.add_argument("--rate", type=int, default=5_000, help="records/s of the producers")
    parser.add_argument("--size", type=int, default=1_000, help="bytes of a record")
    parser.add_argument("--end-to-end-rate", type=int, default=1_000, help="records/s from produce to poll")
    options = parser.parse_args()
    report = Report("latency", options.keep)
    rate, size, seconds = options.rate, options.size, options.seconds
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as name,
        both(Path(name), options.heap_mb, kafka=DELETED_AT_ONCE) as servers,
    ):
        if options.heap_mb:
            kafka_tools.classpath()
        for number in range(options.rounds + 1):  # the first is a warm-up of the servers
            for server in servers if number % 2 else servers[::-1]:
                topics = [f"{what}-{number}" for what in ("tool", "handle", "end-to-end")]
                for topic in topics:
                    create_topic(server, topic)
                settle()
                figures = measure_tool(server, topics[0], rate, size, seconds, report)
                settle()
                waits = Waits.of(produce_at_rate(server.bootstrap, topics[1], rate, size, seconds=seconds))
                figures |= waits.figures(f"librdkafka at {rate:,}/s of {size:,} B")
                at = options.end_to_end_rate
                settle()
                waits = Waits.of(end_to_end(server.bootstrap, topics[2], at, size, seconds=seconds))
                figures |= waits.figures(f"produce to poll at {at:,}/s")
                for topic in topics:
                    delete_topic(server, topic)
                if number:
                    server.add_all(figures)
                p99 = ", ".join(f"{value:.1f}" for what, value in figures.items() if "p99 " in what)
                report.say(f"round {number or 'to warm up'}, {server.name}: p99 {p99} ms")
        report.say(f"\n{table(servers)}\n\nours: fdatasync before every answer; Kafka: none")
    print(f"raw output: {report.path}")


if __name__ == "__main__":
    main()
