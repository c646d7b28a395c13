"""How long `mainstem up examples/flights` takes to go on after a stop, and a topic that is new to become a table.

    python -m bench.second_up [--flights 4000] [--runs 5] [--keep DIR]

The demo runs once, with so many flights, on a log of our own. Then its project is stopped with Ctrl-C and started
again, so many times: the seconds until `mainstem up` says that the log, the gateway, the sources, the five jobs and the
lakehouse run. In the project that is then idle a Kafka client writes the first record of a topic: the seconds until its
row is read from the Delta table. One line per run, then the medians; kept under bench/results/.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from bench.report import RESULTS, Report
from mainstem.connect.local_postgres import LocalPostgres

if TYPE_CHECKING:
    from demo import Demo

DEMO = Path(__file__).parents[1] / "examples" / "flights_demo"  # its modules lie beside it, as Python finds them


def second_up(demo: "Demo") -> float:
    """Seconds."""
    demo.stop()
    began = time.perf_counter()
    demo.start()
    return time.perf_counter() - began


def new_table(demo: "Demo", topic: str) -> float:
    """Seconds, from before the topic is there."""
    from check import has_rows
    from waiting import until

    began = time.perf_counter()
    producer = Producer({"bootstrap.servers": demo.connection.bootstrap, "allow.auto.create.topics": True})
    producer.produce(topic, b"the first record")
    assert producer.flush(60) == 0

    until(f"{topic} is a table", lambda: has_rows(demo.work / "node" / "tables", topic), demo.check)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flights", type=int, default=4_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", type=Path, default=RESULTS, help="directory for what is printed")
    options = parser.parse_args()
    sys.path.insert(0, str(DEMO))
    from demo import Demo, arguments

    report = Report("second_up", options.keep)
    with tempfile.TemporaryDirectory() as directory, LocalPostgres(Path(directory) / "postgres") as postgres:
        chosen = arguments().parse_args(
            ["--flights", str(options.flights), "--only-tables", "--work", directory, "--new-table-seconds", "3600"]
        )
        demo = Demo(chosen, postgres)
        try:
            assert demo.run() == 0
            found = []
            for number in range(options.runs):
                found.append((second_up(demo), new_table(demo, f"new-{number}")))
                report.say("up again after {:5.1f} s; a new topic is a table after {:4.1f} s".format(*found[-1]))
        finally:
            demo.stop()
        medians = (statistics.median(column) for column in zip(*found, strict=True))
        report.say("median         {:5.1f} s                              {:4.1f} s".format(*medians))


if __name__ == "__main__":
    main()
