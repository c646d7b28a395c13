"""Our exactly-once sink beside Spark's own at-least-once sink: same session, same input, same log, interleaved runs.

    python -m bench.sink_vs_spark [--kafka] [--bootstrap HOST:PORT] [--records 1000000] [--runs 3] [--keep DIR]

Input: 100-byte values with 10-byte keys and one header in a topic of 2 partitions, read by Spark's connector. Output: a
topic of 2 partitions. Ours has everything on: keys, headers, murmur2, order by source offset, fingerprints, marker,
progress, group offsets. It starts the embedded log, or with `--kafka` an Apache Kafka 4.3.0, unless `--bootstrap` names
one that runs. One line per run, then the medians; kept under bench/results/.
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
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.report import RESULTS, Report
from bench.servers import KAFKA_DEFAULTS
from mainstem.client import Connection
from mainstem.client.topics import delete, end_offsets, ensure_internal_topics, ensure_topic
from mainstem.client.transaction import SharedTransaction
from mainstem.core import TopicPartition
from mainstem.process.project import JobConfig
from mainstem.process.session import SparkConfig, job_session, start_session
from tests.support.kafka_cluster import KafkaCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--kafka", action="store_true", help="on Apache Kafka instead of the embedded log")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
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
        ways = {"read only": read_only, "spark": spark_sink, "mainstem": our_sink}
        ways = {name: way for name, way in ways.items() if arguments.only in ("", name)}
        for way in ways.values():  # the JVM compiles and the workers import what they need
            way(spark, connection, source, arguments.records, directory)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for run in range(arguments.runs):
            for name, way in ways.items():
                took, used = way(spark, connection, source, arguments.records, directory)
                seconds[name].append(took)
                cpu[name].append(used)
                rate = arguments.records / took
                report.say(f"run {run + 1}  {name:10} {took:7.2f} s  {rate:10,.0f} records/s  {used:6.1f} CPU s")
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        for name, median in medians.items():
            used = statistics.median(cpu[name]) / arguments.records * 1e6
            report.say(f"median {name:10} {arguments.records / median:10,.0f} records/s  {used:.2f} CPU us per record")
        if "spark" in medians and "mainstem" in medians:
            report.say(f"mainstem / spark: {medians['spark'] / medians['mainstem']:.2f}")


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


def read_only(
    spark: "SparkSession", connection: Connection, source: str, records: int, directory: Path
) -> tuple[float, float]:
    spark = job_session(spark, "bench", JobConfig())
    took: dict[str, float] = {}

    def batch(frame: "DataFrame", number: int) -> None:
        with measured(took):
            frame.write.format("noop").mode("append").save()

    frame = stream(spark, connection, source, records).select("key", "value", "headers")
    run_once(frame.writeStream.foreachBatch(batch), directory, took)
    return took["seconds"], took["cpu"]


def spark_sink(
    spark: "SparkSession", connection: Connection, source: str, records: int, directory: Path
) -> tuple[float, float]:
    spark = job_session(spark, "bench", JobConfig())
    output, took = new_output(connection), dict[str, float]()

    def batch(frame: "DataFrame", number: int) -> None:
        with measured(took):
            frame.write.format("kafka").options(**connection.spark(), topic=output).save()

    frame = stream(spark, connection, source, records).select("key", "value", "headers")
    run_once(frame.writeStream.foreachBatch(batch), directory, took)
    check(connection, output, records)
    return took["seconds"], took["cpu"]


def our_sink(
    spark: "SparkSession", connection: Connection, source: str, records: int, directory: Path
) -> tuple[float, float]:
    from pyspark.sql import functions as F

    from mainstem.process.offsets import read_plan
    from mainstem.process.sink import BatchSink, JobIdentity, OutputTopic

    spark = job_session(spark, "bench", JobConfig())
    output, took = new_output(connection), dict[str, float]()
    checkpoint = directory / uuid.uuid4().hex
    sink = BatchSink(JobIdentity(output, "v1", str(checkpoint)), connection, [OutputTopic(output, PARTITIONS)])
    sink.open(spark)

    def batch(frame: "DataFrame", number: int) -> None:
        with measured(took):
            result = sink.write(frame, number, read_plan(checkpoint, number).ends)
        if os.environ.get("VERBOSE"):
            print(f"   write {result.write_ms:.0f} ms, commit {result.commit_ms:.0f} ms")

    frame = stream(spark, connection, source, records).select(
        F.lit(output).alias("topic"),
        "key",
        "value",
        "headers",
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
    )
    run_once(frame.writeStream.foreachBatch(batch), directory, took, checkpoint)
    sink.close()
    check(connection, output, records)
    return took["seconds"], took["cpu"]


def run_once(writer: Any, directory: Path, took: dict[str, float], checkpoint: Path | None = None) -> None:
    """One batch: the source has names (`enableSourceEvolution`), so it gets one."""
    query = (
        writer.option("checkpointLocation", str(checkpoint or directory / uuid.uuid4().hex))
        .trigger(processingTime="1 second")
        .start()
    )
    while "cpu" not in took and query.isActive:
        time.sleep(0.02)
    failure = query.exception()
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
