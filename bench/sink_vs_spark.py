"""Our exactly-once sink beside Spark's own at-least-once sink: same session, same input, same log, interleaved runs.

    python -m bench.sink_vs_spark [--kafka] [--bootstrap HOST:PORT] [--records 1000000] [--runs 7] [--keep DIR]

Input: 100-byte values with 10-byte keys and one header in a topic of 2 partitions, read by Spark's connector. Output: a
topic of 2 partitions. Ours has everything on: keys, headers, murmur2, order by source offset, fingerprints, marker,
progress, group offsets. It starts the embedded log, or with `--kafka` an Apache Kafka 4.3.0, unless `--bootstrap` names
one that runs. First all records in one batch, then small batches one after the other, of which the time of the whole
batch counts. One line per run, then the medians; kept under bench/results/.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import psutil

from bench.report import RESULTS, Report
from bench.servers import KAFKA_DEFAULTS
from mainstem.client import Connection
from mainstem.client.topics import delete, end_offsets, ensure_internal_topics, ensure_topic
from mainstem.client.transaction import SharedTransaction
from mainstem.core import TopicPartition
from mainstem.process.project_config import JobConfig
from mainstem.process.session import SparkConfig, job_session, start_session
from tests.support.kafka_cluster import KafkaCluster

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PARTITIONS = 2
SMALL = 100  # records of a small batch
WARM, COUNTED = 20, 60  # small batches


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--kafka", action="store_true", help="on Apache Kafka instead of the embedded log")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="profile a task of our sink")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path, default=RESULTS, help="directory for what is printed")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        name = "Apache Kafka" if arguments.kafka else arguments.bootstrap or "embedded log"
        report = Report(f"sink_vs_spark-{'kafka' if arguments.kafka else 'log'}", arguments.keep)
        report.say(f"{arguments.records:,} records of 100 bytes on {name}")
        if arguments.kafka:
            cluster = KafkaCluster(1, directory / "kafka", heap_mb=1024, overrides=KAFKA_DEFAULTS)
            connection = Connection(stack.enter_context(cluster).bootstrap)
        else:
            connection = Connection(arguments.bootstrap or stack.enter_context(embedded_process()))
        ensure_internal_topics(connection)
        source = fill(connection, arguments.records)
        spark = start(directory)
        stack.callback(spark.stop)
        ways = {name: way for name, way in WAYS.items() if arguments.only in ("", name)}
        here = Bench(spark, connection, source, arguments.records, directory)
        for way in ways.values():  # the JVM compiles and the workers import what they need
            here.one_batch(way)
        large(here, ways, arguments.runs, report)
        small(here, ways, arguments.runs, report)


def large(here: "Bench", ways: dict[str, "Way"], runs: int, report: Report) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs):
        for name, way in ways.items():
            took, used = here.one_batch(way)
            seconds[name].append(took)
            cpu[name].append(used)
            rate = here.records / took
            report.say(f"run {run + 1}  {name:10} {took:7.2f} s  {rate:10,.0f} records/s  {used:6.1f} CPU s")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        used = statistics.median(cpu[name]) / here.records * 1e6
        report.say(f"median {name:10} {here.records / median:10,.0f} records/s  {used:.2f} CPU us per record")
    if "spark" in medians and "mainstem" in medians:
        report.say(f"mainstem / spark: {medians['spark'] / medians['mainstem']:.2f}")


def small(here: "Bench", ways: dict[str, "Way"], runs: int, report: Report) -> None:
    report.say(f"{COUNTED} batches of {SMALL} records after {WARM} others")
    found: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs):
        for name, way in ways.items():
            took, used = here.many_batches(way)
            found[name].append(took)
            cpu[name].append(used)
            report.say(f"run {run + 1}  {name:10} {took:6.0f} ms per batch  {used:6.0f} CPU ms")
    medians = {name: statistics.median(times) for name, times in found.items()}
    for name, median in medians.items():
        report.say(f"median {name:10} {median:6.0f} ms per batch  {statistics.median(cpu[name]):6.0f} CPU ms")
    if "spark" in medians and "mainstem" in medians:
        report.say(f"mainstem - spark: {medians['mainstem'] - medians['spark']:.0f} ms per batch")


@contextlib.contextmanager
def embedded_process() -> Iterator[str]:
    """The log as a process of its own, as `mainstem up` runs it."""
    data = tempfile.mkdtemp()
    command = [sys.executable, "-m", "mainstem", "log", "start", "--data", data, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip().removeprefix("listening on ")
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(data, ignore_errors=True)


def cpu_seconds() -> float:
    """Of the driver, the JVM and the Python workers, without the log: steadier than time on a shared machine."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if "log" not in process.cmdline()[:5]:
                times = process.cpu_times()
                total += times.user + times.system
    return total


