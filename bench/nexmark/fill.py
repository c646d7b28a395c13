"""Events into topics: as JSON for the other engines, as Avro for Mainstem; the same ones, in the same order.

Each has what its documentation reads: the others' Kafka examples read JSON, for which they have fast parsers and
nothing to look up in a registry; a topic of Mainstem has a schema. A record's key is the text of the number that its
partition comes of; its timestamp is the event's time.
"""

import heapq
import json
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from confluent_kafka import Producer

from bench.nexmark.events import CLOSERS, KINDS, PARTITIONS, Events, Kind, partition_of, rows, side_rows
from mainstem.client.append import append
from mainstem.client.catalog import write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import SCHEMAS
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.registry import avro

Ids: TypeAlias = Mapping[str, int]

IDS: Ids = {kind: number for number, kind in enumerate((*KINDS, "side"), 1)}
"""Of the schemas."""
PROJECT = Path(__file__).parent / "project"
TOPICS = {
    "avro": {"nexmark.person": "person", "nexmark.auction": "seller", "nexmark.bid": "auction"},
    "json": {
        "nexmark.person.json": "person",
        "nexmark.auction.json": "seller",
        "nexmark.bid.json": "auction",
        "nexmark.bid.by_bidder.json": "bidder",
    },
}
"""Topics by encoding, and the column whose number parts them. The others find what each of their queries groups by
lying together: none has to write a topic of its own first, in which the partitions would drift apart.
"""
_STEP = 20_000
SIDE = "nexmark.side"


def kind_of(topic: str) -> str:
    return topic.split(".")[1]


def schema_of(kind: str) -> str:
    return (PROJECT / "schemas" / f"{kind}.avsc").read_text()


def encoder(kind: str, encoding: str, ids: Ids) -> Callable[[dict[str, int | str]], bytes]:
    """Of rows, as the values of records."""
    if encoding == "json":
        return msgspec.json.Encoder().encode
    number, schema = ids[kind], schema_of(kind)
    return lambda row: avro.encode(number, schema, row)


def write_schemas(connection: Connection, ids: Ids) -> None:
    """Into a log on which no registry runs yet."""
    ensure_internal_topics(connection)
    for kind, number in ids.items():
        subject = f"nexmark.{kind}-value"
        key = {"keytype": "SCHEMA", "subject": subject, "version": 1, "magic": 1}
        value = {"subject": subject, "version": 1, "id": number, "schema": schema_of(kind), "deleted": False}
        append(connection, SCHEMAS, [(msgspec.json.encode(key), msgspec.json.encode(value))])


def prepare(connection: Connection, ids: Ids) -> None:
    """The topics of both encodings, and the side input."""
    for topic in (topic for topics in TOPICS.values() for topic in topics):
        ensure_topic(connection, topic, PARTITIONS, {"retention.ms": "-1"})
    ensure_topic(connection, SIDE, 1, {"cleanup.policy": "compact"})
    write_catalog(connection, {f"topic:{SIDE}": {"kind": "changelog", "key": ["key"]}})
    told: list[dict[str, Any]] = [{"key": key, "value": value} for key, value in side_rows()]
    schema = schema_of("side")
    append(connection, SIDE, [(b"%d" % row["key"], avro.encode(ids["side"], schema, row)) for row in told])


def write_side(path: Path) -> None:
    """The side input for the others, who have it in memory: a JSON object."""
    path.write_text(json.dumps({str(key): value for key, value in side_rows()}))


def fill(bootstrap: str, events: Events, topics: Mapping[str, str], encoding: str, ids: Ids = IDS) -> int:
    """All events, as fast as they go; the bytes of their values."""
    total = 0
    producer = _producer(bootstrap)
    for topic, key in topics.items():
        of_kind, encode = events.kinds[kind_of(topic)], encoder(kind_of(topic), encoding, ids)
        for first in range(0, len(of_kind), _STEP):
            end = min(first + _STEP, len(of_kind))
            places = _places(of_kind, key, first, end)
            for row, (name, place) in zip(rows(kind_of(topic), of_kind, first, end), places, strict=True):
                value = encode(row)
                total += len(value)
                _send(producer, topic, name, value, place, int(row["at"]))
    assert producer.flush(120) == 0
    return total


def pace(bootstrap: str, events: Events, topics: Mapping[str, str], encoding: str, began: float, rate: int) -> float:
    """Each event when it is due, `rate` in a second from `began` (of the wall clock); the longest delay, in seconds."""
    producer = _producer(bootstrap, linger_ms=2)
    behind = 0.0
    for number, topic, (key, place), value, at in _in_order(events, topics, encoding):
        due = began + number / rate
        while (wait := due - time.time()) > 0:
            producer.poll(0)
            time.sleep(min(wait, 0.005))
        behind = max(behind, -wait)
        _send(producer, topic, key, value, place, at)
    assert producer.flush(60) == 0
    return behind


def _in_order(
    events: Events, topics: Mapping[str, str], encoding: str
) -> Iterator[tuple[int, str, tuple[bytes, int], bytes, int]]:
    """Events for all `topics` by their numbers, without the closing ones."""
    streams = []
    for topic, key in topics.items():
        of_kind = events.kinds[kind_of(topic)]
        end = len(of_kind) - CLOSERS
        values = map(encoder(kind_of(topic), encoding, IDS), rows(kind_of(topic), of_kind, 0, end))
        numbers, times = of_kind.number[:end].tolist(), of_kind.at[:end].tolist()
        streams.append(zip(numbers, repeat(topic), _places(of_kind, key, 0, end), values, times, strict=False))
    return heapq.merge(*streams, key=lambda event: event[0])


def _places(events: Kind, key: str, first: int, end: int) -> list[tuple[bytes, int]]:
    """Key and partition of events from `first` (included) to `end` (not)."""
    numbers = events.columns[key][first:end]
    return [(b"%d" % each, place) for each, place in zip(numbers.tolist(), partition_of(numbers).tolist(), strict=True)]


def _producer(bootstrap: str, linger_ms: int = 20) -> Producer:
    return Producer({
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "linger.ms": linger_ms,
        "enable.idempotence": True,
        "queue.buffering.max.messages": 500_000,
        "log_level": 2,
    })  # fmt: skip


def _send(producer: Producer, topic: str, key: bytes, value: bytes, partition: int, at: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition=partition, timestamp=at)
        except BufferError:
            producer.poll(0.05)
        else:
            return
