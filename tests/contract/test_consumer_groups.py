"""Groups of the consumer protocol (KIP-848), request by request: our answers and Apache Kafka's are the same.

Every expectation here was met by Apache Kafka 4.3.0 (`pytest --kafka`). Two things differ: how soon the next assignment
is made (`consumer.assignment.interval.ms`, which is set to 0 here for both), and when a regular expression is resolved.
Which member gets which partition is the assignor's affair: only counts are compared.
"""

import time
from collections.abc import Iterator

import pytest

from mainstem.broker.groups.embedded import (
    Subscription,
    read_assignment,
    write_assignment,
    write_subscription,
)
from mainstem.wire.errors import Code
from tests.contract.clients import Log
from tests.support.raw import codes_of
from tests.support.routed import RoutedClient

OK = Code.none
FULL = {"rebalance_timeout": 60_000, "topic_partitions": []}


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
        self.set("consumer.assignment.interval.ms", "0")

    def set(self, key, value):
        resource = {"resource_type": 32, "resource_name": self.name}
        change = {**resource, "configs": [{"name": key, "config_operation": 0, "value": value}]}
        code = self.raw.call(44, 1, resources=[change]).responses[0].error_code
        asked = {**resource, "configuration_keys": [key]}
        until = time.monotonic() + 30
        while code == OK and time.monotonic() < until:  # Kafka's brokers hear of it later
            told = [
                each.call(32, 4, resources=[asked]).results[0].configs[0].value for each in self.raw.brokers.values()
            ]
            if set(told) == {value}:
                break
            time.sleep(0.05)
        return code

    def beat(self, member_id, epoch=0, *, version=1, has=None, **fields):
        """A heartbeat: full for epoch 0; `has` are the partitions that the member reports."""
        request = {**FULL, "subscribed_topic_names": [self.topic]} if epoch == 0 else {"subscribed_topic_names": None}
        if has is not None:
            request |= {**FULL, "subscribed_topic_names": [self.topic]}
            request["topic_partitions"] = [{"topic_id": self.topic_id, "partitions": list(has)}] if has else []
        elif epoch != 0:
            request |= {"topic_partitions": None, "rebalance_timeout": -1}
        request |= fields
        return self.raw.settled(68, version, group_id=self.name, member_id=member_id, member_epoch=epoch, **request)

    def has(self, answer):
        return sorted(number for each in answer.assignment.topic_partitions for number in each.partitions)

    def describe(self):
        (found,) = self.raw.call(69, 1, group_ids=[self.name]).groups
        return found

    def commit(self, member_id, epoch, *, version=9, partitions=(0,)):
        partitions = [{"partition_index": number, "committed_offset": 1} for number in partitions]
        topic = {"topic_id": self.topic_id} if version >= 10 else {"name": self.topic}
        answer = self.raw.call(
            8,
            version,
            group_id=self.name,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            topics=[{**topic, "partitions": partitions}],
        )
        (code,) = codes_of(answer) or {OK}
        return code

    def fetch(self, member_id, epoch):
        topics = [{"name": self.topic, "partition_indexes": [0]}]
        asked = {"group_id": self.name, "member_id": member_id, "member_epoch": epoch, "topics": topics}
        (found,) = self.raw.call(9, 9, groups=[asked], require_stable=False).groups
        return Code(found.error_code)

    # the classic protocol

    def join(self, member_id="", *, owned=(), instance=None, protocols=("range",), kind="consumer", wait=True):
        metadata = write_subscription(Subscription(1, (self.topic,), {self.topic: frozenset(owned)} if owned else {}))
        request = {
            "group_id": self.name,
            "session_timeout": 30_000,
            "rebalance_timeout": 60_000,
            "member_id": member_id,
            "group_instance_id": instance,
            "protocol_type": kind,
            "protocols": [{"name": name, "metadata": metadata} for name in protocols],
        }
        return self.raw.call(11, 5, **request)

    def sync(self, member_id, generation, *, assigned=None):
        assignments = [{"member_id": who, "assignment": data} for who, data in (assigned or {}).items()]
        answer = self.raw.call(
            14,
            5,
            group_id=self.name,
            generation_id=generation,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        found = sorted(read_assignment(answer.assignment).partitions.get(self.topic, ())) if answer.assignment else []
        return Code(answer.error_code), found

    def heartbeat(self, member_id, generation):
        answer = self.raw.call(12, 3, group_id=self.name, generation_id=generation, member_id=member_id)
        return Code(answer.error_code)

    def leave(self, member_id, instance=None):
        member = {"member_id": member_id, "group_instance_id": instance}
        return Code(self.raw.call(13, 4, group_id=self.name, members=[member]).members[0].error_code)


@pytest.fixture
def group(raw, name):
    return Group(raw, name)


def told(answer):
    return Code(answer.error_code), answer.member_epoch


# --- heartbeats -------------------------------------------------------------------------------------------------------


def test_the_feature_is_finalized(raw):
    answer = raw.call(18, 4, client_software_name="a", client_software_version="1")
    assert {each.name: each.max_version_level for each in answer.finalized_features}["group.version"] == 1
    assert {
        each.api_key: (each.min_version, each.max_version) for each in answer.api_keys if each.api_key in (68, 69)
    } == {
        68: (0, 1),
        69: (0, 1),
    }


def test_a_member_joins_lives_and_leaves(group):
    joined = group.beat("a")
    assert (told(joined), joined.member_id, group.has(joined)) == ((OK, 2), "a", [0, 1, 2, 3])
    assert joined.heartbeat_interval.total_seconds() == 5
    again = group.beat("a", 2)
    assert (told(again), again.assignment) == ((OK, 2), None)
    full = group.beat("a", 2, has=(0, 1, 2, 3))
    assert (told(full), group.has(full)) == ((OK, 2), [0, 1, 2, 3])
    left = group.beat("a", -1)
    assert (told(left), left.member_id, left.assignment, left.heartbeat_interval.total_seconds()) == (
        (OK, -1),
        "a",
        None,
        0,
    )
    assert told(group.beat("a", -1)) == (Code.unknown_member_id, 0)
    assert told(group.beat("a", 2)) == (Code.unknown_member_id, 0)
    assert told(group.beat("a"))[1] == 4


def test_kip_1082_ids_are_the_clients_from_version_1_on(group):
    assert group.beat("").error_code == Code.invalid_request
    first = group.beat("", version=0)
    assert (first.error_code, first.member_epoch) == (OK, 2)
    assert first.member_id


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout": -1},
        {"topic_partitions": None},
        {"subscribed_topic_names": None},
        {"member_epoch": -2},
        {"member_epoch": -3},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_requests_that_make_no_sense(raw, group, fields):
    request = {"group_id": group.name, "member_id": "a", "member_epoch": 0, **FULL}
    answer = raw.settled(68, 1, **{**request, "subscribed_topic_names": [group.topic], **fields})
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (Code.invalid_request, None, 0)
    assert answer.error_message


def test_what_is_refused(group):
    assert told(group.beat("a", 1)) == (Code.group_id_not_found, 0)
    assert told(group.beat("a", -1)) == (Code.group_id_not_found, 0)
    assert told(group.beat("a", server_assignor="mine")) == (Code.unsupported_assignor, 0)
    invalid = group.beat("a", subscribed_topic_names=None, subscribed_topic_regex="(")
    assert told(invalid) == (Code.invalid_regular_expression, 0)
    group.beat("a")
    assert told(group.beat("b", 1)) == (Code.unknown_member_id, 0)
    assert told(group.beat("a", 3)) == (Code.fenced_member_epoch, 0)
    assert told(group.beat("a", 1)) == (Code.fenced_member_epoch, 0)


def test_g7_reconciliation_step_by_step(group):
    group.beat("a")
    b = group.beat("b")
    assert (told(b), group.has(b)) == ((OK, 3), [])
    a = group.beat("a", 2, has=(0, 1, 2, 3))
    kept = group.has(a)
    assert (told(a), len(kept)) == ((OK, 2), 2)
    assert group.describe().group_state == "Reconciling"
    assert told(group.beat("a", 2)) == (OK, 2)
    b = group.beat("b", 3)
    assert (told(b), b.assignment) == ((OK, 3), None)
    a = group.beat("a", 2, has=kept)
    assert (told(a), group.has(a)) == ((OK, 3), kept)
    b = group.beat("b", 3)
    assert (told(b), group.has(b)) == ((OK, 3), sorted({0, 1, 2, 3} - set(kept)))
    assert group.describe().group_state == "Stable"


def test_g7_a_list_without_partitions_shows_them_gone_and_no_list_shows_nothing(group):
    group.beat("a")
    group.beat("b")
    for _ in range(2):
        assert told(group.beat("a", 2)) == (OK, 2), "it has them still"
        assert group.beat("b", 3).assignment is None
    a = group.beat("a", 2, has=())
    assert (told(a), len(group.has(a))) == ((OK, 3), 2)
    b = group.beat("b", 3)
    assert group.has(b) == sorted({0, 1, 2, 3} - set(group.has(a)))


def test_a_lost_answer_is_asked_for_with_the_epoch_before(group):
    group.beat("a")
    group.beat("b")
    assert told(group.beat("a", 2, has=())) == (OK, 3)
    assert told(group.beat("a", 2, has=())) == (OK, 3)
    assert told(group.beat("a", 2)) == (Code.fenced_member_epoch, 0)


def test_topics_that_change_are_followed(raw, group):
    group.beat("a")
    raw.call(
        37, 3, topics=[{"name": group.topic, "count": 6, "assignments": None}], timeout=30_000, validate_only=False
    )
    until = time.monotonic() + 30
    epoch, found = 2, []
    while len(found) < 6 and time.monotonic() < until:
        answer = group.beat("a", epoch)
        epoch = answer.member_epoch
        found = group.has(answer) if answer.assignment is not None else found
        time.sleep(0.05)
    assert (epoch, found) == (3, [0, 1, 2, 3, 4, 5])


def test_a_subscription_to_nothing(group):
    answer = group.beat("a", subscribed_topic_names=[])
    assert (told(answer), group.has(answer)) == ((OK, 1), [])
    answer = group.beat("a", 1, subscribed_topic_names=[group.topic])
    assert (told(answer), group.has(answer)) == ((OK, 2), [0, 1, 2, 3])


def test_an_expression_is_resolved(group):
    answer = group.beat("a", subscribed_topic_names=None, subscribed_topic_regex=f"{group.topic}|nothing")
    epoch, until = answer.member_epoch, time.monotonic() + 30
    found = group.has(answer)
    while not found and time.monotonic() < until:  # Kafka resolves it meanwhile
        answer = group.beat("a", epoch)
        epoch, found = answer.member_epoch, group.has(answer) if answer.assignment is not None else []
        time.sleep(0.05)
    assert (epoch, found) == (2, [0, 1, 2, 3])
    (member,) = group.describe().members
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((), f"{group.topic}|nothing")
    answer = group.beat("a", 2, subscribed_topic_regex="")
    assert (told(answer), group.has(answer)) == ((OK, 2), []), "it is to give up what it has"
    assert told(group.beat("a", 2, has=(), subscribed_topic_names=[])) == (OK, 3)


def test_a_member_that_gives_nothing_up_in_time_is_removed(group):
    group.beat("a", rebalance_timeout=1_000)
    group.beat("b")
    assert told(group.beat("a", 2, has=(0, 1, 2, 3), rebalance_timeout=1_000)) == (OK, 2)
    until = time.monotonic() + 30
    while told(answer := group.beat("a", 2)) == (OK, 2) and time.monotonic() < until:
        time.sleep(0.1)
    assert told(answer) == (Code.unknown_member_id, 0)
    b = group.beat("b", 3)
    assert (told(b), group.has(b)) == ((OK, 4), [0, 1, 2, 3])


def test_range_goes_by_instance_id_and_then_by_member_id(group):
    """Its outcome is the same everywhere, so that records of one key meet in one member."""
    epochs = {}
    for member_id, instance in (("b", None), ("a", None), ("z", "i")):
        epochs[member_id] = group.beat(member_id, server_assignor="range", instance_id=instance).member_epoch
    found = {
        each.member_id: sorted(number for one in each.target_assignment.topic_partitions for number in one.partitions)
        for each in group.describe().members
    }
    assert found == {"z": [0, 1], "a": [2], "b": [3]}


def test_a_topic_that_is_not_subscribed_to_any_more_is_to_be_given_up(raw, group):
    group.beat("a")
    answer = group.beat("a", 2, has=(0, 1, 2, 3), subscribed_topic_names=["nothing"])
    assert (told(answer), group.has(answer)) == ((OK, 2), [])
    assert group.describe().group_state == "Reconciling"
    answer = group.beat("a", 2, has=(), subscribed_topic_names=["nothing"])
    assert (told(answer), group.has(answer)) == ((OK, 3), [])
    assert group.describe().group_state == "Stable"


def test_the_last_of_several_subscriptions_counts(group):
    answer = group.beat("a", subscribed_topic_names=[group.topic, "nothing"], subscribed_topic_regex="none.*")
    assert (told(answer), group.has(answer)) == ((OK, 2), [0, 1, 2, 3])


# --- static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_is_restarted(group):
    group.beat("a", instance_id="i")
    assert told(group.beat("a2", instance_id="i")) == (Code.unreleased_instance_id, 0)
    away = group.beat("a", -2, instance_id="i")
    assert (told(away), away.member_id) == ((OK, -2), "a")
    assert told(group.beat("a", 2, instance_id="i")) == (Code.fenced_member_epoch, 0)
    (member,) = group.describe().members
    assert (member.member_id, member.member_epoch) == ("a", -2)
    back = group.beat("a2", instance_id="i")
    assert (told(back), group.has(back)) == ((OK, 2), [0, 1, 2, 3])
    assert told(group.beat("a", 2, instance_id="i")) == (Code.fenced_instance_id, 0)
    assert told(group.beat("a", 2)) == (Code.unknown_member_id, 0)
    assert told(group.beat("a2", 2, instance_id="j")) == (Code.unknown_member_id, 0)
    assert told(group.beat("a2", -1, instance_id="i")) == (OK, -1)


# --- describe, list, delete -------------------------------------------------------------------------------------------


def test_a_group_is_described(group):
    group.beat("a", instance_id="i", rack_id="r", server_assignor="range")
    found = group.describe()
    assert (found.error_code, found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == (
        OK,
        "Stable",
        2,
        2,
        "range",
    )
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch, member.member_type) == (
        "a",
        "i",
        "r",
        2,
        1,
    )
    assert (member.client_id, member.subscribed_topic_names, member.subscribed_topic_regex) == (
        "raw",
        (group.topic,),
        "",
    )
    for each in (member.assignment, member.target_assignment):
        (topic,) = each.topic_partitions
        assert (topic.topic_name, topic.topic_id, sorted(topic.partitions)) == (
            group.topic,
            group.topic_id,
            [0, 1, 2, 3],
        )
    group.beat("a", -1, instance_id="i")
    found = group.describe()
    assert (found.group_state, found.group_epoch, found.assignor_name, found.members) == ("Empty", 3, "uniform", ())


def test_a_group_that_is_none(raw, name):
    found = raw.call(69, 1, group_ids=[name]).groups[0]
    assert (found.error_code, found.group_state, found.group_epoch) == (Code.group_id_not_found, "", 0)
    assert found.error_message == f"Group {name} not found."


def test_a_classic_group_is_not_described(raw, group):
    a_classic_member(group)
    found = group.describe()
    assert (found.error_code, found.error_message) == (
        Code.group_id_not_found,
        f"Group {group.name} is not a consumer group.",
    )


def test_what_other_apis_know_of_the_group(raw, group):
    group.beat("a")
    kinds = {
        kind: {each.group_id: each for one in raw.everywhere(16, 5, types_filter=[kind]) for each in one.groups}
        for kind in ("consumer", "Consumer", "classic")
    }
    found = kinds["consumer"][group.name]
    assert (found.group_state, found.group_type, found.protocol_type) == ("Stable", "consumer", "consumer")
    assert group.name in kinds["Consumer"]
    assert group.name not in kinds["classic"]
    (classic,) = raw.call(15, 6, groups=[group.name]).groups
    assert (classic.error_code, classic.group_state) == (Code.group_id_not_found, "Dead")
    assert classic.error_message == f"Group {group.name} is not a classic group."
    (classic,) = raw.call(15, 5, groups=[group.name]).groups
    assert (classic.error_code, classic.group_state) == (OK, "Dead")


def test_a_group_is_deleted_when_it_is_empty(raw, group):
    group.beat("a")
    assert raw.call(42, 2, groups_names=[group.name]).results[0].error_code == Code.non_empty_group
    group.beat("a", -1)
    assert raw.call(42, 2, groups_names=[group.name]).results[0].error_code == OK
    assert group.describe().error_code == Code.group_id_not_found
    assert told(group.beat("a")) == (OK, 2)


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_who_may_commit(group):
    group.beat("a")
    assert group.commit("a", 2) is OK
    assert group.commit("a", 2, version=10) is OK
    assert group.commit("a", 3) is Code.stale_member_epoch
    assert group.commit("b", 2) is Code.unknown_member_id
    assert group.commit("", -1) is Code.unknown_member_id
    assert group.commit("a", 2, version=8) is Code.unsupported_version
    group.beat("a", -1)
    assert group.commit("", -1) is OK


def test_kip_1251_an_old_epoch_may_commit_what_the_member_has_had_since(group):
    group.beat("a")
    group.beat("b")
    kept = group.has(group.beat("a", 2, has=(0, 1, 2, 3)))
    assert group.commit("a", 2, partitions=(0, 1, 2, 3)) is OK, "what it is to give up, too"
    assert told(group.beat("a", 2, has=kept)) == (OK, 3)
    gone = sorted({0, 1, 2, 3} - set(kept))
    assert group.commit("a", 2, partitions=kept) is OK
    assert group.commit("a", 2, partitions=gone) is Code.stale_member_epoch
    assert group.commit("a", 1, partitions=kept) is Code.stale_member_epoch
    group.beat("b", 3)
    assert group.commit("b", 3, partitions=gone) is OK


def test_who_may_be_told_offsets(group):
    group.beat("a")
    assert group.fetch("a", 2) is OK
    assert group.fetch(None, -1) is OK
    assert group.fetch("a", 3) is Code.stale_member_epoch
    assert group.fetch("b", 2) is Code.unknown_member_id


def test_a_commit_in_a_transaction_is_checked_like_any(raw, group, name):
    group.beat("a")
    answer = raw.init(name)
    producer = (answer.producer_id, answer.producer_epoch)
    added = raw.settled(
        25, 3, transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], group_id=group.name
    )
    assert added.error_code == OK

    def commit(member_id, epoch):
        return raw.commit_in_transaction(
            name, producer, group.name, group.topic, 1, generation_id=epoch, member_id=member_id
        )

    assert commit("a", 3) is Code.illegal_generation, "the API knows no error for an epoch"
    assert commit("b", 2) is Code.unknown_member_id
    assert commit("a", 2) is OK
    assert commit("", -1) is OK
    assert raw.end(name, producer, commit=True).error_code == OK