@contextlib.contextmanager
def measured(took: dict[str, float]) -> Iterator[None]:
    """Time and CPU of the first batch alone."""
    began, used = time.monotonic(), cpu_seconds()
    yield
    took.setdefault("seconds", time.monotonic() - began)
    took.setdefault("cpu", cpu_seconds() - used)


def fill(connection: Connection, records: int) -> str:
    topic = f"bench-in-{uuid.uuid4().hex[:6]}"
    ensure_topic(connection, topic, PARTITIONS)
    transaction = SharedTransaction(connection, topic)
    transaction.fence()
    per_partition = records // PARTITIONS
    with transaction.writer(transaction.begin()) as writer:
        for start in range(0, per_partition, 10_000):
            count = min(10_000, per_partition - start)
            for partition in range(PARTITIONS):
                numbers = range(start, start + count)
                keys = [b"%09d%d" % (number, partition) for number in numbers]
                values = [b"%0100d" % number for number in numbers]
                headers: list[list[tuple[str, bytes | None]]] = [[("h", b"1")]] * count
                writer.append(TopicPartition(topic, partition), keys, values, headers, int(time.time() * 1000))
        appended = writer.finish()
    transaction.commit({partition: part.count for partition, part in appended.items()})
    transaction.close()
    return topic


def start(directory: Path) -> "SparkSession":
    return start_session("bench", SparkConfig(driver_memory="1400m"), directory=directory)


def stream(spark: "SparkSession", connection: Connection, source: str, limit: int) -> "DataFrame":
    options = connection.spark() | {
        "subscribe": source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(limit),
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    }
    return spark.readStream.name("source").format("kafka").options(**options).load()


class Way(Protocol):
    """What is done with a batch, and what is read for it, while its context lasts."""

    def __call__(
        self, spark: "SparkSession", connection: Connection, checkpoint: Path, output: str
    ) -> AbstractContextManager[tuple[tuple["Column | str", ...], Callable[["DataFrame", int], None]]]: ...


Told: TypeAlias = Iterator[tuple[tuple["Column | str", ...], Callable[["DataFrame", int], None]]]


@contextlib.contextmanager
def read_only(spark: "SparkSession", connection: Connection, checkpoint: Path, output: str) -> Told:
    yield ("key", "value", "headers"), lambda frame, _: frame.write.format("noop").mode("append").save()


@contextlib.contextmanager
def spark_sink(spark: "SparkSession", connection: Connection, checkpoint: Path, output: str) -> Told:
    def batch(frame: "DataFrame", number: int) -> None:
        frame.write.format("kafka").options(**connection.spark(), topic=output).save()

    yield ("key", "value", "headers"), batch


