"""Share groups (KIP-932), request by request: our answers and Apache Kafka's are the same.

Every expectation here was met by Apache Kafka 4.3.0 (`pytest --kafka`). Two things differ: how soon the next assignment
is made (`share.assignment.interval.ms`, which is set to 0 here for both), and that Kafka assigns a partition only when
a first state of it is written, so that tests wait for what is assigned at once here. Which member gets which partition
is the assignor's affair: only counts are compared.
"""

import time
from collections.abc import Iterator

import pytest

from mainstem.wire.errors import Code
from tests.contract.clients import Log
from tests.support.routed import RoutedClient

OK = Code.none


@pytest.fixture
def raw(log: Log) -> Iterator[RoutedClient]:
    with RoutedClient(log.bootstrap) as client:
        client.find_coordinators("any")
        yield client


class Group:
    """One group, a topic of four partitions, and the requests that concern it."""

    def __init__(self, raw, name):
        self.raw, self.name, self.topic = raw, name, name
        raw.create_topic(name, 4)
        self.topic_id = raw.call(3, 12, topics=[{"topic_id": None, "name": name}]).topics[0].topic_id
        self.set("share.assignment.interval.ms", "0")

    def set(self, key, value):
        resource = {"resource_type": 32, "resource_name": self.name}
        change = {**resource, "configs": [{"name": key, "config_operation": 0, "value": value}]}
        assert self.raw.call(44, 1, resources=[change]).responses[0].error_code == OK
        asked = {**resource, "configuration_keys": [key]}
        until = time.monotonic() + 30
        while time.monotonic() < until:  # Kafka's brokers hear of it later
            told = [
                each.call(32, 4, resources=[asked]).results[0].configs[0].value for each in self.raw.brokers.values()
            ]
            if set(told) == {value}:
                break
            time.sleep(0.05)

    def beat(self, member_id, epoch=0, **fields):
        request = {"group_id": self.name, "member_id": member_id, "member_epoch": epoch}
        names = None if epoch else [self.topic]
        return self.raw.settled(76, 1, **{**request, "subscribed_topic_names": names, **fields})

    def joined(self, member_id, count, **fields):
        """A member joins; its epoch when it has so many partitions."""
        answer = self.beat(member_id, **fields)
        until = time.monotonic() + 30
        while len(self.has(answer)) != count and time.monotonic() < until:
            time.sleep(0.05)
            answer = self.beat(member_id, answer.member_epoch, subscribed_topic_names=[self.topic])
        assert len(self.has(answer)) == count
        return answer.member_epoch

    def has(self, answer):
        return sorted(number for each in answer.assignment.topic_partitions for number in each.partitions)

    def describe(self, **fields):
        (found,) = self.raw.call(77, 1, group_ids=[self.name], **fields).groups
        return found

    def offsets(self, topics=None, *, version=1):
        """By topic: (partition, offset, lag) of each partition that the group has state of, or of those asked for."""
        asked = None if topics is None else [{"topic_name": name, "partitions": found} for name, found in topics]
        (found,) = self.raw.settled(90, version, groups=[{"group_id": self.name, "topics": asked}]).groups
        assert (found.group_id, found.error_code) == (self.name, OK)
        return {
            topic.topic_name: sorted(
                (each.partition_index, each.start_offset, getattr(each, "lag", None)) for each in topic.partitions
            )
            for topic in found.topics
        }

    def set_offsets(self, *topics):
        asked = [
            {"topic_name": name, "partitions": [{"partition_index": one, "start_offset": at} for one, at in offsets]}
            for name, offsets in topics
        ]
        answer = self.raw.call(91, 0, group_id=self.name, topics=asked)
        return Code(answer.error_code), {
            each.topic_name: sorted((one.partition_index, Code(one.error_code)) for one in each.partitions)
            for each in answer.responses
        }

    def delete_offsets(self, *topics):
        answer = self.raw.call(92, 0, group_id=self.name, topics=[{"topic_name": name} for name in topics])
        return Code(answer.error_code), {each.topic_name: Code(each.error_code) for each in answer.responses}

    def delete(self):
        return Code(self.raw.call(42, 2, groups_names=[self.name]).results[0].error_code)


@pytest.fixture
def group(raw, name):
    return Group(raw, name)


def told(answer):
    return Code(answer.error_code), answer.member_epoch


# --- heartbeats -------------------------------------------------------------------------------------------------------


def test_the_apis_are_served(raw):
    answer = raw.call(18, 4, client_software_name="a", client_software_version="1")
    versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert (versions[76], versions[77]) == ((1, 1), (1, 1))


