"""What Spark wrote down about a batch before it ran it: the file `offsets/N` of a query's checkpoint.

    v1
    {"batchWatermarkMs": 1577837400000, ...}          # the watermark that closes windows in this batch
    {"flights": {"0": 5, "1": 1}}                     # a topic: partition -> next offset
    {"logOffset": 0}                                  # a source of files: the last entry of its log
    -                                                 # a source that has not seen anything yet

Sources stand in the order of the query's plan. A topic is read by one source only,
so its name is taken as the source's.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.progress import NextOffsets
from mainstem.core import CorruptData
from mainstem.core.prepared import prepared


class BatchPlan(msgspec.Struct, frozen=True):
    """Where a batch ends in every topic, and the watermark it runs with (ms since 1970; 0: none yet).

    `injections` is the last entry that it reads of the injections' log; -1: none yet. `partitions` are those of the
    state.
    """

    watermark: int
    ends: dict[str, NextOffsets]
    injections: int = -1
    partitions: int = 0


class _Metadata(msgspec.Struct, rename="camel"):
    batch_watermark_ms: int = 0
    conf: dict[str, str] = {}


class _Files(msgspec.Struct, rename="camel"):
    log_offset: int = -1


_VERSION = "v1"
_PARTITIONS = "spark.sql.shuffle.partitions"

NOTHING = BatchPlan(0, {})
"""Before the first batch."""


def records_between(start: Mapping[str, NextOffsets], end: Mapping[str, NextOffsets]) -> int:
    """How many offsets there are: at least as many as records, and many more where a topic does not begin at 0."""
    return sum(
        offset - start.get(source, {}).get(topic, {}).get(partition, 0)
        for source, topics in end.items()
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    )


def plan_text(about: Mapping[str, Any], sources: Iterable[str]) -> bytes:
    """The file of a batch: what Spark says of it, and a line for each of its sources."""
    return "\n".join([_VERSION, msgspec.json.encode(about).decode(), *sources]).encode()


def source_line(positions: NextOffsets) -> str:
    """Where a batch ends in the topics of one source."""
    return msgspec.json.encode(
        {topic: {str(at): offset for at, offset in each.items()} for topic, each in positions.items()}
    ).decode()


def read_lines(path: Path) -> tuple[dict[str, Any], list[str]]:
    """What Spark says of a batch, and the lines of its sources.

    Raises:
        CorruptData: the file is missing or has another format.
    """
    try:
        version, metadata, *lines = path.read_text().splitlines()
        if version != _VERSION:
            raise CorruptData(f"{path}: expected version {_VERSION}, found {version!r}")
        return msgspec.json.decode(metadata, type=dict[str, Any]), lines
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise CorruptData(f"{path}: expected the plan of a batch: {error}") from error


def source_of(line: str) -> dict[str, Any]:
    """What a source's line says; nothing where it has not seen anything yet."""
    return {} if line in ("", "-") else msgspec.json.decode(line, type=dict[str, Any])


def has_topics(source: Mapping[str, Any]) -> bool:
    """Whether a source is one of topics, and no other."""
    return all(isinstance(each, dict) for each in source.values())


def read_plan(checkpoint: Path, batch: int) -> BatchPlan:
    """The plan of `batch`; before batch 0 nothing is read and there is no watermark.

    Raises:
        CorruptData: the file is missing or has another format.
    """
    if batch < 0:
        return NOTHING
    path = checkpoint / "offsets" / str(batch)
    metadata, lines = read_lines(path)
    try:
        positions: NextOffsets = {}
        injections = -1
        for source in map(source_of, lines):
            if has_topics(source):
                positions |= msgspec.convert(source, NextOffsets, strict=False)
            else:
                injections = msgspec.convert(source, prepared(_Files)).log_offset
        ends = {topic: {topic: by_partition} for topic, by_partition in positions.items()}
        about = msgspec.convert(metadata, prepared(_Metadata))
        return BatchPlan(about.batch_watermark_ms, ends, injections, int(about.conf.get(_PARTITIONS, 0)))
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptData(f"{path}: expected the plan of a batch: {error}") from error
