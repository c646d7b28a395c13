"""Events at a steady rate: how long it takes from when an event was due to when a reader has what was made of it.

    python -m bench.nexmark.latency [--rate 20000] [--seconds 60] [--only q1,q5,q18] [--engines mainstem,quix]
        [--commits 1]

An event's time is when it is due, by the clock of this machine. A row of q1, q13 and q18 has it; a window of q5 counts
from its end, so in its figures is the delay of 5 s that every engine waits for late events. A reader takes committed
records, and one row in ten is looked at. What comes in the first third, while engines start and compile, is left out.
"""

import argparse
import contextlib
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition

from bench.nexmark import measure
from bench.nexmark.engines import ENGINES, Engine, inputs_of
from bench.nexmark.events import PARTITIONS, WINDOW_MS, generate
from bench.nexmark.fill import IDS, TOPICS, pace, prepare, write_schemas, write_side
from bench.nexmark.rivals.common import COMMIT_SECONDS
from bench.report import RESULTS, Report
from bench.servers import mainstem_server
from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.client.topics import end_offsets, ensure_topic
from mainstem.registry import avro

_LOOKED_AT = 10
TIMES = {"q5": ("start", WINDOW_MS)} | dict.fromkeys(("q1", "q13", "q18"), ("at", 0))
"""The column that a wait counts from, and what is added to it."""


class Waits(msgspec.Struct, frozen=True):
    """Of one engine on one query.

    Attributes:
        waits: seconds, in the order in which the rows came.
        behind: how late the producer was at most, in seconds.
        cpu: seconds of the processors for each second that passed.
    """

    waits: list[float]
    behind: float
    cpu: float
    memory: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=20_000, help="events per second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--only", default="q1,q5,q18", help=f"some of {', '.join(TIMES)}")
    parser.add_argument(
        "--commits", type=float, default=COMMIT_SECONDS, help="seconds from one commit of an engine to the next"
    )
    parser.add_argument("--engines", default=",".join(ENGINES), help="with commas between them")
    parser.add_argument("--keep", type=Path, default=RESULTS, help="directory for what is printed")
    arguments = parser.parse_args()
    report = Report("nexmark_latency", arguments.keep)
    engines = [ENGINES[name] for name in arguments.engines.split(",")]
    steady(arguments.only.split(","), engines, arguments.rate, arguments.seconds, report, arguments.commits)


def steady(
    queries: list[str], engines: list[Engine], rate: int, seconds: int, report: Report, commits: float = COMMIT_SECONDS
) -> None:
    """Each engine on each of the queries, of which those are left out whose rows have no time."""
    report.say(f"\n{rate:,} events/s for {seconds} s, a commit each {commits:g} s")
    for query in (each for each in queries if each in TIMES):
        for engine in engines:
            if query not in engine.lacks:
                report.say(f"{query:4} {engine.name:10} {told(engine, query, rate, seconds, commits)}")


def told(engine: Engine, query: str, rate: int, seconds: int, commits: float) -> str:
    try:
        found = one(engine, query, rate, seconds, commits)
    except AssertionError as error:
        return str(error)
    kept = sorted(found.waits[len(found.waits) // 3 :])
    if not kept:
        return "nothing came"
    p50, p99 = statistics.median(kept), kept[int(len(kept) * 0.99)]
    return (
        f"p50 {p50 * 1000:7,.0f} ms, p99 {p99 * 1000:7,.0f} ms, of {len(kept):,} rows; {found.cpu:.2f} processors, "
        f"{found.memory:,.0f} MB; producer at most {found.behind * 1000:.0f} ms late"
    )


def one(engine: Engine, query: str, rate: int, seconds: int, commits: float) -> Waits:
    """On a log of its own: what another has left there would be read first."""
    with contextlib.ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nexmark-", ignore_cleanup_errors=True)))
        server, _ = stack.enter_context(mainstem_server(state))
        connection = Connection(server.bootstrap)
        write_schemas(connection, IDS)
        prepare(connection, IDS)
        write_side(state / "side.json")
        run = engine.run(query, "r0", server.bootstrap, state, tail=True, commits=commits)
        if engine.encoding == "json":
            ensure_topic(connection, run.output, PARTITIONS)
        topics = {topic: TOPICS[engine.encoding][topic] for topic in inputs_of(query, engine.encoding)}
        begun = stack.enter_context(measure.started(run))
        warm(connection, engine, run.output, topics)
        watch = measure.Watch([process.pid for process in begun])
        stack.callback(watch.close)
        before, at = watch.used().cpu, time.time()
        began = at + 1
        producer = multiprocessing.Process(
            target=_pace, args=(server.bootstrap, topics, engine.encoding, began, rate, seconds, state)
        )
        producer.start()
        psutil.Process(producer.pid).nice(0)
        waits = list(_waits(connection, engine, query, run.output, began, began + seconds + 5))
        producer.join()
        used = watch.used()
        return Waits(
            waits, float((state / "behind").read_text()), (used.cpu - before) / (time.time() - at), used.memory
        )


def warm(connection: Connection, engine: Engine, output: str, topics: dict[str, str]) -> None:
    """Return when the first rows of some events have come out: the engine runs."""
    from bench.nexmark.fill import fill

    fill(connection.bootstrap, generate(2_000, base_ms=int(time.time() * 1000) - 60_000_000), topics, engine.encoding)
    until = time.time() + 180
    while time.time() < until:
        with contextlib.suppress(UnknownTopic):
            if any(end_offsets(connection, output, committed=True).values()):
                time.sleep(5)
                return
        time.sleep(0.1)
    raise AssertionError(f"{engine.name} has written nothing")


def _pace(
    bootstrap: str, topics: dict[str, str], encoding: str, began: float, rate: int, seconds: int, state: Path
) -> None:
    events = generate(rate * seconds, rate=rate, base_ms=int(began * 1000), disorder_ms=0)
    behind = pace(bootstrap, events, topics, encoding, began, rate)
    (state / "behind").write_text(str(behind))


def _waits(connection: Connection, engine: Engine, query: str, output: str, began: float, until: float) -> Any:
    consumer = Consumer(
        {
            "bootstrap.servers": connection.bootstrap,
            "group.id": "nexmark-latency",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
            "log_level": 2,
        }
    )
    ends = end_offsets(connection, output, committed=True)
    consumer.assign([Partition(output, partition, offset) for partition, offset in ends.items()])
    column, added = TIMES[query]
    schemas: dict[int, str] = {}

    def schema_of(number: int) -> str:
        if number not in schemas:
            schemas[number] = _schema(connection, number)
        return schemas[number]

    seen = 0
    try:
        while time.time() < until:
            for message in consumer.consume(1000, 0.02):
                seen += 1
                if seen % _LOOKED_AT == 0 and message.error() is None:
                    now, value = time.time(), message.value() or b""
                    is_avro = engine.encoding == "avro"
                    row = avro.decode(value, schema_of) if is_avro else msgspec.json.decode(value)
                    at = round(row[column].timestamp() * 1000) if is_avro else row[column]
                    if at / 1000 >= began:
                        yield now - (at + added) / 1000
    finally:
        consumer.close()


def _schema(connection: Connection, number: int) -> str:
    from mainstem.client.internal import SCHEMAS

    for value in measure.values(connection, SCHEMAS):
        found = msgspec.json.decode(value) if value else {}
        if found.get("id") == number and "schema" in found:
            return str(found["schema"])
    raise AssertionError(f"schema {number} is not registered")


if __name__ == "__main__":
    main()
