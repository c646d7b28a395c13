"""ConsumerGroupDescribe, API 69, versions 0-1 (KIP-848).

Behaviour: epochs, assignor and members of groups of the consumer protocol, with what each has and is to have. Groups of
other protocols are GROUP_ID_NOT_FOUND, as groups that are not there. One that is asked for many times is told once.

1: whether a member speaks the classic protocol (KIP-1099).
"""

from typing import Any, Final

from mainstem.broker.group_descriptions import Description
from mainstem.broker.groups.consumer.group import ConsumerGroup
from mainstem.broker.groups.consumer.member import Member
from mainstem.broker.groups.modern.partitions import Assignment, without_epochs
from mainstem.broker.groups.modern.subscriptions import TopicsView
from mainstem.broker.handlers import RequestContext, handler

_CLASSIC, _CONSUMER = 0, 1


@handler(69, failure=lambda request, code: _DESCRIPTION.all_missing(request, code, ""))
async def consumer_group_describe(request: Any, ctx: RequestContext) -> dict[str, Any]:
    return await _DESCRIPTION.answer(request, ctx, ctx.broker.groups.consumer)


def _described(group: ConsumerGroup) -> dict[str, Any]:
    return {
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor,
        "members": [_member(each, group) for each in group.members.values()],
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


_DESCRIPTION: Final[Description[ConsumerGroup]] = Description(
    _described, lambda group: group.subscribed_topics, {"assignor_name": ""}
)