def test_a_member_joins_lives_and_leaves(group):
    epoch = group.joined("a", 4)
    again = group.beat("a", epoch)
    assert (told(again), again.member_id, again.assignment) == ((OK, epoch), "a", None)
    assert again.heartbeat_interval.total_seconds() == 5
    full = group.beat("a", epoch, subscribed_topic_names=[group.topic])
    assert (told(full), group.has(full)) == ((OK, epoch), [0, 1, 2, 3])
    left = group.beat("a", -1)
    assert (told(left), left.member_id, left.assignment, left.heartbeat_interval.total_seconds()) == (
        (OK, -1),
        "a",
        None,
        0,
    )
    assert told(group.beat("a", -1)) == (Code.unknown_member_id, 0)
    assert told(group.beat("a", epoch)) == (Code.unknown_member_id, 0)
    assert group.beat("a").member_epoch == epoch + 2


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"group_id": " "},
        {"member_id": ""},
        {"member_id": "m" * 37},
        {"rack_id": ""},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": []},
        {"member_epoch": -2},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_requests_that_make_no_sense(group, fields):
    answer = group.beat(**{"member_id": "a", **fields})
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (Code.invalid_request, None, 0)


def test_what_is_refused(group):
    assert told(group.beat("a", 1)) == (Code.group_id_not_found, 0)
    assert told(group.beat("a", -1)) == (Code.group_id_not_found, 0)
    epoch = group.joined("a", 4)
    assert told(group.beat("b", 1)) == (Code.unknown_member_id, 0)
    assert told(group.beat("b", -1)) == (Code.unknown_member_id, 0)
    assert told(group.beat("a", epoch + 1)) == (Code.fenced_member_epoch, 0)


def test_partitions_are_shared_out_at_the_next_heartbeat(group):
    epoch = group.joined("a", 4)
    b = group.beat("b")
    assert (told(b), len(group.has(b))) == ((OK, epoch + 1), 2)
    a = group.beat("a", epoch)
    assert (told(a), len(group.has(a))) == ((OK, epoch + 1), 2)
    assert sorted(group.has(a) + group.has(b)) == [0, 1, 2, 3]
    assert group.describe().group_state == "Stable"


def test_more_members_than_partitions_share_them(group):
    epoch = group.joined("a", 4)
    found = [group.has(group.beat(each)) for each in ("b", "c", "d", "e", "f", "g", "h")]
    assert [len(each) for each in found[3:]] == [1] * 4
    assert told(group.beat("a", epoch)) == (OK, epoch + 7)
    members = group.describe().members
    assert {each.member_id for each in members} == set("abcdefgh")


def test_a_lost_answer_is_asked_for_with_the_epoch_before(group):
    epoch = group.joined("a", 4)
    group.beat("b")
    first = group.beat("a", epoch)
    again = group.beat("a", epoch, subscribed_topic_names=[group.topic])
    assert (told(first), group.has(first)) == ((OK, epoch + 1), group.has(again))
    assert told(group.beat("a", epoch - 1)) == (Code.fenced_member_epoch, 0)


def test_a_member_that_joins_again_stays_who_it_is(group):
    epoch = group.joined("a", 4)
    again = group.beat("a")
    assert (told(again), group.has(again)) == ((OK, epoch), [0, 1, 2, 3])


def test_topics_that_change_are_followed(raw, group):
    epoch = group.joined("a", 4)
    raw.call(
        37, 3, topics=[{"name": group.topic, "count": 6, "assignments": None}], timeout=30_000, validate_only=False
    )
    until = time.monotonic() + 30
    found = []
    while len(found) < 6 and time.monotonic() < until:
        answer = group.beat("a", epoch)
        epoch = answer.member_epoch
        found = group.has(answer) if answer.assignment is not None else found
        time.sleep(0.05)
    assert found == [0, 1, 2, 3, 4, 5]


def test_a_subscription_to_nothing(group):
    answer = group.beat("a", subscribed_topic_names=["nothing"])
    assert (told(answer), group.has(answer)) == ((OK, 2), [])
    answer = group.beat("a", 2, subscribed_topic_names=[])
    assert (told(answer), group.has(answer)) == ((OK, 3), [])
    assert group.describe().members[0].subscribed_topic_names == ()


# --- describe, list, delete -------------------------------------------------------------------------------------------


