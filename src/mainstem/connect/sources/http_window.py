"""Which event ids were taken in already: the last of each topic, as the topic itself says.

An id travels in its record, as the header `mainstem.id`; what stands here in memory is a reading of the topic's end. So
a retry is known for a duplicate by any gateway, also after a crash,
as long as its record is among the last `size` ones.
"""

import heapq
import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import xxhash

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.reader import RangeReader, headers_of
from mainstem.client.topics import end_offsets, offsets_since, start_offsets
from mainstem.core.clock import Clock

ID_HEADER = "mainstem.id"
MAX_ID_BYTES = 512  # a window's ids stay in memory: 50 MB of the longest
_KEPT_ID_BYTES = MAX_ID_BYTES + 32  # the quarantine's have a hash behind them
UNDECIDED_SECONDS = 2.0  # longer than most transactions last; posts to all topics wait as long


class Undecided(BrokerUnavailable):
    """A transaction of another producer is open in `topic`: what is committed behind its start cannot be read yet."""

    def __init__(self, topic: str, message: str) -> None:
        hint = "a transaction of another producer is open; the broker aborts it when its timeout has passed"
        super().__init__(message, hint=f"{hint}: send the same ids again until then")
        self.topic = topic


class Seen(msgspec.Struct, frozen=True, gc=False):
    """Where the event with an id is, and a hash of its content:
    an id that comes back with another content is a mistake.
    """

    partition: int
    offset: int  # -1 where it is not known
    content: int
    next_offset: int = 0  # where its offset is not known: that of the record after those it was appended with


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
        Undecided, BrokerUnavailable: as `tail` says.
    """
    return fill(size, _taken(tail(connection, topic, size)))


def fill(size: int, taken: Iterable[tuple[int, str, Seen]]) -> Window:
    """The window that holds the last `size` of what was taken, as (time in ms, id, place).

    Each partition's are in their order; between partitions the time of the append decides. One partition after the
    other would push the newest ids of the first ones out.
    """
    window = Window(size)
    for _, _, _, event_id, seen in reversed(heapq.nlargest(size, _in_order(taken))):
        window.add(event_id, seen)
    return window


def _in_order(taken: Iterable[tuple[int, str, Seen]]) -> Iterator[tuple[int, int, int, str, Seen]]:
    latest: dict[int, int] = {}
    for number, (time_ms, event_id, seen) in enumerate(taken):
        # A clock that was set back does not change the order of a partition.
        latest[seen.partition] = max(time_ms, latest.get(seen.partition, time_ms))
        yield latest[seen.partition], seen.partition, number, event_id, seen


def _taken(messages: Iterable[Any]) -> Iterator[tuple[int, str, Seen]]:
    for message in messages:
        encoded_id, value = headers_of(message).get(ID_HEADER), message.value()
        if encoded_id is None or value is None or len(encoded_id) > _KEPT_ID_BYTES:
            continue
        try:
            event_id = encoded_id.decode()
        except UnicodeDecodeError:  # no collector gave it
            continue
        yield message.timestamp()[1], event_id, Seen(message.partition(), message.offset(), content_hash(value[5:]))


def tail(connection: Connection, topic: str, count: int, *, clock: Clock | None = None) -> Iterator[Any]:
    """At least the last `count` committed records of the topic (fewer where transactions were aborted), by the time of
    their append; not many more. What was undecided when it was called is waited for.

    Raises:
        UnknownTopic: there is no such topic.
        Undecided: a transaction that was open at the call still is, after 2 s.
        BrokerUnavailable: the log does not answer, or nothing comes for a minute.
    """
    spans = _spans(connection, topic, count)
    starts, ends = ({n: span[which] for n, span in spans.items()} for which in (0, 1))
    # What retention deletes meanwhile is among the oldest, and no loss.
    reader = RangeReader(connection, topic, deleted="earliest", name="mainstem.collector", clock=clock)
    try:
        yield from reader.read(starts, ends)
    finally:
        reader.close()


def _spans(connection: Connection, topic: str, count: int) -> dict[int, tuple[int, int]]:
    """Where to read which partition, from and to, for its share of the last `count` records: those since some time.

    How many of a topic's last records lie in which partition only their times tell; to read `count` of each would take
    minutes where there are many.
    """
    ends = _decided_ends(connection, topic)
    firsts = start_offsets(connection, topic)
    wanted = 2 * count  # each transaction ends with a marker, which takes an offset too: at worst every second one
    enough, late = 0, int(time.time() * 1000)  # since `enough`, there are as many as are wanted
    while late - enough > 1 and 2 * _total(firsts, ends) > 3 * wanted:
        middle = (enough + late) // 2
        since = offsets_since(connection, topic, middle)
        tried = {n: max(first, since[n]) if since[n] >= 0 else ends[n] for n, first in firsts.items()}
        if _total(tried, ends) >= wanted:
            enough, firsts = middle, tried
        else:
            late = middle
    return {n: (max(first, ends[n] - wanted), ends[n]) for n, first in firsts.items() if ends[n] > first}


def _decided_ends(connection: Connection, topic: str) -> dict[int, int]:
    """The high watermarks of now, once everything before them is committed or aborted.

    The last stable offset would not do: the open transaction of a stranger holds it back, and our own committed records
    behind it would be taken for new ones when they are sent again.
    """
    ends = end_offsets(connection, topic)
    deadline = time.monotonic() + UNDECIDED_SECONDS
    while True:
        stable = end_offsets(connection, topic, committed=True)
        missing = {n: end for n, end in ends.items() if stable.get(n, 0) < end}
        if not missing:
            return ends
        if time.monotonic() > deadline:
            found = {n: stable.get(n, 0) for n in missing}
            raise Undecided(
                topic, f"{topic}: expected all to be decided up to {missing} (partition: offset), found {found}"
            )
        time.sleep(0.02)


def _total(firsts: dict[int, int], ends: dict[int, int]) -> int:
    return sum(max(ends[n] - first, 0) for n, first in firsts.items())