def test_offsets_of_what_is_read_are_not_deleted(raw, group):
    group.beat("a")
    group.commit("a", 2)
    partitions = [{"partition_index": 0}]
    asked = {"group_id": group.name, "topics": [{"name": group.topic, "partitions": partitions}]}
    (topic,) = raw.call(47, 0, **asked).topics
    assert topic.partitions[0].error_code == Code.group_subscribed_to_topic
    group.beat("a", -1)
    (topic,) = raw.call(47, 0, **asked).topics
    assert topic.partitions[0].error_code == OK


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_of_a_group(raw, group):
    asked = {"resource_type": 32, "resource_name": group.name, "configuration_keys": None}

    def found():
        configs = raw.call(32, 4, resources=[asked], include_synonyms=True).results[0].configs
        return {each.name: each for each in configs if each.name.startswith("consumer.")}

    assert sorted(found()) == [
        "consumer.assignment.interval.ms",
        "consumer.heartbeat.interval.ms",
        "consumer.session.timeout.ms",
    ]
    before = found()["consumer.heartbeat.interval.ms"]
    assert (before.value, before.config_source, before.config_type, before.read_only) == ("5000", 5, 3, False)
    assert group.set("consumer.heartbeat.interval.ms", "9000") == OK
    after = found()["consumer.heartbeat.interval.ms"]
    assert (after.value, after.config_source) == ("9000", 8)
    assert [(each.name, each.value, each.source) for each in after.synonyms] == [
        ("consumer.heartbeat.interval.ms", "9000", 8),
        ("group.consumer.heartbeat.interval.ms", "5000", 5),
    ]
    assert group.beat("a").heartbeat_interval.total_seconds() == 9
    for key, value in (
        ("consumer.session.timeout.ms", "1"),
        ("consumer.session.timeout.ms", "x"),
        ("consumer.no", "1"),
    ):
        assert group.set(key, value) == Code.invalid_config


