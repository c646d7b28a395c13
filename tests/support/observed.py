"""What clients saw of a log while it was killed, and what may not be among it.

The model is that of Jepsen's tests of such systems (jepsen.tests.kafka, jepsen.io/analyses/redpanda-21.10.1): each
value is sent once and names who sent it, a partition gives each offset to one value for ever, and whoever polls goes
forward.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import msgspec


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


class Seen(NamedTuple):
    place: Place
    value: str


class Observed(msgspec.Struct):
    """`sent` and polls are in the order in which they happened."""

    sent: dict[tuple[str, str, int], list[str]] = msgspec.field(default_factory=lambda: defaultdict(list))
    """(sender, topic, partition) to values, in the order of sending."""
    acknowledged: dict[str, Place] = {}
    transactions: dict[str, tuple[list[str], str]] = {}
    """Values of each, and how it ended: `committed`, `aborted`, or `unknown` to who ended it."""
    polls: dict[str, list[Seen]] = {}
    """Of each reader of uncommitted records, from offset 0 on."""
    committed_polls: dict[str, list[Seen]] = {}
    final: list[Seen] = []
    """All that is there at the end."""
    final_committed: list[Seen] = []

    def anomalies(self) -> list[str]:
        """Each as a line; none in a log that keeps its promises."""
        return [
            *self._lost(),
            *self._duplicated(),
            *self._reordered(),
            *self._disagreeing(),
            *self._backward(),
            *self._aborted_reads(),
            *self._torn(),
        ]

    def _lost(self) -> Iterable[str]:
        there = {seen.place: seen.value for seen in self.final}
        for value, place in self.acknowledged.items():  # also of a transaction that was aborted: none is cut off
            if there.get(place) != value:
                yield f"lost: {value} was acknowledged at {place}, there is {there.get(place)}"

    def _duplicated(self) -> Iterable[str]:
        for name, found in (("", self.final), ("committed ", self.final_committed)):
            places = defaultdict(list)
            for seen in found:
                places[seen.value].append(seen.place)
            for value, several in places.items():
                if len(several) > 1:
                    yield f"duplicated: {value} is at {name}{several}"

    def _reordered(self) -> Iterable[str]:
        offsets = {seen.value: seen.place for seen in self.final}
        for (sender, topic, partition), values in self.sent.items():
            found = [(offsets[value].offset, value) for value in values if value in offsets]
            for (before, one), (after, other) in pairwise(found):
                if before > after:
                    yield f"reordered: {sender} sent {one} before {other} to {topic}-{partition}: {before}, {after}"

    def _disagreeing(self) -> Iterable[str]:
        values = {seen.place: seen.value for seen in self.final}
        for reader, found in (*self.polls.items(), *self.committed_polls.items()):
            for seen in found:
                if values.get(seen.place) != seen.value:
                    yield f"disagreeing: {reader} saw {seen.value} at {seen.place}, there is {values.get(seen.place)}"

    def _backward(self) -> Iterable[str]:
        for reader, found in (*self.polls.items(), *self.committed_polls.items()):
            last: dict[tuple[str, int], int] = {}
            for seen in found:
                partition = seen.place[:2]
                if seen.place.offset <= last.get(partition, -1):
                    yield f"backward: {reader} saw offset {seen.place.offset} of {partition} after {last[partition]}"
                last[partition] = seen.place.offset

    def _aborted_reads(self) -> Iterable[str]:
        aborted = {v for values, end in self.transactions.values() if end == "aborted" for v in values}
        for reader, found in (*self.committed_polls.items(), ("the last reader", self.final_committed)):
            for seen in found:
                if seen.value in aborted:
                    yield f"aborted read: {reader} saw {seen.value} of an aborted transaction"

    def _torn(self) -> Iterable[str]:
        there = {seen.value for seen in self.final_committed}
        for name, (values, end) in self.transactions.items():
            found = [value for value in values if value in there]
            if end == "committed" and len(found) < len(values):
                yield f"torn: of committed {name} {len(found)} of {len(values)} are there"
            elif end == "unknown" and 0 < len(found) < len(values):
                yield f"torn: of {name} {len(found)} of {len(values)} are there"
