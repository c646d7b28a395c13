"""One job beside three others in the same driver: one that hangs, one that fails, one that drains a backlog.

    python -m bench.isolation [--records 10000000] [--seconds 60] [--rounds 3] [--keep DIR]

Rows come to the steady job 50 times a second; each has the time when it was sent, and a reader of committed records
says when it was there again. So a wait is that for the batch that runs, then up to 100 ms, and the batch of its own.
What a batch takes is told by the files that Spark writes when it has been planned and when it is over. First the job
runs alone, then with the others, until the backlog is drained; that is a round. The topics of the others have as many
partitions as Spark has places. Also: how long the producer waits for its acknowledgements, how fast the backlog is
drained, what memory the driver takes, and whether the failing job is told of.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition

from bench.nexmark.measure import Watch
from bench.report import RESULTS, Report
from bench.servers import mainstem_server
from mainstem.client.connection import Connection
from mainstem.client.internal import job_group
from mainstem.client.reader import arrived, committed_consumer
from mainstem.client.topics import admin, end_offsets, list_topics
from mainstem.registry import avro
from mainstem.registry.client import Registry
from tests.support import processes
from tests.support.ports import free_port
from tests.support.waiting import wait_until

PER_SECOND = 50
WARM_SECONDS = 20
"""By then the code of the driver's Java is compiled."""
PARTITIONS = 8  # of what the others read
TICKS_PARTITIONS = 2
SCHEMA = '{"type": "record", "name": "Row", "fields": [{"name": "number", "type": "long"}, {"name": "text", "type": "string"}]}'
SETTINGS = """
[jobs.steady]
every = "100 milliseconds"
"""
JOBS = """
    import time

    from mainstem.process import stream, topic
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    ticks, stuck, broken, backlog = topic("b.ticks"), topic("b.stuck"), topic("b.broken"), topic("b.backlog")

    @F.udf(LongType())
    def never(number):
        time.sleep(1e6)

    @F.udf(LongType())
    def fails(number):
        raise ValueError(number)

    @stream(to="b.steady")
    def steady(ticks):
        return ticks.select("number")

    @stream(to="b.hangs")
    def hangs(stuck):
        return stuck.select(never("number").alias("number"))

    @stream(to="b.fails")
    def failing(broken):
        return broken.select(fails("number").alias("number"))

    @stream(to="b.drained", key="number")
    def drained(backlog):
        return backlog.select("number", F.upper("text").alias("text"))
"""
OTHERS = {"hangs": "b.stuck", "failing": "b.broken", "drained": "b.backlog"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000, help="of the backlog")
    parser.add_argument("--seconds", type=int, default=60, help="that the steady job runs alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, default=RESULTS, help="directory for what is printed")
    arguments = parser.parse_args()
    report = Report("isolation", arguments.keep)
    rounds = []
    for number in range(arguments.rounds):
        report.say(f"round {number + 1} of {arguments.rounds}")
        rounds.append(measure(report, arguments.records, arguments.seconds))
    report.say("")
    for name in rounds[0]:
        alone, beside = (statistics.median(each[name][side] for each in rounds) for side in (0, 1))
        report.say(f"{name:40} alone {alone * 1000:7.1f} ms, with others {beside * 1000:7.1f} ms: {beside / alone:.2f}")


def measure(report: Report, records: int, seconds: int) -> dict[str, tuple[float, float]]:
    """One round: figures alone and with others, in seconds."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        write_project(directory / "project")
        server, _ = stack.enter_context(mainstem_server(directory))
        connection = Connection(server.bootstrap)
        alone = dict.fromkeys((f"MAINSTEM_JOBS__{each.upper()}__EVERY" for each in OTHERS), "on demand")
        with running(directory, connection, alone) as (gateway, _):
            schema_id = Registry(f"http://{gateway}").register("b.ticks-value", SCHEMA)
            with Ticks(connection, schema_id) as ticks, Batches(directory) as batches:
                wait_until(lambda: ticks.waits, "the steady job runs", seconds=300)
                time.sleep(WARM_SECONDS)
                ticks.forget()
                batches.forget()
                time.sleep(seconds)
                report.say(f"alone:       {ticks}; {batches}")
                before_others = figures(ticks, batches)
        for topic, count in {"b.stuck": 10, "b.broken": 10, "b.backlog": records}.items():
            fill(connection, topic, schema_id, count)
        with (
            running(directory, connection, {}) as (_, process_id),
            Ticks(connection, schema_id) as ticks,
            Batches(directory) as batches,
        ):
            wait_until(lambda: drained(connection), "the backlog is being drained", seconds=300)
            watch = Watch([process_id])
            stack.callback(watch.close)
            began, before = time.monotonic(), drained(connection)
            time.sleep(WARM_SECONDS)
            ticks.forget()
            batches.forget()
            ends = sum(end_offsets(connection, "b.backlog").values())
            assert drained(connection) < ends, (
                "the backlog is drained before anything was measured: take more --records"
            )
            wait_until(lambda: drained(connection) >= ends, "the backlog is drained", seconds=3600)
            took = time.monotonic() - began
            report.say(f"with others: {ticks}; {batches}")
            found = figures(ticks, batches)
            rate, used = (ends - before) / took, watch.used()
            report.say(f"{records:,} records drained at {rate:,.0f}/s; {used.memory:,.0f} MB at most")
            report.say(states(directory))
    return {name: (before_others[name], beside) for name, beside in found.items()}


def figures(ticks: "Ticks", batches: "Batches") -> dict[str, float]:
    """Seconds, by what was measured."""
    measured = {"row": ticks.waits, "acknowledgement": ticks.acknowledged, "batch": list(batches.seconds.values())}
    return {f"{name}, p{part}": quantile(found, part) for name, found in measured.items() for part in (50, 99)}


def quantile(found: Sequence[float], part: int) -> float:
    return sorted(found)[int(len(found) * part / 100)]


def write_project(directory: Path) -> None:
    directory.mkdir()
    partitions = {"b.ticks": TICKS_PARTITIONS} | dict.fromkeys(OTHERS.values(), PARTITIONS)
    topics = "".join(f'[topics."{each}"]\npartitions = {count}\nschema = "row.avsc"\n' for each, count in partitions.items())  # fmt: skip
    (directory / "mainstem.toml").write_text(topics + SETTINGS)
    (directory / "row.avsc").write_text(SCHEMA)
    (directory / "jobs.py").write_text(dedent(JOBS))


@contextlib.contextmanager
def running(directory: Path, connection: Connection, settings: dict[str, str]) -> Iterator[tuple[str, int]]:
    """`mainstem up` on the log: the address of its registry, and its process."""
    gateway = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mainstem", "up", str(directory / "project"), "--data", str(directory / "data")]
    command += ["--bootstrap", connection.bootstrap, "--gateway", gateway]
    with (directory / "said.txt").open("ab") as out:
        process = processes.start(command, stdout=out, stderr=out, env=os.environ | settings)
    try:
        wait_until(lambda: "b.ticks" in list_topics(connection) and "b.steady" in list_topics(connection),
                   "the project is up", seconds=300)  # fmt: skip
        yield gateway, process.pid
    finally:
        process.terminate()
        processes.stop(process)


def fill(connection: Connection, topic: str, schema_id: int, records: int) -> None:
    producer = Producer(connection.confluent(linger_ms=20, queue_buffering_max_messages=500_000))
    text = "lorem ipsum dolor sit amet consetetur sadipscing elitr sed diam nonumy eirmod tempor"
    for number in range(records):
        value = avro.encode(schema_id, SCHEMA, {"number": number, "text": text})
        while True:
            try:
                producer.produce(topic, value, b"%d" % number)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(300) == 0


def drained(connection: Connection) -> int:
    """How far the job is by its group's offsets, summed over partitions."""
    group = job_group("drained", "1")
    wanted = [TopicPartition("b.backlog", each) for each in range(PARTITIONS)]
    try:
        found = admin(connection).list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])
        return sum(max(0, each.offset) for each in found[group].result(30).topic_partitions)
    except Exception:  # there is no such group yet
        return 0


