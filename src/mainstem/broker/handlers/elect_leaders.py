"""ElectLeaders, API 43, versions 0-2 (KIP-183, KIP-460).

Behaviour: the one node leads every partition, so no election is needed. Null partitions mean all, of which none is
told. 1: the kind of election. 0 has no top-level code.
"""

from typing import Any, Final

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import ALTER, CLUSTER, THE_CLUSTER
from mainstem.wire.errors import Code, RequestError

_KINDS: Final = (0, 1)  # preferred, unclean


def _failure(request: Any, code: int) -> dict[str, Any]:
    """Version 0 tells it of each partition, and Kafka the later ones too."""
    topics = [
        {
            "topic": topic.topic,
            "partition_result": [{"partition_id": each, "error_code": code} for each in topic.partitions],
        }
        for topic in request.topic_partitions or ()
    ]
    return {"error_code": code, "replica_election_results": topics}


@handler(43, failure=_failure)
def elect_leaders(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(ALTER, CLUSTER, THE_CLUSTER)
    kind = getattr(request, "election_type", 0)
    if kind not in _KINDS:
        raise RequestError(Code.invalid_request, f"election type {kind}, expected 0 (preferred) or 1 (unclean)")
    asked = request.topic_partitions
    if asked is None:
        return {
            "replica_election_results": [{"topic": topic.name, "partition_result": []} for topic in ctx.broker.topics]
        }
    return {
        "replica_election_results": [
            {"topic": each.topic, "partition_result": [_result(ctx, each.topic, number) for number in each.partitions]}
            for each in asked
        ]
    }


def _result(ctx: RequestContext, name: str, number: int) -> dict[str, Any]:
    topic = ctx.broker.topics.get(name)
    if topic is None:
        return _refused(number, Code.unknown_topic_or_partition, f"No such topic as {name}")
    if not 0 <= number < len(topic.logs):
        return _refused(number, Code.unknown_topic_or_partition, f"No such partition as {name}-{number}")
    return _refused(number, Code.election_not_needed, "Leader election not needed for topic partition.")


def _refused(number: int, code: Code, message: str) -> dict[str, Any]:
    return {"partition_id": number, "error_code": code, "error_message": message}
