"""Streams groups (KIP-1071), request by request: our answers and Apache Kafka's are the same.

Every expectation here was met by Apache Kafka 4.3.0 (`pytest --kafka`). What differs are two defaults, which are set to
0 here for both: how long a first member waits for others, and how soon the next assignment is made. Which member gets
which task is the assignor's affair where it could be either: only counts are compared.
"""

import time
from collections.abc import Iterator

import pytest

from mainstem.wire.errors import Code
from tests.contract.clients import Log
from tests.support.raw import codes_of
from tests.support.routed import RoutedClient
from tests.support.streams_groups import (
    DESCRIBE,
    HEARTBEAT,
    NO_TASKS,
    a_part,
    a_topic,
    a_topology,
    joins,
    lives,
    reports,
    tasks_of,
)
from tests.support.waiting import wait_until

OK = Code.none
STALE, NO_SOURCE, PARTITIONS, NO_TOPIC, SHUTDOWN, DELAYED = range(6)


@pytest.fixture
def raw(log: Log) -> Iterator[RoutedClient]:
    with RoutedClient(log.bootstrap) as client:
        client.find_coordinators("any")
        yield client


class Group:
    """One group, and two topics of two partitions: all that its application needs."""

    def __init__(self, raw, name):
        self.raw, self.name, self.topic, self.changelog = raw, name, name, f"{name}-changelog"
        raw.create_topic(self.topic, 2)
        self.topology = a_topology(a_part("0", self.topic, state_changelog_topics=[a_topic(self.changelog)]))
        for key in ("assignment.interval.ms", "initial.rebalance.delay.ms"):
            assert self.set(f"streams.{key}", "0") == OK

    def set(self, key, value):
        resource = {"resource_type": 32, "resource_name": self.name}
        change = {**resource, "configs": [{"name": key, "config_operation": 0, "value": value}]}
        code = self.raw.call(44, 1, resources=[change]).responses[0].error_code
        asked = {**resource, "configuration_keys": [key]}
        until = time.monotonic() + 30
        while code == OK and time.monotonic() < until:  # Kafka's brokers hear of it later
            told = [each.call(32, 4, resources=[asked]).results[0].configs for each in self.raw.brokers.values()]
            if all(found and found[0].value == value for found in told):
                break
            time.sleep(0.05)
        return code

    def has_its_topics(self):
        self.raw.create_topic(self.changelog, 2)
        self.wait_until_told([])
        return self

    def wait_until_told(self, codes):
        """Kafka's coordinators hear of a topic later than its leaders."""

        def are_told():
            found = statuses(self.join("probe"))
            self.beat("probe", -1)
            assert Code(self.raw.call(42, 2, groups_names=[self.name]).results[0].error_code) == OK
            return found == codes

        wait_until(are_told, f"statuses {codes}")

    def join(self, who, **fields):
        return self.raw.settled(HEARTBEAT, 0, **{**joins(self.name, who, self.topology), **fields})

    def beat(self, member_id, epoch, **fields):
        return self.raw.settled(HEARTBEAT, 0, **lives(self.name, member_id, epoch, **fields))

    def describe(self):
        (found,) = self.raw.call(DESCRIBE, 0, group_ids=[self.name], include_authorized_operations=False).groups
        return found

    def commit(self, member_id, epoch, number=0, *, version=9):
        partition = {"partition_index": number, "committed_offset": 1}
        answer = self.raw.call(
            8,
            version,
            group_id=self.name,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            topics=[{"name": self.topic, "partitions": [partition]}],
        )
        (code,) = codes_of(answer) or {OK}
        return code

    def fetch(self, member_id, epoch):
        topics = [{"name": self.topic, "partition_indexes": [0]}]
        asked = {"group_id": self.name, "member_id": member_id, "member_epoch": epoch, "topics": topics}
        (found,) = self.raw.call(9, 9, groups=[asked], require_stable=False).groups
        return Code(found.error_code)


@pytest.fixture
def group(raw, name):
    return Group(raw, name)


@pytest.fixture
def ready(group):
    return group.has_its_topics()


def told(answer):
    return Code(answer.error_code), answer.member_epoch


def statuses(answer):
    return [each.status_code for each in answer.status]