def test_a_group_is_described(group):
    epoch = group.joined("a", 4, rack_id="r")
    found = group.describe(include_authorized_operations=True)
    assert (found.error_code, found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == (
        OK,
        "Stable",
        epoch,
        epoch,
        "simple",
    )
    assert found.authorized_operations == sum(1 << operation for operation in (3, 6, 8, 10, 11))
    (member,) = found.members
    assert (member.member_id, member.rack_id, member.member_epoch, member.client_id, member.subscribed_topic_names) == (
        "a",
        "r",
        epoch,
        "raw",
        (group.topic,),
    )
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.topic_id, sorted(topic.partitions)) == (
        group.topic,
        group.topic_id,
        [0, 1, 2, 3],
    )
    group.beat("a", -1)
    found = group.describe()
    assert (found.group_state, found.group_epoch, found.assignment_epoch, found.members) == (
        "Empty",
        epoch + 1,
        epoch,
        (),
    )


def test_groups_that_are_none(raw, group):
    found = raw.call(77, 1, group_ids=[group.name]).groups[0]
    assert (found.error_code, found.group_state, found.group_epoch) == (Code.group_id_not_found, "", 0)
    assert found.error_message == f"Group {group.name} not found."
    full = {"rebalance_timeout": 60_000, "topic_partitions": [], "subscribed_topic_names": [group.topic]}
    raw.settled(68, 1, group_id=group.name, member_id="a", member_epoch=0, **full)
    assert told(group.beat("b")) == (Code.group_id_not_found, 0)
    found = group.describe()
    assert (found.error_code, found.error_message) == (
        Code.group_id_not_found,
        f"Group {group.name} is not a share group.",
    )


def test_what_other_apis_know_of_the_group(raw, group):
    group.beat("a")
    kinds = {
        kind: {each.group_id: each for one in raw.everywhere(16, 5, types_filter=[kind]) for each in one.groups}
        for kind in ("share", "Share", "consumer", "classic")
    }
    found = kinds["share"][group.name]
    assert (found.group_state, found.group_type, found.protocol_type) == ("Stable", "share", "share")
    assert [kind for kind, groups in kinds.items() if group.name in groups] == ["share", "Share"]
    (classic,) = raw.call(15, 6, groups=[group.name]).groups
    assert (classic.error_code, classic.group_state) == (Code.group_id_not_found, "Dead")
    assert classic.error_message == f"Group {group.name} is not a classic group."
    (consumer,) = raw.call(69, 1, group_ids=[group.name]).groups
    assert consumer.error_message == f"Group {group.name} is not a consumer group."


