"""Move the state of a stopped query into another number of partitions: a batch of its own, that reads nothing.

    offsets/41  commits/41   4 partitions    the log has batch 41
    offsets/42               8 partitions    Spark begins to move the state
    offsets/42  commits/42                   it is moved; the log gets a marker of batch 42, which ends where 41 did

A move that has begun is finished first, whatever is wanted by then: the files of the state that it has left are of
batch 42, and another batch 42 would be mixed with them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mainstem.core.files import sync_directory
from mainstem.process.offsets import read_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Change(msgspec.Struct, frozen=True):
    """The batch that moves the state, and where to; `done` where only the log does not know yet."""

    batch: int
    partitions: int
    done: bool = False


def moves_state(checkpoint: Path, batch: int) -> bool:
    """Whether a batch was one that moves the state."""
    return batch > 0 and read_plan(checkpoint, batch).partitions != read_plan(checkpoint, batch - 1).partitions


def change_of(checkpoint: Path, committed: int, wanted: int) -> Change | None:
    """What is to be done for the state to be in `wanted` partitions; None: nothing.

    Args:
        checkpoint: of the query.
        committed: the last batch that the log has.
        wanted: partitions.

    Raises:
        CorruptData: Spark's plans are not as it wrote them.
    """
    batch = committed + 1
    if (checkpoint / "offsets" / str(batch)).exists() and moves_state(checkpoint, batch):
        done = (checkpoint / "commits" / str(batch)).exists()
        return Change(batch, read_plan(checkpoint, batch).partitions, done)
    return None if read_plan(checkpoint, committed).partitions == wanted else Change(batch, wanted)


def repartition(session: "SparkSession", checkpoint: Path, change: Change) -> None:
    """Move the state. What Spark had planned to read next is planned again: the log has nothing of it.

    Args:
        session: of the job.
        checkpoint: of its query, which does not run; its last batch has ended.
        change: what to do.
    """
    if change.done:
        return
    plan = checkpoint / "offsets" / str(change.batch)
    if plan.exists() and not moves_state(checkpoint, change.batch):
        for path in (plan.with_name(f".{plan.name}.crc"), plan):
            path.unlink(missing_ok=True)
        sync_directory(plan.parent)
    session._streamingCheckpointManager.repartition(str(checkpoint), change.partitions)