def kept(answer):
    """The report of a member that has done what it was told."""
    return reports(tasks_of(answer.active_tasks), tasks_of(answer.standby_tasks))


# --- heartbeats -------------------------------------------------------------------------------------------------------


def test_the_feature_is_finalized(raw):
    answer = raw.call(18, 4, client_software_name="a", client_software_version="1")
    assert {each.name: each.max_version_level for each in answer.finalized_features}["streams.version"] == 1
    versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert (versions[HEARTBEAT], versions[DESCRIBE]) == ((0, 0), (0, 0))


def test_a_member_joins_lives_and_leaves(ready):
    joined = ready.join("a")
    assert (told(joined), joined.member_id) == ((OK, 2), "a")
    assert (tasks_of(joined.active_tasks), joined.standby_tasks, joined.warmup_tasks) == ({"0": [0, 1]}, (), ())
    assert (joined.heartbeat_interval.total_seconds(), joined.status) == (5, ())
    assert (joined.acceptable_recovery_lag, joined.task_offset_interval.total_seconds()) == (0, 0)
    assert (joined.endpoint_information_epoch, joined.partitions_by_user_endpoint) == (0, ())
    again = ready.beat("a", 2, endpoint_information_epoch=0)
    assert (told(again), again.active_tasks, again.standby_tasks) == ((OK, 2), None, None)
    assert again.partitions_by_user_endpoint is None
    full = ready.beat("a", 2, **kept(joined))
    assert (told(full), full.active_tasks) == ((OK, 2), None)
    left = ready.beat("a", -1)
    assert (told(left), left.member_id, left.active_tasks, left.status) == ((OK, -1), "a", None, ())
    assert left.heartbeat_interval.total_seconds() == 0
    assert told(ready.beat("a", 2)) == (Code.unknown_member_id, 0)
    assert told(ready.beat("a", -1)) == (Code.unknown_member_id, 0)


def test_a_task_is_given_up_before_another_member_gets_it(ready):
    a = ready.join("a")
    b = ready.join("b")
    assert (told(b), b.active_tasks) == ((OK, 3), ())
    less = ready.beat("a", 2, **kept(a))
    assert (told(less), [len(found) for found in tasks_of(less.active_tasks).values()]) == ((OK, 2), [1])
    waits = ready.beat("b", 3, **NO_TASKS)
    assert (told(waits), waits.active_tasks) == ((OK, 3), None)
    assert told(ready.beat("a", 2)) == (OK, 2), "nothing is said of its tasks"
    done = ready.beat("a", 2, **kept(less))
    assert (told(done), done.active_tasks) == ((OK, 3), None)
    more = ready.beat("b", 3)
    assert sorted(tasks_of(each.active_tasks)["0"] for each in (less, more)) == [[0], [1]]
    assert ready.describe().group_state == "Stable"


def test_standbys_are_assigned(ready):
    assert ready.set("streams.num.standby.replicas", "1") == OK
    a, b = ready.join("a"), ready.join("b")
    less = ready.beat("a", 2, **kept(a))
    ready.beat("a", 2, **kept(less))
    epochs = {"a": 3, "b": 3}
    has = {"a": kept(less), "b": kept(b)}

    def settled():
        for member_id in ("a", "b"):
            answer = ready.beat(member_id, epochs[member_id], **has[member_id])
            epochs[member_id] = answer.member_epoch
            if answer.active_tasks is not None:
                has[member_id] = kept(answer)
        return ready.describe().group_state == "Stable"

    wait_until(settled, "everybody has what it is to have")
    found = {each.member_id: each.assignment for each in ready.describe().members}
    assert sorted(tasks_of(each.active_tasks)["0"] for each in found.values()) == [[0], [1]]
    for one, other in (("a", "b"), ("b", "a")):
        assert tasks_of(found[one].active_tasks) == tasks_of(found[other].standby_tasks)


