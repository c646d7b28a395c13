"""CPU of the lakehouse's first batches: 19 topics, 1,500 records in each.
`python bench/lakehouse.py [SETTINGS as JSON]`

Prints, per round, seconds passed and CPU seconds of Spark's JVM. On a machine that others use, compare the CPU.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from mainstem import embedded
from mainstem.client.append import append
from mainstem.client.catalog import write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import SCHEMAS
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.connect.sinks import delta, delta_spark
from mainstem.process.session import SparkConfig, start_session
from mainstem.registry import avro

RECORDS, STREAMS, TABLES, ROUNDS = 1500, 11, 8, 3
COLUMNS = [{"name": f"c{n}", "type": ["null", "double"], "default": None} for n in range(12)]
EVENT = json.dumps({"type": "record", "name": "Event", "fields": [
    {"name": "number", "type": "int"}, *COLUMNS, {"name": "origin", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]})  # fmt: skip
ROW = {"type": "record", "name": "Row", "fields": [
    {"name": "tailnum", "type": "string"}, {"name": "seats", "type": ["null", "int"]}]}  # fmt: skip
CHANGE = json.dumps({"type": "record", "name": "Change", "mainstem": "change", "fields": [
    {"name": "op", "type": "string"}, {"name": "before", "type": ["null", ROW]},
    {"name": "after", "type": ["null", "Row"]}]})  # fmt: skip


def send(connection: Connection, turn: int) -> None:
    for number in range(STREAMS):
        rows = [{"number": n, "origin": "JFK", "at": n, **{f"c{c}": 1.0 for c in range(12)}} for n in range(RECORDS)]
        append(connection, f"stream{number}", [(b"k%d" % n, avro.encode(1, EVENT, row)) for n, row in enumerate(rows)])
    for number in range(TABLES):
        changes = [{"op": "c", "before": None, "after": {"tailnum": str(n), "seats": turn}} for n in range(RECORDS)]
        append(connection, f"table{number}", [(b"k%d" % n, avro.encode(2, CHANGE, c)) for n, c in enumerate(changes)])


def prepare(connection: Connection) -> None:
    ensure_internal_topics(connection)
    for number, schema in ((1, EVENT), (2, CHANGE)):
        key = {"keytype": "SCHEMA", "subject": f"s{number}", "version": 1, "magic": 1}
        value = {"subject": f"s{number}", "version": 1, "id": number, "schema": schema, "deleted": False}
        append(connection, SCHEMAS, [(msgspec.json.encode(key), msgspec.json.encode(value))])
    for name in (*(f"stream{n}" for n in range(STREAMS)), *(f"table{n}" for n in range(TABLES))):
        ensure_topic(connection, name, 2)
    entry = {"kind": "changelog", "key": ["tailnum"]}
    write_catalog(connection, {f"topic:table{n}": entry for n in range(TABLES)})


def main() -> None:
    delta_spark.SETTINGS.update(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {})
    directory = Path(tempfile.mkdtemp(prefix="lakehouse"))
    with embedded() as log:
        connection = Connection(log.bootstrap)
        prepare(connection)
        send(connection, 0)
        spark = start_session("bench", SparkConfig(), directory=directory / "spark")
        spark.range(10).count()
        jvm = max(psutil.Process().children(recursive=True), key=lambda process: process.memory_info().rss)
        lake = delta.Lakehouse(
            spark.newSession(), connection, directory / "tables", directory / "checkpoint", delta.LakehouseConfig()
        )
        started, cpu = time.monotonic(), sum(jvm.cpu_times()[:2])
        lake.start()
        for turn in range(ROUNDS):
            while sum(p.rows for c in list(lake._positions.commits.values()) for p in c.partitions.values()) < (
                turn + 1
            ) * (RECORDS * (STREAMS + TABLES)):
                lake.step()
                time.sleep(0.05)
            passed, used = time.monotonic() - started, sum(jvm.cpu_times()[:2]) - cpu
            print(f"round {turn}: {passed:.1f} s passed, {used:.1f} s of CPU", flush=True)
            started, cpu = time.monotonic(), sum(jvm.cpu_times()[:2])
            if turn < ROUNDS - 1:
                send(connection, turn + 1)
        lake.stop()
        spark.stop()


if __name__ == "__main__":
    main()