# --- from one protocol to the other -----------------------------------------------------------------------------------


def a_classic_member(group):
    """Alone in a stable classic group: (member id, generation)."""
    first = group.join()
    member_id = first.member_id
    joined = group.join(member_id) if first.error_code == Code.member_id_required else first
    assert joined.error_code == OK
    assigned = write_assignment(1, {group.topic: frozenset(range(4))})
    assert group.sync(member_id, joined.generation_id, assigned={member_id: assigned})[0] is OK
    return member_id, joined.generation_id


def test_g7_a_group_is_upgraded_in_place_and_goes_back(raw, group):
    old, generation = a_classic_member(group)
    assert generation == 1
    new = group.beat("new")
    assert (told(new), group.has(new)) == ((OK, 2), [])
    found = group.describe()
    assert {each.member_id: (each.member_type, each.member_epoch) for each in found.members} == {
        old: (0, 1),
        "new": (1, 2),
    }
    assert group.heartbeat(old, 1) is Code.rebalance_in_progress
    joined = group.join(old, owned=(0, 1, 2, 3))
    assert (joined.error_code, joined.generation_id, joined.leader, joined.members) == (OK, 1, "", ())
    assert joined.protocol_name == "range"
    code, kept = group.sync(old, 1)
    assert (code, len(kept)) == (OK, 2)
    assert group.heartbeat(old, 1) is Code.rebalance_in_progress
    assert group.join(old, owned=kept).generation_id == 2
    assert group.sync(old, 2) == (OK, kept)
    assert group.heartbeat(old, 2) is OK
    answer = group.beat("new", 2)
    assert group.has(answer) == sorted({0, 1, 2, 3} - set(kept))
    assert group.commit(old, 2) is OK
    assert group.commit(old, 3) is Code.illegal_generation
    assert group.heartbeat(old, 3) is Code.illegal_generation
    assert group.heartbeat("new", 2) is Code.unknown_member_id

    assert told(group.beat("new", -1)) == (OK, -1)
    assert group.describe().error_code == Code.group_id_not_found
    assert group.heartbeat(old, 2) is Code.rebalance_in_progress
    joined = group.join(old)
    assert (joined.error_code, joined.generation_id, joined.leader) == (OK, 3, old)
    assigned = write_assignment(1, {group.topic: frozenset(range(4))})
    assert group.sync(old, 3, assigned={old: assigned}) == (OK, [0, 1, 2, 3])