def test_a_lost_answer_does_no_harm(ready):
    a = ready.join("a")
    ready.join("b")
    less = ready.beat("a", 2, **kept(a))
    ready.beat("a", 2, **kept(less))
    assert told(ready.beat("a", 2, **kept(less))) == (OK, 3)
    assert told(ready.beat("a", 2)) == (Code.fenced_member_epoch, 0)
    assert told(ready.beat("a", 2, **kept(a))) == (Code.fenced_member_epoch, 0)
    assert told(ready.beat("a", 9)) == (Code.fenced_member_epoch, 0)
    again = ready.join("a")
    assert (told(again), tasks_of(again.active_tasks)) == ((OK, 3), tasks_of(less.active_tasks))


def test_a_group_that_is_not_there(group):
    assert told(group.beat("a", 1)) == (Code.group_id_not_found, 0)
    assert told(group.beat("a", -1)) == (Code.group_id_not_found, 0)


# --- topologies -------------------------------------------------------------------------------------------------------


def test_missing_topics_are_made(group):
    group.topology = a_topology(
        a_part("0", group.topic, repartition_sink_topics=[f"{group.name}-r"]),
        a_part(
            "1",
            repartition_source_topics=[a_topic(f"{group.name}-r")],
            state_changelog_topics=[
                a_topic(group.changelog, topic_configs=[{"key": "cleanup.policy", "value": "compact"}])
            ],
        ),
    )
    joined = group.join("a")
    assert (told(joined), statuses(joined), joined.active_tasks) == ((OK, 2), [NO_TOPIC], ())
    prefix = "Internal topics are missing: "
    assert joined.status[0].status_detail.startswith(prefix)
    named = joined.status[0].status_detail.removeprefix(prefix)
    assert set(named.split(", ")) == {group.changelog, f"{group.name}-r"}
    assert group.describe().group_state in ("NotReady", "Stable")
    answers = {}

    def assigned():
        answers["last"] = group.beat("a", group.describe().members[0].member_epoch, **NO_TASKS)
        return answers["last"].active_tasks

    wait_until(assigned, "tasks are assigned")
    assert statuses(answers["last"]) == []
    assert tasks_of(answers["last"].active_tasks) == {"0": [0, 1], "1": [0, 1]}
    for name in (group.changelog, f"{group.name}-r"):
        group.raw.wait_for_topic(name, 2)
    asked = {"resource_type": 2, "resource_name": group.changelog, "configuration_keys": ["cleanup.policy"]}
    assert group.raw.call(32, 4, resources=[asked]).results[0].configs[0].value == "compact"
    first, second = group.describe().topology.subtopologies
    assert [(each.name, each.partitions) for each in second.state_changelog_topics] == [(group.changelog, 2)]
    assert first.repartition_sink_topics == (f"{group.name}-r",)


def test_missing_sources_are_told(group):
    group.topology = a_topology(a_part("0", group.topic, f"{group.name}-other"))
    joined = group.join("a")
    assert (told(joined), joined.active_tasks) == ((OK, 2), ())
    assert [(each.status_code, each.status_detail) for each in joined.status] == [
        (NO_SOURCE, f"Source topics {group.name}-other are missing.")
    ]
    found = group.describe()
    assert (found.group_state, found.topology.subtopologies[0].source_topics) == (
        "NotReady",
        (group.topic, f"{group.name}-other"),
    )


def test_topics_that_do_not_fit_are_told(group):
    group.raw.create_topic(group.changelog, 3)
    group.wait_until_told([PARTITIONS])
    joined = group.join("a")
    assert [(each.status_code, each.status_detail) for each in joined.status] == [
        (
            PARTITIONS,
            f"Existing topic {group.changelog} has different number of partitions: expected 2, found 3",
        )
    ]


def test_joined_topics_need_as_many_partitions(group):
    other = f"{group.name}-other"
    group.raw.create_topic(other, 3)
    joined = {"source_topics": [0, 1], "source_topic_regex": [], "repartition_source_topics": []}
    group.topology = a_topology(a_part("0", group.topic, other, copartition_groups=[joined]))
    group.wait_until_told([PARTITIONS])
    answer = group.join("a")
    assert [(each.status_code, each.status_detail) for each in answer.status] == [
        (
            PARTITIONS,
            f"Following topics do not have the same number of partitions: [{{{group.topic}=2, {other}=3}}]",
        )
    ]