@contextlib.contextmanager
def our_sink(spark: "SparkSession", connection: Connection, checkpoint: Path, output: str) -> Told:
    from pyspark.sql import functions as F

    from mainstem.process.offsets import read_plan, records_between
    from mainstem.process.sink import BatchSink, JobIdentity, OutputTopic
    from mainstem.process.sink_direct import FEW_RECORDS

    sink = BatchSink(JobIdentity(output, "v1", str(checkpoint)), connection, [OutputTopic(output, PARTITIONS)])
    sink.open(spark)

    def batch(frame: "DataFrame", number: int) -> None:
        before, plan = read_plan(checkpoint, number - 1), read_plan(checkpoint, number)
        few = records_between(before.ends, plan.ends) <= FEW_RECORDS
        result = sink.write(frame, number, plan.ends, recount=(lambda: None) if few else None)
        if os.environ.get("VERBOSE"):
            print(f"   write {result.write_ms:.0f} ms, commit {result.commit_ms:.0f} ms")

    place = (F.col("partition").alias("_partition"), F.col("offset").alias("_offset"))
    yield (F.lit(output).alias("topic"), "key", "value", "headers", *place), batch
    sink.close()


WAYS: dict[str, Way] = {"read only": read_only, "spark": spark_sink, "mainstem": our_sink}


class Bench:
    """All ways have the same session's JVM, log and input; each run has a checkpoint and an output of its own."""

    def __init__(
        self, spark: "SparkSession", connection: Connection, source: str, records: int, directory: Path
    ) -> None:
        self.records = records
        self._spark, self._connection, self._source, self._directory = spark, connection, source, directory

    def one_batch(self, way: Way) -> tuple[float, float]:
        """Seconds, and those of the processors, that a batch of all records takes, without its planning."""
        took: dict[str, float] = {}

        def around(batch: Callable[["DataFrame", int], None]) -> Callable[["DataFrame", int], None]:
            def timed(frame: "DataFrame", number: int) -> None:
                with measured(took):
                    batch(frame, number)

            return timed

        with self._query(way, self.records, "1 second", around) as (query, output):
            while "cpu" not in took and query.isActive:
                time.sleep(0.02)
        if way is not read_only:
            check(self._connection, output, self.records)
        return took["seconds"], took["cpu"]

    def many_batches(self, way: Way) -> tuple[float, float]:
        """The median of the milliseconds that a whole small batch takes, commit log and all, and those of the
        processors.
        """
        first, used = 0, 0.0
        with self._query(way, SMALL, "0 seconds", lambda batch: batch) as (query, _):
            last = 0
            while last < WARM + COUNTED and query.isActive:
                time.sleep(0.05)
                last = query.lastProgress["batchId"] if query.lastProgress else 0
                if last < WARM:
                    first, used = last, cpu_seconds()
            used = (cpu_seconds() - used) / (last - first)
            progress = [each for each in query.recentProgress if WARM <= each["batchId"] < WARM + COUNTED]
        return statistics.median(each["durationMs"]["triggerExecution"] for each in progress), used * 1000

    @contextlib.contextmanager
    def _query(
        self,
        way: Way,
        records: int,
        trigger: str,
        around: Callable[[Callable[["DataFrame", int], None]], Callable[["DataFrame", int], None]],
    ) -> Iterator[tuple[Any, str]]:
        output, checkpoint = new_output(self._connection), self._directory / uuid.uuid4().hex
        spark = job_session(self._spark, "bench", JobConfig())
        with way(spark, self._connection, checkpoint, output) as (columns, batch):
            frame = stream(spark, self._connection, self._source, records).select(*columns)
            writer = frame.writeStream.foreachBatch(around(batch)).trigger(processingTime=trigger)
            query = writer.option("checkpointLocation", str(checkpoint)).start()
            try:
                yield query, output
                failure = query.exception()
            finally:
                query.stop()
        if failure is not None:
            raise failure


def new_output(connection: Connection) -> str:
    topic = f"bench-out-{uuid.uuid4().hex[:6]}"
    ensure_topic(connection, topic, PARTITIONS)
    return topic


def check(connection: Connection, topic: str, records: int) -> None:
    written = sum(end_offsets(connection, topic, committed=True).values())
    assert records <= written <= records + PARTITIONS, (records, written)  # and a control record each
    delete(connection, [topic])


if __name__ == "__main__":
    main()
