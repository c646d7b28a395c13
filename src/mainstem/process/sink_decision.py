"""What to do with a batch that Spark hands over: run it, skip it, or refuse. Pure, so that every case can be tried.

M is the marker's batch (the last one committed to the log), N the batch that Spark asks for now.

    marker    checkpoint   N against M    end offsets     decision
    --------  -----------  -------------  --------------  ---------------------------------------------------------
    none      any          N = 0          any             run: a new job
    none      any          N > 0          any             refuse: the checkpoint is ahead of the log
    M         another      any            any             refuse: the marker belongs to another run of the job
    M         the same     N = M + 1      any             run, if N starts where M ended (where that is known)
    M         the same     N = M          equal           skip: committed, but Spark did not write it down in time
    M         the same     N = M          different       refuse: Spark planned the batch again with another range
    M         the same     N < M          any             refuse: the checkpoint was rolled back
    M         the same     N > M + 1      any             refuse: the checkpoint is ahead of the log

Skipping by the number alone would lose records: Spark renames `offsets/N` without fsync, so after a power cut it may
plan N again with a larger range. Running by the number alone would write records twice.
"""

from collections.abc import Mapping
from enum import Enum

from mainstem.client.progress import Marker, NextOffsets
from mainstem.core import UserError
from mainstem.process.another_version import start_another


class Decision(Enum):
    """What the sink does with a batch that it does not refuse."""

    RUN = "run"
    SKIP = "skip"


class SinkRefused(UserError):
    """Marker and checkpoint do not fit together: to run would lose or repeat records. The hint names the repair."""


def decide(
    marker: Marker | None,
    *,
    checkpoint: str,
    batch: int,
    end_offsets: Mapping[str, NextOffsets],
    start_offsets: Mapping[str, NextOffsets] | None = None,
) -> Decision:
    """Run or skip batch `batch` of the query `checkpoint`; offsets are by source, the end is not included.

    Raises:
        SinkRefused: neither is safe.
    """
    if marker is None:
        if batch == 0:
            return Decision.RUN
        raise SinkRefused(
            f"batch {batch}: the log has no commit of this job, its checkpoint has {batch} batches",
            hint="the log was replaced or the checkpoint came from elsewhere: bring back the log that belongs to it, "
            "or remove the checkpoint and let a new version of the job start from the beginning",
        )
    name = f"{marker.job}@{marker.version}"
    check_owner(marker, checkpoint)
    if batch == marker.batch + 1:
        if start_offsets is not None and start_offsets != marker.end_offsets:
            raise SinkRefused(
                f"{name}: batch {batch} starts at {_brief(start_offsets)}, the last commit ended at "
                f"{_brief(marker.end_offsets)}",
                hint="the checkpoint's offsets were changed: bring back an unchanged copy of the checkpoint",
            )
        return Decision.RUN
    if batch == marker.batch:
        if end_offsets == marker.end_offsets:
            return Decision.SKIP
        raise SinkRefused(
            f"{name}: batch {batch} is committed up to {_brief(marker.end_offsets)}, the checkpoint plans it up to "
            f"{_brief(end_offsets)}",
            hint=f"the checkpoint lost the end of batch {batch}: bring back an unchanged copy of the checkpoint",
        )
    if batch < marker.batch:
        raise SinkRefused(
            f"{name}: batch {batch} is asked for, batch {marker.batch} is committed already: the checkpoint was rolled back",
            hint=f"bring back the checkpoint as it was at batch {marker.batch}, or {start_another(marker.job)}",
        )
    raise SinkRefused(
        f"{name}: batch {batch} is asked for, batch {marker.batch} is the last that the log has: the log was rolled back",
        hint=f"bring back the log that has batch {batch - 1}, or {start_another(marker.job)}",
    )


def check_owner(marker: Marker, checkpoint: str | None) -> None:
    """See that the last commit belongs to this checkpoint; None is one that no query was ever started with.

    Raises:
        SinkRefused: it belongs to another run of the job.
    """
    if marker.checkpoint != checkpoint:
        this = "one that is new" if checkpoint is None else f"checkpoint {checkpoint}"
        raise SinkRefused(
            f"{marker.job}@{marker.version}: the last commit belongs to checkpoint {marker.checkpoint}, this is {this}",
            hint=f"bring back the checkpoint {marker.checkpoint}: a fresh one would read the input again and write everything "
            f"twice; if it is lost, `mainstem job restore {marker.job}` makes it anew from the log where that has what it "
            f"needs; otherwise {start_another(marker.job)}",
        )


def _brief(offsets: Mapping[str, NextOffsets]) -> str:
    """`source/topic-0:42` for every partition, cut after a few."""
    parts = [
        f"{source}/{topic}-{partition}:{offset}"
        for source, topics in sorted(offsets.items())
        for topic, partitions in sorted(topics.items())
        for partition, offset in sorted(partitions.items())
    ]
    return ", ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "")
