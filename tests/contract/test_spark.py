"""Spark's own Kafka connector, unmodified, reads and writes either log."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

import mainstem
from mainstem.broker.config import BrokerConfig
from mainstem.client.connection import Connection, Security
from tests.contract.clients import Log, Sent, consume, produce
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def read(spark: "SparkSession", log: Log, topic: str, **options: str) -> "DataFrame":
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", log.bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


def test_a_batch_reads_every_record_of_every_partition(spark: "SparkSession", log: Log, name: str) -> None:
    topic = log.create(name, partitions=3)
    produce("confluent", log, topic, [Sent(str(number), f"k{number}") for number in range(1000)])
    rows = read(spark, log, topic).selectExpr("CAST(key AS STRING) k", "CAST(value AS STRING) v", "partition").collect()
    assert {(row.k, row.v) for row in rows} == {(f"k{number}", str(number)) for number in range(1000)}
    assert {row.partition for row in rows} == {0, 1, 2}


def test_headers_nulls_and_timestamps_come_through(spark: "SparkSession", log: Log, topic: str) -> None:
    producer = Producer({"bootstrap.servers": log.bootstrap})
    recently_ms = int(time.time() * 1000) - 60_000  # retention takes what is older than a week
    producer.produce(topic, None, "k", headers=[("h", b"1")], timestamp=recently_ms)
    assert producer.flush(30) == 0
    [row] = read(spark, log, topic, includeHeaders="true").selectExpr("*", "unix_millis(timestamp) ms").collect()
    assert (bytes(row.key), row.value, row.ms) == (b"k", None, recently_ms)
    assert [(one.key, bytes(one.value)) for one in row.headers] == [("h", b"1")]


def test_a_range_of_offsets_is_read_exactly(spark: "SparkSession", log: Log, topic: str) -> None:
    produce("confluent", log, topic, [Sent(str(number)) for number in range(100)])
    frame = read(
        spark, log, topic, startingOffsets=f'{{"{topic}":{{"0":10}}}}', endingOffsets=f'{{"{topic}":{{"0":20}}}}'
    )
    assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(10, 20))


def test_a_stream_reads_committed_records_and_goes_on_from_its_checkpoint(
    spark: "SparkSession", log: Log, topic: str, name: str, tmp_path: Path
) -> None:
    producer = Producer({"bootstrap.servers": log.bootstrap, "transactional.id": name})
    producer.init_transactions(60)

    def write(value: str, *, commit: bool) -> None:
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

    def run() -> list[str]:
        stream = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", log.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("kafka.isolation.level", "read_committed")
            .load()
            .selectExpr("CAST(value AS STRING) value")
        )
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return sorted(row.value for row in spark.read.parquet(str(tmp_path / "out")).collect())

    write("a", commit=True)
    write("never", commit=False)
    write("b", commit=True)
    assert run() == ["a", "b"]
    write("never again", commit=False)
    write("c", commit=True)
    assert run() == ["a", "b", "c"]


def test_sparks_own_sink_writes(spark: "SparkSession", log: Log, topic: str) -> None:
    frame = spark.range(500).selectExpr("CAST(id AS STRING) key", "CAST(id * 2 AS STRING) value")
    frame.write.format("kafka").option("kafka.bootstrap.servers", log.bootstrap).option("topic", topic).save()
    got = consume("confluent", log, topic, 500)
    assert {(one.key, one.value) for one in got} == {(str(number), str(number * 2)) for number in range(500)}


def test_a_log_with_tls_and_users_is_written_and_read(spark: "SparkSession", tmp_path: Path) -> None:
    """With what a project's `[security]` makes of it for Spark."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("log")
    config = BrokerConfig(
        port=0, protocol="SASL_SSL", certificate_file=str(certificate), key_file=str(key), users={"ada": "secret"}
    )
    with mainstem.embedded(broker=config) as log:
        security = Security("SASL_SSL", "SCRAM-SHA-512", "ada", "secret", str(authority.file))
        options = Connection(log.bootstrap, security).spark()
        frame = spark.createDataFrame([("k", "v")], "key string, value string")
        frame.write.format("kafka").options(**options).option("topic", "t").save()
        [row] = spark.read.format("kafka").options(**options).option("subscribe", "t").load().collect()
        assert (bytes(row.key), bytes(row.value)) == (b"k", b"v")
