"""Pages of a topic's records, newest first or from an offset on, as texts that a browser can show."""

import heapq
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from mainstem.client import topics
from mainstem.client.connection import Connection
from mainstem.client.reader import RangeReader
from mainstem.core import UserError
from mainstem.registry.reader import SchemaTexts, TypedRecord, in_json, typed

MOST_RECORDS = 200
SCANNED = 100_000  # offsets of a partition for one page: aborted and compacted ones hold no record
SHORT_CHARACTERS = 2000
WHOLE_CHARACTERS = 2_000_000


class Partition(msgspec.Struct, frozen=True):
    """The offsets of its committed records lie from `start` (included) to `end` (not)."""

    partition: int
    start: int
    end: int


class About(msgspec.Struct, frozen=True):
    """A topic."""

    name: str
    partitions: list[Partition]
    settings: dict[str, str]


class Shown(msgspec.Struct, frozen=True):
    """One record. `kind`: json, text, bytes, or tombstone; `value` is a text in any case: numbers as large as ours have
    no other form in a browser. `characters`: of the whole value, where `value` is its beginning.
    """

    partition: int
    offset: int
    timestamp: int
    key: str | None
    kind: str
    value: str
    characters: int
    headers: dict[str, str] = {}
    undecoded: str = ""


class Page(msgspec.Struct, frozen=True):
    """Records, and where the page after this one begins, by partition (`0:120,1:90`); "" where there is none."""

    records: list[Shown]
    next: str = ""


def about(connection: Connection, topic: str) -> About:
    """Its partitions and settings.

    Raises:
        UnknownTopic: there is no such topic.
    """
    count = topics.describe(connection, topic).partitions
    places = topics.bounds(connection, {topic: count}, committed=True)
    partitions = [Partition(place.partition, start, end) for place, (start, end) in sorted(places.items())]
    return About(topic, partitions, dict(sorted(topics.describe_config(connection, topic).items())))


def newest(
    connection: Connection, topic: str, limit: int, before: Mapping[int, int] | None = None, only: int | None = None
) -> Page:
    """The last `limit` records below the offsets `before`, the newest first; of the partition `only`, or of all."""
    bounds = _bounds(connection, topic, only)
    ends = {p: min(end, (before or {}).get(p, end)) for p, (_, end) in bounds.items()}
    found, reached = _last_of_each(connection, topic, limit, {p: start for p, (start, _) in bounds.items()}, ends)
    # Times of appends need not grow within a partition (a producer may set them); its order is that of its offsets.
    merged = heapq.merge(*(reversed(each) for each in found.values()), key=lambda message: -message.timestamp()[1])
    taken = [message for message, _ in zip(merged, range(limit), strict=False)]
    left = dict(reached)
    for partition, messages in found.items():
        of_it = [message.offset() for message in taken if message.partition() == partition]
        if len(of_it) < len(messages):
            left[partition] = min(of_it, default=ends[partition])
    goes_on = any(offset > bounds[partition][0] for partition, offset in left.items())
    return Page(_shown(connection, topic, taken, SHORT_CHARACTERS), _named(left) if goes_on else "")


def from_offset(
    connection: Connection, topic: str, limit: int, starts: Mapping[int, int], only: int | None = None
) -> Page:
    """The first `limit` records of each partition from `starts` on, the oldest first; 0 where `starts` has none."""
    bounds = _bounds(connection, topic, only)
    begin = {p: max(start, starts.get(p, 0)) for p, (start, _) in bounds.items()}
    stop = {p: min(end, begin[p] + SCANNED) for p, (_, end) in bounds.items()}
    taken: list[Any] = []
    left = {p: max(offset, stop[p]) for p, offset in begin.items()}
    for partition in sorted(bounds):
        room = limit - len(taken)
        if room == 0:
            left[partition] = begin[partition]
            continue
        for message in _read(connection, topic, partition, begin[partition], stop[partition]):
            if room == 0:
                left[partition] = message.offset()
                break
            taken.append(message)
            room -= 1
    goes_on = any(left[partition] < end for partition, (_, end) in bounds.items())
    return Page(_shown(connection, topic, taken, SHORT_CHARACTERS), _named(left) if goes_on else "")


def one(connection: Connection, topic: str, partition: int, offset: int) -> Page:
    """The record at `offset` with its whole value; none where there is no such record."""
    start, end = _bounds(connection, topic, partition)[partition]
    asked = _read(connection, topic, partition, offset, offset + 1) if start <= offset < end else ()
    found = [message for message in asked if message.offset() == offset]
    return Page(_shown(connection, topic, found, WHOLE_CHARACTERS))


def positions(text: str) -> dict[int, int]:
    """`0:120,1:90` as offsets by partition.

    Raises:
        UserError: it is no such text.
    """
    try:
        pairs = [each.split(":") for each in text.split(",") if each]
        return {int(partition): int(offset) for partition, offset in pairs}
    except ValueError:
        raise UserError(f"expected PARTITION:OFFSET,..., found {text[:100]!r}") from None


def _named(offsets: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))


def _bounds(connection: Connection, topic: str, only: int | None) -> dict[int, tuple[int, int]]:
    count = topics.describe(connection, topic).partitions
    if only is not None and not 0 <= only < count:
        raise UserError(f"topic {topic}: expected a partition from 0 to {count - 1}, found {only}")
    found = topics.bounds(connection, {topic: count}, committed=True)
    return {place.partition: each for place, each in found.items() if only in (None, place.partition)}


def _last_of_each(
    connection: Connection, topic: str, limit: int, starts: Mapping[int, int], ends: Mapping[int, int]
) -> tuple[dict[int, list[Any]], dict[int, int]]:
    """The last records of each partition, in order, and how far back was looked; farther where markers are."""
    found: dict[int, list[Any]] = {}
    reached: dict[int, int] = {}
    for partition, end in ends.items():
        start, floor, width = end, max(starts[partition], end - SCANNED), limit
        messages: list[Any] = []
        while start > floor and len(messages) < limit:
            lower = max(floor, start - width)
            messages = [*_read(connection, topic, partition, lower, start), *messages]
            start, width = lower, width * 4
        if len(messages) > limit:
            messages = messages[-limit:]
            start = messages[0].offset()
        found[partition], reached[partition] = messages, start
    return found, reached


def _read(connection: Connection, topic: str, partition: int, start: int, end: int) -> Iterator[Any]:
    if start >= end:
        return
    reader = RangeReader(connection, topic, deleted="earliest", name="mainstem.dashboard", patience_seconds=15)
    try:
        yield from reader.read({partition: start}, {partition: end})
    finally:
        reader.close()


def _shown(connection: Connection, topic: str, messages: list[Any], most: int) -> list[Shown]:
    schemas = SchemaTexts(connection)
    return [shown(typed(message, topic, schemas, raw=True), most) for message in messages]


def shown(record: TypedRecord, most: int) -> Shown:
    """A record as texts of `most` characters."""
    kind, text = _text(record.value)
    return Shown(
        record.partition,
        record.offset,
        record.timestamp,
        None if record.key is None else record.key[:most],
        kind,
        text[:most],
        len(text),
        {name[:200]: value[:most] for name, value in record.headers.items()},
        record.undecoded,
    )


def _text(value: Any) -> tuple[str, str]:
    match value:
        case None:
            return "tombstone", ""
        case bytes():
            return "bytes", value.hex(" ")
        case str():
            return "text", value
    return "json", msgspec.json.encode(in_json(value)).decode()
