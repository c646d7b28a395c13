"""DescribeLogDirs, API 35, versions 1-5.

Behaviour: the one log directory with the size of each partition, once each. 3: top-level code. 4: bytes of the volume.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import CLUSTER, DESCRIBE, THE_CLUSTER
from mainstem.broker.topics import Topic
from mainstem.wire.errors import Code


@handler(35, failure=lambda _request, code: {"results": [{"error_code": code}]})
def describe_log_dirs(request: Any, ctx: RequestContext) -> dict[str, Any]:
    if not ctx.may(DESCRIBE, CLUSTER, THE_CLUSTER):
        return {"error_code": Code.cluster_authorization_failed, "results": []}
    directory = ctx.broker.log
    volume = os.statvfs(directory.path)
    topics = []
    for topic, wanted in _wanted(request, ctx):
        sizes = [{"partition_index": i, "partition_size": topic.logs[i].size_bytes} for i in wanted]
        topics.append({"name": topic.name, "partitions": sizes})
    return {
        "results": [
            {
                "error_code": Code.kafka_storage_error if directory.offline else Code.none,
                "log_dir": str(directory.path.absolute()),
                "topics": topics,
                "total_bytes": volume.f_blocks * volume.f_frsize,
                "usable_bytes": volume.f_bavail * volume.f_frsize,
            }
        ]
    }


def _wanted(request: Any, ctx: RequestContext) -> Iterator[tuple[Topic, Iterable[int]]]:
    """Each topic, with the partitions that are asked for and there."""
    if request.topics is None:
        yield from ((topic, range(len(topic.logs))) for topic in ctx.broker.topics)
        return
    asked: dict[str, set[int]] = {}
    for each in request.topics:
        asked.setdefault(each.topic, set()).update(each.partitions)
    for name, indexes in asked.items():
        topic = ctx.broker.topics.get(name)
        there = [] if topic is None else sorted(index for index in indexes if 0 <= index < len(topic.logs))
        if topic is not None and there:
            yield topic, there
