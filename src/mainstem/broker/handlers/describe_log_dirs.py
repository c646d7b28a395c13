"""DescribeLogDirs, API 35, versions 1-5.

Behaviour: the one log directory with the size of each partition. 3: top-level code. 4: bytes of the volume.
"""

import os
from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.wire.errors import Code


@handler(35, 1, 5, failure=lambda _request, code: {"results": [{"error_code": code}]})
def describe_log_dirs(request: Any, ctx: RequestContext) -> dict[str, Any]:
    directory = ctx.broker.log
    volume = os.statvfs(directory.path)
    topics = []
    for topic in ctx.broker.topics:
        wanted = _wanted(request, topic.name, len(topic.logs))
        if wanted:
            sizes = [{"partition_index": i, "partition_size": topic.logs[i].size_bytes} for i in wanted]
            topics.append({"name": topic.name, "partitions": sizes})
    return {
        "results": [
            {
                "error_code": Code.kafka_storage_error if directory.offline else Code.none,
                "log_dir": str(directory.path),
                "topics": topics,
                "total_bytes": volume.f_blocks * volume.f_frsize,
                "usable_bytes": volume.f_bavail * volume.f_frsize,
            }
        ]
    }


def _wanted(request: Any, name: str, count: int) -> list[int]:
    if request.topics is None:
        return list(range(count))
    return [index for each in request.topics if each.topic == name for index in each.partitions if 0 <= index < count]
