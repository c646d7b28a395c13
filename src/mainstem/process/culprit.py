"""Which row it was: a batch that failed is halved until one row is left with which the function fails.

For jobs without state: their function may be called with any rows of a batch, as often as one likes. Nothing of it is
written.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from mainstem.client.progress import NextOffsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SECONDS = 20.0
"""It is left after so long, since nobody tries the job again meanwhile; its next failure goes on."""
_SHOWN = 1_000  # characters of a row


class Range(msgspec.Struct, frozen=True):
    """Offsets from `start` to before `end` of a partition; `source` is the parameter of the function."""

    source: str
    topic: str
    partition: int
    start: int
    end: int


class Search(msgspec.Struct, frozen=True):
    """How far a search has got: the first `right` rows of the batch do not fail, the first `wrong` do."""

    right: int
    wrong: int


class FailedBatch(msgspec.Struct, frozen=True):
    """A batch that could not be written. `row` is JSON, with its place; "" where it is not known which it was, for good
    or, with `search`, not yet.
    """

    batch: int
    ranges: tuple[Range, ...]
    row: str = ""
    search: Search | None = None

    def told(self) -> dict[str, str]:
        """For people, by what it is."""
        offsets = ", ".join(f"{each.topic} {each.partition}: {each.start} to {each.end}" for each in self.ranges)
        return {"batch": str(self.batch), "offsets": offsets} | ({"row": self.row} if self.row else {})


def ranges_of(
    parameters: Mapping[str, str], start: Mapping[str, NextOffsets], end: Mapping[str, NextOffsets]
) -> tuple[Range, ...]:
    """What a batch reads. `parameters`: of the function, by topic."""
    return tuple(
        Range(parameters[topic], topic, partition, first, last)
        for source, topics in sorted(end.items())
        for topic, partitions in sorted(topics.items())
        for partition, last in sorted(partitions.items())
        if (first := start.get(source, {}).get(topic, {}).get(partition, 0)) < last
    )


def first_that_fails(
    ranges: Sequence[Range],
    fails: Callable[[Sequence[Range]], bool],
    *,
    so_far: Search | None = None,
    seconds: float = SECONDS,
) -> Range | Search | None:
    """The row, as a range of one offset, up to which the function fails, and before which it does not; None: it does
    not fail again. Where it is not found in time, how far the search has got: at least a step further.

    Args:
        ranges: of the batch.
        fails: whether the function fails with the rows of these.
        so_far: what an earlier search has found.
        seconds: that it may take.
    """
    until = time.monotonic() + seconds
    if so_far is None and not fails(ranges):
        return None
    found = so_far or Search(0, sum(each.end - each.start for each in ranges))
    right, wrong = found.right, found.wrong
    while wrong - right > 1:
        if time.monotonic() > until and Search(right, wrong) != so_far:
            return Search(right, wrong)
        middle = (right + wrong) // 2
        if fails(list(_first(ranges, middle))):
            wrong = middle
        else:
            right = middle
    *_, last = _first(ranges, wrong)
    return msgspec.structs.replace(last, start=last.end - 1)


def _first(ranges: Sequence[Range], number: int) -> Iterator[Range]:
    """So many offsets of them."""
    for each in ranges:
        if number <= 0:
            return
        taken = min(number, each.end - each.start)
        yield msgspec.structs.replace(each, end=each.start + taken)
        number -= taken


def rows_of(rows: "DataFrame", ranges: Sequence[Range]) -> "DataFrame":
    """Those of a batch whose columns are structs, one for each parameter."""
    from pyspark.sql import functions as F

    from mainstem.process.reading import POSITION

    wanted = F.lit(False)
    for each in ranges:
        place = F.col(each.source)[POSITION]
        is_within = (place["offset"] >= each.start) & (place["offset"] < each.end)
        wanted |= F.coalesce((place["partition"] == each.partition) & is_within, F.lit(False))
    return rows.where(wanted)


def shown(rows: "DataFrame", at: Range) -> str:
    """The row there, as people see it."""
    from mainstem.process.reading import OWN

    found = [row.asDict(recursive=True)[at.source] for row in rows_of(rows, [at]).collect()]
    values = {name: value for row in found for name, value in row.items() if name not in OWN}
    text = json.dumps(values, default=str, ensure_ascii=False)
    return f"{at.topic} {at.partition}:{at.start} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"