def test_the_topology_stays(ready):
    topology = ready.topology
    ready.topology = {**topology, "epoch": 3}
    ready.join("a")
    ready.topology = {**topology, "epoch": 4}
    refused = ready.join("b")
    assert (Code(refused.error_code), "Topology updates are not supported yet." in refused.error_message) == (
        Code.invalid_request,
        True,
    )
    ready.topology = {**topology, "epoch": 2}
    stale = ready.join("c")
    assert [(each.status_code, each.status_detail) for each in stale.status] == [
        (STALE, "The member's topology epoch 2 is behind the group's topology epoch 3.")
    ]


R = "never-a-topic"


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"repartition_sink_topics": [R], "repartition_source_topics": [a_topic(R)]}, OK),
        ({"repartition_source_topics": [a_topic(R)]}, Code.streams_invalid_topology),
        ({"state_changelog_topics": [a_topic(R, 1)]}, Code.streams_invalid_topology),
        ({"repartition_sink_topics": ["__consumer_offsets"]}, Code.streams_invalid_topology),
        ({"repartition_sink_topics": ["a b"]}, Code.streams_invalid_topology),
        ({"source_topic_regex": ["a.*"]}, Code.invalid_request),
    ],
)
def test_topologies_that_cannot_work(group, part, code):
    group.topology = a_topology(a_part("0", group.topic, **part))
    assert Code(group.join("a").error_code) == code


def test_a_loop_without_a_source_cannot_work(group):
    loop = {"repartition_sink_topics": [R], "repartition_source_topics": [a_topic(R)]}
    group.topology = a_topology(a_part("0", **loop))
    answer = group.join("a")
    assert (Code(answer.error_code), "loops in the topology" in answer.error_message) == (
        Code.streams_invalid_topology,
        True,
    )


# --- requests that make no sense --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "fields", "message"),
    [
        (0, {"instance_id": "i"}, "Static membership is not yet supported."),
        (0, {"task_offsets": []}, "TaskOffsets are not supported yet."),
        (0, {"task_end_offsets": []}, "TaskEndOffsets are not supported yet."),
        (0, {"member_id": ""}, "MemberId can't be empty."),
        (0, {"rack_id": ""}, "RackId can't be empty."),
        (0, {"rebalance_timeout": -1}, "RebalanceTimeoutMs must be provided in first request."),
        (0, {"active_tasks": None}, "ActiveTasks must be empty when (re-)joining."),
        (0, reports({"0": [0]}), "ActiveTasks must be empty when (re-)joining."),
        (0, reports({}, {"0": [0]}), "StandbyTasks must be empty when (re-)joining."),
        (0, {"topology": None}, "Topology must be non-null when (re-)joining."),
        (-2, {}, "InstanceId can't be null."),
        (-3, {}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        (1, {"active_tasks": []}, "If one task-type is non-null, all must be non-null."),
        (1, {"standby_tasks": []}, "If one task-type is non-null, all must be non-null."),
        (1, {"topology": a_topology(a_part("0", "a"))}, "Topology can only be provided when (re-)joining."),
    ],
)
def test_requests_that_make_no_sense(ready, epoch, fields, message):
    answer = ready.beat("a", epoch, **fields) if epoch else ready.join("a", **fields)
    assert (Code(answer.error_code), answer.error_message) == (Code.invalid_request, message)


def test_warm_ups_are_refused(ready):
    ready.join("a")
    warm = {**NO_TASKS, "warmup_tasks": [{"subtopology_id": "0", "partitions": [0]}]}
    answer = ready.beat("a", 2, **warm)
    assert (Code(answer.error_code), answer.error_message) == (
        Code.invalid_request,
        "WarmupTasks are not supported yet.",
    )


def test_tasks_that_there_are_not(ready):
    ready.join("a")
    for tasks in ({"0": [2]}, {"7": [0]}):
        assert Code(ready.beat("a", 2, **reports(tasks)).error_code) == Code.invalid_request


# --- endpoints, and the end of it all ---------------------------------------------------------------------------------


