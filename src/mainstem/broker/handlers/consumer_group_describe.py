"""ConsumerGroupDescribe, API 69, versions 0-1 (KIP-848).

Behaviour: epochs, assignor and members of groups of the consumer protocol, with what each has and is to have. Groups of
other protocols are GROUP_ID_NOT_FOUND, as groups that are not there. One that is asked for many times is told once.

1: whether a member speaks the classic protocol (KIP-1099).
"""

from typing import Any

from mainstem.broker.groups.consumer.group import ConsumerGroup
from mainstem.broker.groups.consumer.member import Member
from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.modern.partitions import Assignment, without_epochs
from mainstem.broker.groups.modern.subscriptions import TopicsView
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.metadata import NOT_ASKED
from mainstem.broker.security.acls import DESCRIBE, GROUP, TOPIC
from mainstem.wire.errors import Code

_CLASSIC, _CONSUMER = 0, 1
HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


@handler(69, 0, 1, failure=lambda request, code: {"groups": [missing(each, code, "") for each in request.group_ids]})
async def consumer_group_describe(request: Any, ctx: RequestContext) -> dict[str, Any]:
    asked = request.include_authorized_operations
    return {"groups": [await _described(each, ctx, asked=asked) for each in dict.fromkeys(request.group_ids)]}


async def _described(group_id: str, ctx: RequestContext, *, asked: bool) -> dict[str, Any]:
    groups = ctx.broker.groups
    if not ctx.may(DESCRIBE, GROUP, group_id):
        return missing(group_id, Code.group_authorization_failed, None)
    if not group_id:
        return missing(group_id, Code.invalid_group_id, None)
    try:
        await groups.consumer.settled(group_id)
    except GroupError as error:
        return missing(group_id, error.code, str(error))
    group = groups.consumer.get(group_id)
    if group is None:
        reason = "not found" if group_id not in groups.groups else "is not a consumer group"
        message = f"Group {group_id} {reason}."
        return missing(group_id, Code.group_id_not_found, message)
    if not all(ctx.may(DESCRIBE, TOPIC, name) for name in group.subscribed_topics):
        return missing(group_id, Code.topic_authorization_failed, HIDDEN)
    return {
        "error_code": Code.none,
        "group_id": group_id,
        "group_state": group.state_name,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor,
        "members": [_member(each, group) for each in group.members.values()],
        "authorized_operations": ctx.operations(GROUP, group_id) if asked else NOT_ASKED,
    }


def missing(group_id: str, code: int, message: str | None) -> dict[str, Any]:
    """A group of which nothing is told but why."""
    return {
        "group_id": group_id,
        "error_code": code,
        "error_message": message,
        "group_state": "",
        "assignor_name": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "authorized_operations": NOT_ASKED,
    }


def _member(member: Member, group: ConsumerGroup) -> dict[str, Any]:
    has = {topic_id: set(found) for topic_id, found in without_epochs(member.assigned).items()}
    for topic_id, found in member.revoking.items():  # it has these until it says that it has not
        has[topic_id] = has.get(topic_id, set()) | set(found)
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.regex,
        "assignment": assignment({topic_id: frozenset(found) for topic_id, found in has.items()}, group.topics),
        "target_assignment": assignment(group.targets.get(member.member_id, {}), group.topics),
        "member_type": _CONSUMER if member.classic is None else _CLASSIC,
    }


def assignment(partitions: Assignment, topics: TopicsView) -> dict[str, Any]:
    """What a member has, with names; of topics that are gone nothing is told: there is no name for them."""
    found = [
        {"topic_id": topic_id, "topic_name": topic.name, "partitions": sorted(numbers)}
        for topic_id, numbers in partitions.items()
        if (topic := topics.get_by_id(topic_id)) is not None
    ]
    return {"topic_partitions": found}
