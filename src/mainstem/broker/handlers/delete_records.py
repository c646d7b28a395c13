"""DeleteRecords, API 21, versions 0-2.

Behaviour: moves the log start offset, durably; -1 means the high watermark. As in Kafka, a topic that is compacted and
not also deleted refuses it, and so does an internal one.
"""

import asyncio
from itertools import islice
from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import DELETE, TOPIC
from mainstem.core import MainstemError
from mainstem.log import PartitionLog, housekeeping
from mainstem.wire.errors import Code, code_of


def _failure(request: Any, code: int) -> dict[str, Any]:
    return {
        "topics": [
            {"name": topic.name, "partitions": [_refused(each, code) for each in topic.partitions]}
            for topic in request.topics
        ]
    }


@handler(21, failure=_failure)
async def delete_records(request: Any, ctx: RequestContext) -> dict[str, Any]:
    # All are looked up in one turn: a topic that is made anew meanwhile is another one. And they share their syncs.
    deletions = [
        _delete(_look_up(ctx, topic.name, each), each) for topic in request.topics for each in topic.partitions
    ]
    answers = iter(await asyncio.gather(*deletions))
    return {
        "topics": [
            {"name": topic.name, "partitions": list(islice(answers, len(topic.partitions)))} for topic in request.topics
        ]
    }


def _look_up(ctx: RequestContext, name: str, asked: Any) -> PartitionLog | Code:
    try:
        ctx.check(DELETE, TOPIC, name)
        partition_log = ctx.broker.topics.partition(name, asked.partition_index)
        ctx.broker.topics.check_not_internal(name)
    except MainstemError as error:
        return code_of(error)
    config = partition_log.config
    return Code.policy_violation if config.compacts and not config.deletes else partition_log


async def _delete(found: PartitionLog | Code, asked: Any) -> dict[str, Any]:
    if isinstance(found, Code):
        return _refused(asked, found)
    try:
        low_watermark = await housekeeping.delete_records(found, asked.offset)
    except MainstemError as error:
        return _refused(asked, code_of(error))
    return {"partition_index": asked.partition_index, "low_watermark": low_watermark}


def _refused(asked: Any, code: int) -> dict[str, Any]:
    return {"partition_index": asked.partition_index, "low_watermark": -1, "error_code": code}