def test_endpoints_are_told(ready):
    first = ready.join("a", user_endpoint={"host": "here", "port": 65_535})
    (found,) = first.partitions_by_user_endpoint
    assert (found.user_endpoint.host, found.user_endpoint.port, first.endpoint_information_epoch) == ("here", 65_535, 0)
    assert [(each.topic, each.partitions) for each in found.active_partitions] == [(ready.topic, (0, 1))]
    assert found.standby_partitions == ()
    second = ready.join("b", user_endpoint={"host": "there", "port": 1})
    assert second.endpoint_information_epoch == 1
    assert {each.user_endpoint.host for each in second.partitions_by_user_endpoint} == {"here", "there"}
    assert ready.beat("b", 3, endpoint_information_epoch=1).partitions_by_user_endpoint is None
    assert len(ready.beat("a", 2, endpoint_information_epoch=0).partitions_by_user_endpoint) == 2


def test_a_member_asks_all_to_end(ready):
    ready.join("a")
    ready.join("b")
    answer = ready.beat("a", 2, shutdown_application=True)
    assert [(each.status_code, each.status_detail) for each in answer.status] == [
        (
            SHUTDOWN,
            "Streams group member a encountered a fatal error and requested a shutdown for the entire application.",
        )
    ]
    ready.beat("a", -1)
    assert statuses(ready.beat("b", 3)) == [SHUTDOWN]
    ready.beat("b", -1)
    assert statuses(ready.join("c")) == []


def test_a_first_assignment_may_wait(ready):
    assert ready.set("streams.initial.rebalance.delay.ms", "1500") == OK
    first = ready.join("a")
    assert (told(first), first.active_tasks, statuses(first)) == ((OK, 1), (), [DELAYED])
    assert first.status[0].status_detail == "Assignment delayed due to the configured initial rebalance delay."
    assert statuses(ready.join("b")) == [DELAYED]
    time.sleep(2)
    for member_id in ("a", "b"):
        answer = ready.join(member_id)
        assert (told(answer), [len(found) for found in tasks_of(answer.active_tasks).values()]) == ((OK, 3), [1])


def test_an_assignment_may_wait(ready):
    assert ready.set("streams.assignment.interval.ms", "15000") == OK
    assert told(ready.join("a")) == (OK, 2)
    second = ready.join("b")
    assert (told(second), second.active_tasks, statuses(second)) == ((OK, 2), (), [DELAYED])
    assert second.status[0].status_detail == "Assignment delayed due to the configured assignment interval."


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_offsets_are_committed_by_epoch(ready):
    a = ready.join("a")
    assert ready.commit("a", 2) == OK
    assert ready.commit("a", 2, version=8) == Code.unsupported_version
    assert ready.commit("a", 3) == Code.stale_member_epoch
    assert ready.commit("x", 2) == Code.unknown_member_id
    assert ready.commit("", -1) == Code.unknown_member_id
    ready.join("b")
    less = ready.beat("a", 2, **kept(a))
    ready.beat("a", 2, **kept(less))
    ((mine,),) = tasks_of(less.active_tasks).values()
    assert ready.commit("a", 2, mine) == OK
    assert ready.commit("a", 2, 1 - mine) == Code.stale_member_epoch
    assert ready.fetch("a", 3) == OK
    assert ready.fetch("a", 2) == Code.stale_member_epoch
    assert ready.fetch("x", 2) == Code.unknown_member_id
    assert ready.fetch(None, -1) == OK


