"""A streaming job on Spark's `local-cluster`: executors are JVMs of their own, to be killed by a test.

    python -c "from tests.support.sink_cluster_job import main; main()" BOOTSTRAP SOURCE OUTPUT DIRECTORY RECORDS

Runs until the output has RECORDS rows; a query that fails is started again, as the supervisor of a project does it.
Says `writing N` before every batch and waits for a line on stdin, then `batch N` when it is committed; `failed` for
every attempt that was not.
"""

import sys
import time
from pathlib import Path

from mainstem.client import Connection
from mainstem.process.offsets import read_plan
from mainstem.process.project_config import JobConfig
from mainstem.process.session import SparkConfig, job_session, start_session
from mainstem.process.sink import BatchSink, JobIdentity, OutputTopic

SCHEMA = "topic string, key binary, value binary, _partition int, _offset long"
SETTINGS = {"spark.executor.memory": "600m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def main() -> None:
    def slowly(batches):  # within: Spark sends it as code, since the workers cannot import the tests
        for batch in batches:
            time.sleep(0.5)
            yield batch

    bootstrap, source, output, directory, records = sys.argv[1:]
    connection, place = Connection(bootstrap), Path(directory)
    config = SparkConfig(master="local-cluster[2,1,600]", driver_memory="600m", settings=SETTINGS)
    spark = job_session(start_session("cluster", config, directory=place), "cluster", JobConfig())
    options = connection.spark() | {
        "subscribe": source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "200",
        "kafka.isolation.level": "read_committed",
    }
    frame = spark.readStream.name("source").format("kafka").options(**options).load()
    rows = frame.selectExpr(f"'{output}' topic", "key", "value", "partition _partition", "offset _offset")
    checkpoint = place / "checkpoint"
    sink = BatchSink(JobIdentity(output, "v1", str(checkpoint)), connection, [OutputTopic(output, 4)])
    done, attempts = 0, 0
    while done < int(records):
        attempts += 1
        assert attempts < 30, "it fails again and again"
        marker = sink.open(spark)
        done = sum(part.count for part in marker.written[output].values()) if marker else 0

        def write(batch, number):
            print(f"writing {number}", flush=True)
            sys.stdin.readline()
            sink.write(batch.mapInArrow(slowly, SCHEMA), number, read_plan(checkpoint, number).ends)
            print(f"batch {number}", flush=True)

        query = (
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:
            print("failed", str(error).splitlines()[0][:200], flush=True)
    sink.close()
    spark.stop()
