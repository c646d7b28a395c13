"""A backlog drained: from the first record that an engine has in hand to the last commit."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from bench.nexmark import measure
from bench.nexmark.engines import Engine, Run
from bench.nexmark.events import PARTITIONS
from bench.nexmark.oracle import COLUMNS, Oracle, Verdict
from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.client.topics import ensure_topic
from mainstem.registry.reader import TypedReader

SETTLED_SECONDS = 5.0
"""Nothing more is written when nothing was for so long, once all is read: windows close in a batch of their own."""
_EVERY_SECONDS = 0.1


class Drained(msgspec.Struct, frozen=True):
    """What one run took.

    Attributes:
        start: seconds from the start of the processes to the first record.
        seconds: from then to the last commit.
        cpu: seconds of the processors until the last commit.
        start_cpu: of them, those until the first record.
        memory: the highest, in MB.
        verdict: how its rows compare; None: it has not come to the end.
        trouble: what its processes have said if it has not.
    """

    start: float
    seconds: float
    cpu: float
    start_cpu: float
    memory: float
    verdict: Verdict | None
    trouble: str = ""


def drain(
    engine: Engine, query: str, number: str, connection: Connection, oracle: Oracle, state: Path, patience: float
) -> Drained:
    run = engine.run(query, number, connection.bootstrap, state)
    if engine.encoding == "json":
        ensure_topic(connection, run.output, PARTITIONS)
    progress = measure.Progress(connection, run)
    wanted = 0 if run.group else oracle.expected(query)
    began = time.time()
    first: float | None = None
    start_cpu = 0.0
    last, changed, used = measure.Position(0, False), began, measure.Used()
    with measure.started(run) as begun:
        watch = measure.Watch([process.pid for process in begun])
        try:
            while True:
                time.sleep(_EVERY_SECONDS)
                now = time.time()
                ended = [process for process in begun if process.poll() is not None]
                if first is None and (first := engine.first_record(run)) is not None:
                    start_cpu = watch.used().cpu
                try:
                    position = progress.now()
                except UnknownTopic:
                    position = last
                if position != last:
                    last, changed, used = position, now, watch.used()
                settled = first is not None and now - changed > SETTLED_SECONDS
                whole = last.all_read and last.output >= max(wanted, 1)
                if len(ended) == len(begun) if run.ends else settled and whole:
                    break
                if now - began > patience or (ended and not run.ends):
                    text = f"{len(ended)} processes ended, {last} after {now - began:.0f} s\n{measure.said(state)}"
                    return Drained(0, 0, used.cpu, 0, used.memory, None, text)
        finally:
            watch.close()
    if first is None:
        return Drained(0, 0, used.cpu, 0, used.memory, None, measure.said(state))
    verdict = oracle.compare(query, rows_of(connection, engine, run, query), replaced=run.replaced)
    return Drained(first - began, changed - first, used.cpu, start_cpu, used.memory, verdict)


def rows_of(connection: Connection, engine: Engine, run: Run, query: str) -> Iterable[Mapping[str, Any]]:
    """What a run has written, with times in milliseconds."""
    if engine.encoding == "avro":
        return avro_rows(connection, run.output)
    decode = msgspec.json.Decoder().decode
    rows = map(decode, measure.values(connection, run.output))
    return without_retracted(rows, tuple(COLUMNS[query])) if engine.name == "pathway" else rows


def avro_rows(connection: Connection, topic: str) -> Iterator[dict[str, Any]]:
    with TypedReader(connection, topic) as reader:
        for record in reader:
            yield {
                name: round(value.timestamp() * 1000) if isinstance(value, datetime) else value
                for name, value in record.value.items()
            }


def without_retracted(rows: Iterable[Mapping[str, Any]], columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The rows that are left when each with `diff` -1 has taken away one that is equal."""
    counted: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        counted[tuple(row[name] for name in columns)] += row["diff"]
    for values, count in counted.items():
        assert count >= 0, values
        for _ in range(count):
            yield dict(zip(columns, values, strict=True))
