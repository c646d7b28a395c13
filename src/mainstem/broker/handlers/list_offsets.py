"""ListOffsets, API 2, versions 1-11.

Behaviour: a timestamp gives the first record at or after it, exactly (one batch is decoded), or -1 if there is none
below the high watermark; for readers of committed records, below the last stable offset. A partition that is asked for
twice is refused.

Special timestamps: -1 latest, -2 earliest; 7: -3 the record with the latest timestamp (KIP-734); 8: -4 earliest local
(KIP-405), which is the earliest here; 9: -5 latest tiered (KIP-1005) and 11: -6 earliest pending upload (KIP-1023),
which do not exist here (-1). 4: leader epochs. 10: a timeout for remote storage, not needed.
"""

from collections import Counter
from typing import Any, Final

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.isolation import READ_UNCOMMITTED, reads_committed
from mainstem.broker.leadership import check_leader_epoch
from mainstem.broker.security.acls import DESCRIBE, TOPIC
from mainstem.core import MainstemError
from mainstem.log import PartitionLog
from mainstem.wire.errors import Code, RequestError, code_of

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SPECIAL_FROM: Final = {
    LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip


@handler(2, failure=lambda request, code: {"topics": _all_failed(request, code)})
async def list_offsets(request: Any, ctx: RequestContext) -> dict[str, Any]:
    committed = reads_committed(getattr(request, "isolation_level", READ_UNCOMMITTED))
    times = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    twice = {partition for partition, count in times.items() if count > 1}
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _failed(each, Code.invalid_request)
                    if (topic.name, each.partition_index) in twice
                    else await _look_up(ctx, topic.name, each, committed=committed)
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _all_failed(request: Any, code: int) -> list[dict[str, Any]]:
    return [
        {"name": topic.name, "partitions": [_failed(each, code) for each in topic.partitions]}
        for topic in request.topics
    ]


def _failed(asked: Any, code: int) -> dict[str, Any]:
    return {"partition_index": asked.partition_index, "error_code": code}


async def _look_up(ctx: RequestContext, name: str, asked: Any, *, committed: bool) -> dict[str, Any]:
    try:
        ctx.check(DESCRIBE, TOPIC, name)
        partition_log = ctx.broker.topics.partition(name, asked.partition_index)
        check_leader_epoch(partition_log, getattr(asked, "current_leader_epoch", -1))
        partition_log.check_usable()
        if asked.timestamp < 0 and ctx.version < _SPECIAL_FROM.get(asked.timestamp, 1 << 15):
            raise RequestError(Code.unsupported_version, f"timestamp {asked.timestamp} in version {ctx.version}")
        offset, timestamp, epoch = await _find(partition_log, asked.timestamp, committed=committed)
    except MainstemError as error:
        return _failed(asked, code_of(error))
    return {"partition_index": asked.partition_index, "offset": offset, "timestamp": timestamp, "leader_epoch": epoch}


async def _find(partition_log: PartitionLog, timestamp: int, *, committed: bool) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch); -1 for what there is not."""
    end = partition_log.last_stable_offset if committed else partition_log.high_watermark
    if timestamp == LATEST:
        return end, -1, partition_log.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition_log.log_start_offset
        return start, -1, _epoch_at(partition_log, start)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if timestamp == MAX_TIMESTAMP:
        found = await partition_log.latest_timestamp()
    else:
        found = await partition_log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= end:
        return -1, -1, -1
    return found.offset, found.timestamp, _epoch_at(partition_log, found.offset)


def _epoch_at(partition_log: PartitionLog, offset: int) -> int:
    """The leader epoch in which the record at `offset` was, or will be, appended; no CRC covers what its batch says."""
    for epoch, start_offset in reversed(partition_log.epochs.entries()):
        if start_offset <= offset:
            return epoch
    return partition_log.leader_epoch
