"""AlterReplicaLogDirs, API 34, versions 1-2 (KIP-113).

Behaviour: there is one log directory: to move a partition there is no error, anywhere else is LOG_DIR_NOT_FOUND.
"""

from typing import Any

from mainstem.broker.answers import by_topic, partition_exists
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import ALTER, CLUSTER, THE_CLUSTER
from mainstem.core import TopicPartition
from mainstem.wire.errors import Code


@handler(34, failure=lambda request, code: _answer(dict.fromkeys(_asked(request), Code(code))))
def alter_replica_log_dirs(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(ALTER, CLUSTER, THE_CLUSTER)
    codes: dict[TopicPartition, Code] = {}
    for partition, path in _asked(request).items():
        if path != str(ctx.broker.log.path.absolute()):
            codes[partition] = Code.log_dir_not_found
        else:
            there = partition_exists(ctx.broker.topics, partition)
            codes[partition] = Code.none if there else Code.unknown_topic_or_partition
    return _answer(codes)


def _asked(request: Any) -> dict[TopicPartition, str]:
    return {
        TopicPartition(topic.name, number): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    }


def _answer(codes: dict[TopicPartition, Code]) -> dict[str, Any]:
    names = {"name": "topic_name", "partitions": "partitions", "index": "partition_index", "code": "error_code"}
    return {"results": by_topic(codes.items(), **names)}