def test_what_other_apis_refuse_of_the_group(raw, group):
    group.beat("a")
    group.beat("a", -1)
    full = {"rebalance_timeout": 60_000, "topic_partitions": [], "subscribed_topic_names": [group.topic]}
    answer = raw.call(68, 1, group_id=group.name, member_id="a", member_epoch=0, **full)
    assert told(answer) == (Code.group_id_not_found, 0)
    answer = raw.call(
        11,
        9,
        group_id=group.name,
        session_timeout=10_000,
        rebalance_timeout=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    assert answer.error_code == Code.inconsistent_group_protocol
    partitions = [{"partition_index": 0, "committed_offset": 1}]
    commit = {"member_id": "", "generation_id_or_member_epoch": -1}
    answer = raw.call(8, 9, group_id=group.name, **commit, topics=[{"name": group.topic, "partitions": partitions}])
    assert answer.topics[0].partitions[0].error_code == Code.group_id_not_found
    partitions = [{"partition_index": 0}]
    answer = raw.call(47, 0, group_id=group.name, topics=[{"name": group.topic, "partitions": partitions}])
    assert answer.error_code == Code.group_id_not_found
    assert raw.committed(group.name, group.topic) == (-1, OK)


def test_a_group_is_deleted_when_it_is_empty(group):
    group.beat("a")
    assert group.delete() == Code.non_empty_group
    group.beat("a", -1)
    assert group.delete() == OK
    assert group.describe().error_code == Code.group_id_not_found
    assert group.delete() == Code.group_id_not_found
    assert told(group.beat("a")) == (OK, 2)


# --- offsets ----------------------------------------------------------------------------------------------------------

UNKNOWN = Code.unknown_topic_or_partition


def test_offsets_of_a_group_that_is_none(raw, group):
    assert group.offsets() == {}
    assert group.offsets([]) == {}
    expected = {group.topic: [(0, -1, -1), (7, -1, -1)], "nothing": [(0, -1, -1)]}
    assert group.offsets([(group.topic, [0, 7]), ("nothing", [0])]) == expected
    commit = {"member_id": "", "generation_id_or_member_epoch": -1}
    partitions = [{"partition_index": 0, "committed_offset": 1}]
    raw.settled(8, 8, group_id=group.name, **commit, topics=[{"name": group.topic, "partitions": partitions}])
    assert group.offsets() == {}
    assert group.offsets([(group.topic, [0, 7]), ("nothing", [0])]) == expected
    assert group.set_offsets((group.topic, [(0, 1)])) == (Code.group_id_not_found, {})
    assert group.delete_offsets(group.topic) == (Code.group_id_not_found, {})
    assert told(group.beat("a")) == (Code.group_id_not_found, 0)


def test_offsets_are_set_for_a_group_that_was_not_there(raw, group):
    for value in (b"a", b"b", b"c"):
        raw.produce(group.topic, value)
    assert group.set_offsets((group.topic, [(0, 1), (1, 0), (7, 1)])) == (
        OK,
        {group.topic: [(0, OK), (1, OK), (7, UNKNOWN)]},
    )
    assert group.offsets() == {group.topic: [(0, 1, 2), (1, 0, 0)]}
    assert group.offsets(version=0) == {group.topic: [(0, 1, None), (1, 0, None)]}
    assert group.offsets([(group.topic, [1, 2])]) == {group.topic: [(1, 0, 0), (2, -1, -1)]}
    found = group.describe()
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Empty", 1, 1)
    assert group.beat("a").member_epoch == 2


def test_any_offset_may_be_set(raw, group):
    raw.produce(group.topic, b"a")
    for offset, lag in ((7, -6), (-1, -1), (0, 1)):
        assert group.set_offsets((group.topic, [(0, offset)])) == (OK, {group.topic: [(0, OK)]})
        assert group.offsets() == {group.topic: [(0, offset, lag)]}
    assert group.set_offsets((group.topic, [(0, 7), (0, 1)]))[1] == {group.topic: [(0, OK), (0, OK)]}
    assert group.offsets() == {group.topic: [(0, 1, 0)]}


def test_topics_that_are_none_make_no_group(raw, group):
    assert group.set_offsets() == (OK, {})
    assert group.set_offsets(("nothing", [(0, 1)])) == (OK, {"nothing": [(0, UNKNOWN)]})
    assert group.describe().error_code == Code.group_id_not_found
    assert raw.call(91, 0, group_id="", topics=[]).error_code == Code.invalid_group_id
    assert raw.call(92, 0, group_id="", topics=[]).error_code == Code.invalid_group_id


def test_offsets_of_a_group_with_members_stay_as_they_are(group):
    group.set_offsets((group.topic, [(0, 3)]))
    group.joined("a", 4)
    assert group.set_offsets((group.topic, [(0, 1)])) == (Code.non_empty_group, {})
    assert group.set_offsets(("nothing", [(0, 1)])) == (Code.non_empty_group, {})
    assert group.delete_offsets(group.topic) == (Code.non_empty_group, {})
    assert group.delete_offsets("nothing") == (Code.non_empty_group, {})
    assert group.offsets() == {group.topic: [(0, 3, -3), (1, -1, -1), (2, -1, -1), (3, -1, -1)]}
    group.beat("a", -1)
    assert group.set_offsets((group.topic, [(0, 1)]))[0] == OK
    assert group.offsets()[group.topic][0] == (0, 1, -1)


def test_offsets_are_deleted(group):
    group.set_offsets((group.topic, [(0, 3)]))
    assert group.delete_offsets(group.topic, "nothing", group.topic) == (OK, {group.topic: OK, "nothing": UNKNOWN})
    assert group.offsets() == {}
    assert group.offsets([(group.topic, [0])]) == {group.topic: [(0, -1, -1)]}
    assert group.delete_offsets(group.topic) == (OK, {group.topic: UNKNOWN})
    assert group.delete_offsets() == (OK, {})
    assert group.describe().group_state == "Empty"
    assert group.set_offsets((group.topic, [(0, 2)]))[0] == OK
    assert group.delete() == OK
    assert group.offsets([(group.topic, [0])]) == {group.topic: [(0, -1, -1)]}
    assert group.delete_offsets(group.topic) == (Code.group_id_not_found, {})


def test_offsets_go_with_their_topic(raw, group):
    group.set_offsets((group.topic, [(0, 3)]))
    raw.call(20, 5, topic_names=[group.topic], timeout=30_000)
    until = time.monotonic() + 30
    while group.offsets() and time.monotonic() < until:  # Kafka's brokers hear of it later
        time.sleep(0.05)
    assert group.offsets() == {}
    assert group.delete_offsets(group.topic) == (OK, {group.topic: UNKNOWN})
    assert group.set_offsets((group.topic, [(0, 3)])) == (OK, {group.topic: [(0, UNKNOWN)]})
    assert group.describe().group_state == "Empty"
