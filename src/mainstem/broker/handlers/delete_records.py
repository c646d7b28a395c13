"""DeleteRecords, API 21, versions 0-2.

Behaviour: moves the log start offset, durably; -1 means the high watermark. As in Kafka, a topic that is compacted and
not also deleted refuses it, and so does an internal one.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import DELETE, TOPIC
from mainstem.core import MainstemError
from mainstem.log import housekeeping
from mainstem.wire.errors import Code, RequestError, code_of


def _failure(request: Any, code: int) -> dict[str, Any]:
    return {
        "topics": [
            {"name": topic.name, "partitions": [_refused(each, code) for each in topic.partitions]}
            for topic in request.topics
        ]
    }


@handler(21, failure=_failure)
async def delete_records(request: Any, ctx: RequestContext) -> dict[str, Any]:
    return {
        "topics": [
            {"name": topic.name, "partitions": [await _delete(ctx, topic.name, each) for each in topic.partitions]}
            for topic in request.topics
        ]
    }


async def _delete(ctx: RequestContext, name: str, asked: Any) -> dict[str, Any]:
    try:
        ctx.check(DELETE, TOPIC, name)
        partition_log = ctx.broker.topics.partition(name, asked.partition_index)
        ctx.broker.topics.check_not_internal(name)
        if not partition_log.config.deletes:
            raise RequestError(Code.policy_violation, f"topic {name!r}: cleanup.policy has no delete")
        low_watermark = await housekeeping.delete_records(partition_log, asked.offset)
    except MainstemError as error:
        return _refused(asked, code_of(error))
    return {"partition_index": asked.partition_index, "low_watermark": low_watermark}


def _refused(asked: Any, code: int) -> dict[str, Any]:
    return {"partition_index": asked.partition_index, "low_watermark": -1, "error_code": code}