def states(directory: Path) -> str:
    """What `job list` says of each job, in words."""
    command = [sys.executable, "-m", "mainstem", "job", "list", "--json", "--data", str(directory / "data")]
    done = subprocess.run(command, capture_output=True, check=True)
    found = msgspec.json.decode(done.stdout)
    return "; ".join(f"{each['job']}: {each['state']} {each['why'][:60]}".strip() for each in found)


class Ticks:
    """Sends rows at a steady rate and sees them come out, in threads of its own."""

    def __init__(self, connection: Connection, schema_id: int) -> None:
        self.waits: list[float] = []
        """Seconds from when a row was sent to when it was read again."""
        self.acknowledged: list[float] = []
        """Seconds until the log had it."""
        self._connection, self._schema_id = connection, schema_id
        self._over = threading.Event()
        self._producer = Producer(connection.confluent(linger_ms=0))
        work = (self._send, self._hear, self._read)
        self._threads = [threading.Thread(target=each, daemon=True) for each in work]

    def forget(self) -> None:
        """What was measured so far."""
        self.waits.clear()
        self.acknowledged.clear()

    def __enter__(self) -> "Ticks":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def __str__(self) -> str:
        if not self.waits:
            return "nothing came"
        p50, p99, sent50, sent99 = (
            quantile(found, part) * 1000 for found in (self.waits, self.acknowledged) for part in (50, 99)
        )
        return (
            f"p50 {p50:6.0f} ms, p99 {p99:6.0f} ms of {len(self.waits):,} rows; "
            f"acknowledged after p50 {sent50:.1f} ms, p99 {sent99:.1f} ms"
        )

    def _hear(self) -> None:
        """Of acknowledgements as they come: between two rows they would wait for the next one to be sent."""
        while not self._over.is_set():
            self._producer.poll(0.1)

    def _send(self) -> None:
        producer = self._producer
        while not self._over.wait(1 / PER_SECOND):
            began = time.time()
            row = {"number": int(began * 1e6), "text": ""}

            def there(error: object, _: object, began: float = began) -> None:
                if error is None:
                    self.acknowledged.append(time.time() - began)

            producer.produce("b.ticks", avro.encode(self._schema_id, SCHEMA, row), on_delivery=there)
        producer.flush(30)

    def _read(self) -> None:
        schemas: dict[int, str] = {}
        consumer = committed_consumer(self._connection, "bench.isolation", deleted="earliest", wait_ms=20)
        ends = end_offsets(self._connection, "b.steady", committed=True)
        consumer.assign([TopicPartition("b.steady", partition, offset) for partition, offset in ends.items()])
        while not self._over.is_set():
            for message in arrived(consumer, 0.1):
                if message.error() is None:
                    now, value = time.time(), message.value()
                    number = avro.decode(value, lambda key: schemas.setdefault(key, OUT))["number"]
                    self.waits.append(now - number / 1e6)
        consumer.close()


