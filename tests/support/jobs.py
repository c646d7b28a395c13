"""What tests of running jobs need: rows put into topics as sources put them, rows read back,
a driver run for a while.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.client.heartbeats import Statement, write_heartbeats
from mainstem.client.topics import end_offsets
from mainstem.core import SystemClock
from mainstem.process.frozen import freeze
from mainstem.process.project import load_project
from mainstem.process.run import JobDriver
from mainstem.registry import avro
from mainstem.registry.client import Registry
from mainstem.registry.reader import TypedReader


def put_rows(
    connection: Connection, registry: Registry, topic: str, schema: str, rows: Iterable[Mapping[str, Any]], key: tuple[str, ...]
) -> None:  # fmt: skip
    """Append rows, typed by `schema`, in their order."""
    schema_id = registry.register(f"{topic}-value", schema)
    records = [(avro.key_text(row, key) if key else None, avro.encode(schema_id, schema, row)) for row in rows]
    append(connection, topic, records, timeout_seconds=60)


def change_schema(namespace: str, fields: list[dict[str, Any]]) -> str:
    """The schema of the canonical change record of a table."""
    row = {"type": "record", "name": "Row", "fields": fields}
    transaction = {"type": "record", "name": "Transaction", "fields": [
        {"name": "id", "type": "string"}, {"name": "total_order", "type": "long"}]}  # fmt: skip
    return json.dumps({"type": "record", "name": "Change", "namespace": namespace, "mainstem": "change", "fields": [
        {"name": "op", "type": "string"},
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Row"], "default": None},
        {"name": "position", "type": "long"},
        {"name": "transaction", "type": ["null", transaction], "default": None},
        {"name": "committed_at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]})  # fmt: skip


def put_changes(
    connection: Connection, registry: Registry, topic: str, schema: str, key: str, changes: Iterable[tuple[str, dict[str, Any]]]
) -> None:  # fmt: skip
    """Append changes as (op, row); a delete is followed by its tombstone."""
    schema_id = registry.register(f"{topic}-value", schema)
    records: list[tuple[bytes | None, bytes | None]] = []
    for number, (op, row) in enumerate(changes):
        gone = op in ("d", "t")
        record = {"op": op, "before": row if op == "d" else None, "after": None if gone else row, "position": number,
                  "transaction": None, "committed_at": 0}  # fmt: skip
        name = avro.key_text(row, (key,)) if op != "t" else b"truncate"
        records.append((name, avro.encode(schema_id, schema, record)))
        if op == "d":
            records.append((name, None))
    append(connection, topic, records, timeout_seconds=60)


def say_end(connection: Connection, topic: str, event_time_ms: int, *, end: bool = True) -> None:
    """State of `topic` as its source would: nothing follows what is there."""
    write_heartbeats(connection, [Statement(topic, end_offsets(connection, topic), event_time_ms, end)])


def read_rows(connection: Connection, topic: str) -> list[Any]:
    """The values of all committed records, partition by partition."""
    with TypedReader(connection, topic) as reader:
        return [record.value for record in reader]


def rows_so_far(connection: Connection, topic: str) -> list[Any]:
    """The same; none where there is no such topic yet."""
    try:
        return read_rows(connection, topic)
    except UnknownTopic:
        return []


def driver_of(
    spark: Any, project: Path, connection: Connection, registry_url: str, data: Path, **options: Any
) -> JobDriver:
    version = freeze(project, data, SystemClock())
    return JobDriver(
        spark, load_project(version.directory), version, connection, Registry(registry_url), data, **options
    )


def run_until(
    driver: JobDriver, done: Callable[[], bool], seconds: float = 400, *, refused: Collection[str] = ()
) -> None:
    """Step a started driver until `done`; a job that only a person can mend would be waited for in vain, unless it is
    one of `refused`.
    """
    deadline = time.monotonic() + seconds
    while not done():
        driver.step()
        failed = driver.retries.failed.items()
        unforeseen = [each.error for key, each in failed if each.needs_a_person and key not in refused]
        assert not unforeseen or done(), unforeseen
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done within {seconds} s; waiting: {driver.waiting}")
        time.sleep(0.2)
