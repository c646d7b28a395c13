import uuid

import pytest

from mainstem.wire.errors import Code
from tests.support.sharing import ACCEPT, GAP, RELEASE, ShareMember

OK = Code.none


@pytest.fixture
def member(raw, topic):
    group = f"group-{uuid.uuid4().hex[:12]}"
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    raw.call(44, 1, resources=[{"resource_type": 32, "resource_name": group, "configs": [config]}])
    raw.call(76, 1, group_id=group, member_id="m", member_epoch=0, subscribed_topic_names=[topic])
    for value in (b"a", b"b", b"c"):
        raw.produce(topic, value)
    topic_id = raw.call(3, 12, topics=[{"topic_id": None, "name": topic}]).topics[0].topic_id
    return ShareMember(raw, group, topic_id, "m")


@pytest.mark.parametrize("version", [1, 2])
def test_every_version_acknowledges(member, version):
    assert member.acquired(0, until=3, version=version) == [(0, 2, 1)]
    assert member.acknowledge((0, 1, ACCEPT, RELEASE), (2, 2, GAP), version=version) == [OK]
    assert member.acquired(version=version) == [(1, 1, 2)]
    assert member.acknowledge((1, 1, ACCEPT), version=version, epoch=-1) == [OK]


def test_partitions_are_told_of_one_by_one(member):
    member.acquired(0, until=3)
    assert member.acknowledge((0, 0, ACCEPT), partition=7) == [Code.unknown_topic_or_partition]
    assert member.acknowledge((0, 3, ACCEPT)) == [Code.invalid_request]
    (told,) = (each for topic in member.last.responses for each in topic.partitions)
    assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (-1, -1)
    assert told.error_message == "records up to 2 have been delivered, found 0 to 3"
    assert member.acknowledge((0, 2, ACCEPT)) == [OK]


def test_a_group_without_a_name_is_refused(raw):
    answer = raw.call(79, 2, group_id=None, member_id="m", share_session_epoch=1, topics=[])
    assert answer.error_code is Code.invalid_request


def test_nothing_is_acknowledged_out_of_turn(member):
    member.acquired(0, until=3)
    assert member.acknowledge((0, 0, ACCEPT), epoch=9) is Code.invalid_share_session_epoch
    assert member.acknowledge((0, 0, ACCEPT), epoch=-2) is Code.invalid_share_session_epoch
    assert member.acknowledge((0, 0, ACCEPT)) == [OK]
