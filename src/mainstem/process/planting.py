"""Give a stopped query the end of its next batch: a plan beside those that Spark wrote, as if it had planned it itself.

    offsets/41   commits/41   the last batch that is committed: it ends at  flights 0:5120  1:4980
    offsets/42                planted: ends at                               flights 0:5400  1:5100

A query that starts with a plan that has no end (`commits/42`) runs just that batch first: so it goes on after a crash.
Whatever Spark had planned as batch 42 has not reached the log, so that it may be replaced; the sink takes the batch
that follows its marker, wherever it ends. A batch with new rows runs with the watermark of the batch before it; one
without, after it, closes the windows that the newest rows have brought the watermark to.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from mainstem.client.basis import reaches
from mainstem.client.progress import NextOffsets, merge_positions
from mainstem.core import CorruptData
from mainstem.core.files import sync_directory, write_atomically
from mainstem.core.prepared import prepared
from mainstem.process.offsets import has_topics, plan_text, read_lines, read_plan, source_of


class Stand(msgspec.Struct, frozen=True):
    """Where a stopped query is.

    Attributes:
        batch: the last one that the log has.
        basis: where it ended.
        closed: the watermark that it ran with, in ms: windows up to it are closed.
        watermark: what the newest rows have brought it to; the next batch runs with it.
        whole: Spark has written down that the batch ended; where it has not, the next run begins with that.
    """

    batch: int
    basis: NextOffsets
    closed: int
    watermark: int
    whole: bool


class Step(msgspec.Struct, frozen=True):
    """The batch to plant."""

    ends: NextOffsets
    watermark: int


def stand_of(checkpoint: Path, batch: int, ends: Mapping[str, NextOffsets]) -> Stand:
    """Where the query of `checkpoint` is, whose last commit in the log is `batch`.

    Raises:
        CorruptData: Spark's files are not as it wrote them.
    """
    closed = read_plan(checkpoint, batch).watermark
    after = _next_watermark(checkpoint / "commits" / str(batch))
    return Stand(batch, merge_positions(ends), closed, max(closed, after or 0), after is not None)


def next_step(stand: Stand, wanted: NextOffsets, at_most: int, *, windows: bool) -> Step | None:
    """What brings a query nearer to a position; None: it is there, or beyond.

    Args:
        stand: where it is.
        wanted: the position, of the topics that it reads.
        at_most: offsets of one batch.
        windows: it keeps some; those that its watermark allows are to be closed there.
    """
    position = {topic: dict(each) for topic, each in stand.basis.items()}
    left = at_most
    for topic, partitions in wanted.items():
        for partition, offset in partitions.items():
            before = position.get(topic, {}).get(partition, 0)
            taken = min(left, max(0, offset - before))
            left -= taken
            position.setdefault(topic, {})[partition] = before + taken
    if left < at_most:
        return Step(position, stand.watermark)
    if windows and stand.watermark > stand.closed and is_at(stand.basis, wanted):
        return Step(position, stand.watermark)
    return None


def is_at(basis: NextOffsets, wanted: NextOffsets) -> bool:
    """Whether a query has read as far as is wanted and no further."""
    return all(
        reaches(basis.get(topic, {}), each) and reaches(each, basis.get(topic, {})) for topic, each in wanted.items()
    )


def plant(checkpoint: Path, batch: int, step: Step, now_ms: int) -> None:
    """Write the plan of the batch after `batch`, in place of one that Spark may have made; durable on return.

    Killed anywhere in it, there is the old plan, none, or the new one: all three are good.

    Raises:
        CorruptData: the plan of `batch` is not as Spark wrote it.
    """
    before = checkpoint / "offsets" / str(batch)
    about, lines = read_lines(before)
    try:
        planned = [_moved(line, step.ends) for line in lines]
    except (ValueError, msgspec.DecodeError) as error:
        raise CorruptData(f"{before}: expected the plan of a batch: {error}") from error
    about |= {"batchWatermarkMs": step.watermark, "batchTimestampMs": now_ms}
    path = before.with_name(str(batch + 1))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # of what was there; Spark does without one
    sync_directory(path.parent)
    write_atomically(path, plan_text(about, planned))


def _moved(line: str, ends: NextOffsets) -> str:
    """A source's line of a plan with other ends; what is no topic stays as it is."""
    source = source_of(line)
    if not source or not has_topics(source):
        return line
    moved = {
        topic: each | {str(partition): offset for partition, offset in ends.get(topic, {}).items()}
        for topic, each in source.items()
    }
    return msgspec.json.encode(moved).decode()


class _Ended(msgspec.Struct, rename="camel"):
    next_batch_watermark_ms: int = 0


def _next_watermark(path: Path) -> int | None:
    """Of the end of a batch; None where Spark did not write it down any more."""
    try:
        _, *rest = path.read_text().splitlines()
        return msgspec.json.decode("".join(rest), type=prepared(_Ended)).next_batch_watermark_ms
    except FileNotFoundError:
        return None
    except (ValueError, msgspec.DecodeError) as error:
        raise CorruptData(f"{path}: expected the end of a batch: {error}") from error