def test_a_classic_member_joins_a_consumer_group(group):
    group.beat("a")
    assert group.join(kind="connect").error_code == Code.inconsistent_group_protocol
    first = group.join()
    assert (first.error_code, bool(first.member_id)) == (Code.member_id_required, True)
    joined = group.join(first.member_id)
    assert (joined.error_code, joined.generation_id) == (OK, 3)
    assert group.join("other", protocols=("roundrobin",)).error_code == Code.inconsistent_group_protocol
    assert group.sync(first.member_id, 2)[0] is Code.illegal_generation
    assert group.sync("a", 2)[0] is Code.unknown_member_id
    assert group.sync(first.member_id, 3) == (OK, [])
    assert group.heartbeat(first.member_id, 3) is OK
    kept = group.has(group.beat("a", 2, has=(0, 1, 2, 3)))
    group.beat("a", 2, has=kept)
    assert group.heartbeat(first.member_id, 3) is Code.rebalance_in_progress
    assert group.join(first.member_id).generation_id == 3
    assert group.sync(first.member_id, 3) == (OK, sorted({0, 1, 2, 3} - set(kept)))
    assert group.leave("nobody") is Code.unknown_member_id
    assert group.leave(first.member_id) is OK
    assert [each.member_id for each in group.describe().members] == ["a"]
    assert group.leave("a") is OK, "members of both protocols leave so"


