"""Which event ids were taken in already: the last of each topic, as the topic itself says.

An id travels in its record, as the header `mainstem.id`; what stands here in memory is a reading of the topic's end. So
a retry is known for a duplicate by any gateway, also after a crash, as long as its record is among the last `size` ones.
"""

import heapq
import time
from collections import deque
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

import msgspec
import xxhash
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.reader import arrived
from mainstem.client.topics import end_offsets, start_offsets

ID_HEADER = "mainstem.id"
MAX_ID_BYTES = 512  # a window's ids stay in memory: 50 MB of the longest
_KEPT_ID_BYTES = MAX_ID_BYTES + 32  # the quarantine's have a hash behind them


class Seen(msgspec.Struct, frozen=True, gc=False):
    """Where the event with an id is, and a hash of its content: an id that comes back with another content is a mistake."""

    partition: int
    offset: int  # -1 where it is not known
    content: int


def content_hash(payload: bytes | memoryview) -> int:
    """Of an encoded value without its 5 bytes of schema id, so that the same event under a new id is the same."""
    return xxhash.xxh64_intdigest(payload)


class Window:
    """The ids of one topic, oldest first; holds at most `size`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._seen: dict[str, Seen] = {}

    def get(self, event_id: str) -> Seen | None:
        return self._seen.get(event_id)

    def add(self, event_id: str, seen: Seen) -> None:
        self._seen[event_id] = seen
        if len(self._seen) > self.size:
            del self._seen[next(iter(self._seen))]

    def __len__(self) -> int:
        return len(self._seen)


def read_tail(connection: Connection, topic: str, size: int) -> Window:
    """The window of `topic` as its last records say. Blocking: 100,000 records take about a second.

    Call it while you hold the transactional id of the only writer: then nothing is under way any more.

    Raises:
        UnknownTopic: there is no such topic.
        BrokerUnavailable: the log does not answer.
    """
    return fill(size, _taken(tail(connection, topic, size)))


def fill(size: int, taken: Iterable[tuple[int, str, Seen]]) -> Window:
    """The window that holds the last `size` of what was taken: its time (ms), its id, its place.

    Each partition's are in their order; between partitions the time of the append decides. One partition after the
    other would push the newest ids of the first ones out.
    """
    lanes: dict[int, deque[tuple[int, int, str, Seen]]] = {}
    for time_ms, event_id, seen in taken:
        lane = lanes.setdefault(seen.partition, deque(maxlen=size))
        latest = max(time_ms, lane[-1][0]) if lane else time_ms  # a clock that was set back does not change the order
        lane.append((latest, seen.partition, event_id, seen))
    window = Window(size)
    for _, _, event_id, seen in heapq.merge(*lanes.values(), key=itemgetter(0, 1)):
        window.add(event_id, seen)
    return window


def _taken(messages: Iterable[Any]) -> Iterator[tuple[int, str, Seen]]:
    for message in messages:
        event_id, value = dict(message.headers() or ()).get(ID_HEADER), message.value()
        if event_id is not None and value is not None and len(event_id) <= _KEPT_ID_BYTES:
            seen = Seen(message.partition(), message.offset(), content_hash(value[5:]))
            yield message.timestamp()[1], event_id.decode(), seen


def tail(connection: Connection, topic: str, count: int, *, timeout_seconds: float = 60.0) -> Iterator[Any]:
    """At least the last `count` committed records of every partition (fewer where transactions were aborted).

    Raises:
        UnknownTopic, BrokerUnavailable: as they say.
    """
    ends = end_offsets(connection, topic, committed=True)
    starts = start_offsets(connection, topic)
    # Each transaction ends with a marker, which takes an offset too: at worst every second one.
    spans = {n: (max(starts[n], end - 2 * count), end) for n, end in ends.items() if end > starts[n]}
    settings = connection.confluent(
        isolation_level="read_committed", enable_auto_commit=False, enable_partition_eof=True
    )
    settings |= {"group.id": "mainstem.collector", "auto.offset.reset": "earliest", "log_level": 2}
    consumer = Consumer(settings)
    deadline = time.monotonic() + timeout_seconds
    try:
        consumer.assign([ConfluentPartition(topic, partition, first) for partition, (first, _) in spans.items()])
        left = set(spans)
        while left:
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"{topic}: the end was not reached in {timeout_seconds:.0f} s")
            for message in arrived(consumer, 0.2, 2000):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    if (message.offset() or 0) >= spans[message.partition() or 0][1]:
                        left.discard(message.partition() or 0)
                else:
                    raise BrokerUnavailable(f"{topic}: {error.str()}")
    finally:
        consumer.close()