class Batches:
    """What the steady job's batches take, from when one is planned until it is over, looked at in a thread of its own:
    Spark keeps the files of the last ones alone.
    """

    def __init__(self, directory: Path) -> None:
        self.seconds: dict[str, float] = {}
        """Of each batch, by its number."""
        self._checkpoint = directory / "data" / "jobs" / "steady@1" / "checkpoint"
        self._known: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def forget(self) -> None:
        """What was measured so far."""
        self._see()
        self._known, self.seconds = set(self.seconds), {}

    def __enter__(self) -> "Batches":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def __str__(self) -> str:
        found = list(self.seconds.values())
        if not found:
            return "no batch"
        p50, p99 = (quantile(found, part) * 1000 for part in (50, 99))
        return f"{len(found):,} batches of p50 {p50:.0f} ms, p99 {p99:.0f} ms"

    def _look(self) -> None:
        while not self._over.wait(1):
            self._see()

    def _see(self) -> None:
        for over in (self._checkpoint / "commits").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError):
                if over.name not in self._known:
                    planned = (self._checkpoint / "offsets" / over.name).stat().st_mtime
                    self.seconds[over.name] = over.stat().st_mtime - planned


OUT = '{"type": "record", "name": "steady", "namespace": "b", "fields": [{"name": "number", "type": ["null", "long"], "default": null}]}'
"""What the steady job writes."""


if __name__ == "__main__":
    main()