def test_a_static_member_changes_its_protocol_in_place(group):
    group.beat("a", instance_id="i")
    joined = group.join(instance="i")
    assert (joined.error_code, joined.generation_id) == (OK, 2)
    assert group.describe().error_code == Code.group_id_not_found, "it was the last one"
    back = group.beat("b", instance_id="i")
    assert (back.error_code, group.has(back)) == (OK, [0, 1, 2, 3])


def test_a_static_member_of_several_changes_its_protocol(group):
    group.beat("a", instance_id="i")
    group.beat("b")
    joined = group.join(instance="i")
    assert (joined.error_code, joined.generation_id) == (OK, 3), (
        "it says that it has nothing, so nothing is to be given up"
    )
    found = {each.member_id: (each.instance_id, each.member_type) for each in group.describe().members}
    assert found == {joined.member_id: ("i", 0), "b": (None, 1)}
    assert group.leave("", "i") is OK
    assert [each.member_id for each in group.describe().members] == ["b"]


def test_a_classic_member_with_an_id_of_its_own_is_taken(group):
    group.beat("a")
    assert group.join("mine").error_code == OK
    assert {each.member_id for each in group.describe().members} == {"a", "mine"}


def test_groups_of_other_types_are_not_upgraded(group):
    first = group.join(kind="connect", protocols=("range",))
    joined = group.join(first.member_id, kind="connect", protocols=("range",))
    assert joined.error_code == OK
    assert told(group.beat("a")) == (Code.group_id_not_found, 0)


def test_an_empty_group_changes_its_protocol_without_more(raw, group):
    old, _ = a_classic_member(group)
    group.leave(old)
    assert told(group.beat("a")) == (OK, 2)
    group.beat("a", -1)
    assert a_classic_member(group)[1] == 1