def test_a_transaction_commits_by_epoch(raw, ready):
    ready.join("a")
    producer = raw.settled(22, 4, transactional_id=ready.name, transaction_timeout=30_000)
    who = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    raw.settled(25, 3, transactional_id=ready.name, group_id=ready.name, **who)

    def commit(member_id, epoch):
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        answer = raw.settled(
            28,
            3,
            transactional_id=ready.name,
            group_id=ready.name,
            member_id=member_id,
            generation_id=epoch,
            topics=[{"name": ready.topic, "partitions": [partition]}],
            **who,
        )
        (code,) = codes_of(answer) or {OK}
        return code

    assert commit("a", 2) == OK
    assert commit("", -1) == OK
    assert commit("a", 3) == Code.illegal_generation
    assert commit("x", 2) == Code.unknown_member_id


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_is_described(ready):
    tags = [{"key": "zone", "value": "z"}]
    ready.join("a", process_id="p", rack_id="r", client_tags=tags, user_endpoint={"host": "here", "port": 1})
    found = ready.describe()
    assert (found.error_code, found.group_state, found.group_epoch, found.assignment_epoch) == (OK, "Stable", 2, 2)
    (part,) = found.topology.subtopologies
    assert (found.topology.epoch, part.subtopology_id, part.source_topics) == (0, "0", (ready.topic,))
    (changelog,) = part.state_changelog_topics
    assert (changelog.name, changelog.replication_factor) == (ready.changelog, 0)
    assert changelog.partitions in (2, 0)  # of a new group Kafka does not tell what it has worked out
    (member,) = found.members
    assert (member.member_id, member.member_epoch, member.instance_id, member.rack_id) == ("a", 2, None, "r")
    assert (member.client_id, member.process_id, member.topology_epoch, member.is_classic) == ("raw", "p", 0, False)
    assert (member.user_endpoint.host, member.user_endpoint.port) == ("here", 1)
    assert [(each.key, each.value) for each in member.client_tags] == [("zone", "z")]
    assert (member.task_offsets, member.task_end_offsets) == ((), ())
    assert tasks_of(member.assignment.active_tasks) == tasks_of(member.target_assignment.active_tasks) == {"0": [0, 1]}
    ready.beat("a", -1)
    found = ready.describe()
    assert (found.group_state, found.group_epoch, found.assignment_epoch, found.members) == ("Empty", 3, 2, ())


def test_groups_of_other_protocols_are_none(raw, group):
    raw.settled(8, 8, group_id=group.name, member_id="", generation_id_or_member_epoch=-1, topics=[])
    missing = group.describe()
    assert Code(missing.error_code) == Code.group_id_not_found
    full = {"rebalance_timeout": 60_000, "topic_partitions": [], "subscribed_topic_names": [group.topic]}
    raw.settled(68, 1, group_id=group.name, member_id="m", member_epoch=0, **full)
    assert told(group.join("a")) == (Code.group_id_not_found, 0)
    found = group.describe()
    assert (Code(found.error_code), found.error_message) == (
        Code.group_id_not_found,
        f"Group {group.name} is not a streams group.",
    )


def test_other_apis_know_the_group(raw, ready):
    ready.join("a")
    listed = {
        each.group_id: each
        for answer in raw.everywhere(16, 5, types_filter=["Streams"], states_filter=["stable"])
        for each in answer.groups
    }
    found = listed[ready.name]
    assert (found.group_type, found.group_state, found.protocol_type) == ("streams", "Stable", "streams")
    (found,) = raw.call(15, 6, groups=[ready.name]).groups
    assert (Code(found.error_code), found.error_message) == (
        Code.group_id_not_found,
        f"Group {ready.name} is not a classic group.",
    )
    full = {"rebalance_timeout": 60_000, "topic_partitions": [], "subscribed_topic_names": [ready.topic]}
    answer = raw.call(68, 1, group_id=ready.name, member_id="m", member_epoch=0, **full)
    assert Code(answer.error_code) == Code.group_id_not_found
    partitions = [{"partition_index": 0}]
    ready.commit("a", 2)
    (topic,) = raw.call(47, 0, group_id=ready.name, topics=[{"name": ready.topic, "partitions": partitions}]).topics
    assert Code(topic.partitions[0].error_code) == Code.group_subscribed_to_topic
    assert Code(raw.call(42, 2, groups_names=[ready.name]).results[0].error_code) == Code.non_empty_group
    ready.beat("a", -1)
    assert Code(raw.call(42, 2, groups_names=[ready.name]).results[0].error_code) == OK
    assert Code(ready.describe().error_code) == Code.group_id_not_found


def test_an_empty_group_changes_its_protocol(raw, ready):
    """One without members may become a classic group, and a classic one without members a streams group."""
    member = {
        "group_id": ready.name,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    ready.join("a")
    assert Code(raw.settled(11, 3, **member).error_code) == Code.inconsistent_group_protocol
    ready.beat("a", -1)
    joined = raw.settled(11, 3, **member)
    assert Code(joined.error_code) == OK
    assert told(ready.join("a")) == (Code.group_id_not_found, 0)
    raw.call(13, 0, group_id=ready.name, member_id=joined.member_id)
    assert told(ready.join("a")) == (OK, 2)
