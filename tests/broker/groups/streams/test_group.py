import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstem.broker.groups.config import StreamsGroupConfig
from mainstem.broker.groups.errors import (
    FencedMemberEpoch,
    GroupError,
    GroupFull,
    GroupNotEmpty,
    IllegalGeneration,
    StaleMemberEpoch,
    UnknownMember,
)
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.modern.partitions import each
from mainstem.broker.groups.streams.configured import InvalidTopology, StatusCode
from mainstem.broker.groups.streams.group import StreamsGroup
from mainstem.broker.groups.streams.messages import JOIN, Endpoint, Heartbeat
from mainstem.broker.groups.streams.records import CurrentKey, CurrentValue, MemberState, TopologyKey
from mainstem.broker.groups.streams.tasks import NO_TASKS, HeldTasks, Tasks
from mainstem.broker.groups.streams.topology import InternalTopic, Subtopology, Topology
from mainstem.core import ManualClock, TopicPartition
from mainstem.wire.errors import Code
from tests.support.properties import examples
from tests.support.topics import FakeTopics

SESSION_MS, REBALANCE_MS = 45_000, 30_000
READS = Subtopology(subtopology_id="0", source_topics=("lines",), repartition_sink_topics=("by_word",))
COUNTS = Subtopology(
    subtopology_id="1",
    repartition_source_topics=(InternalTopic("by_word"),),
    changelog_topics=(InternalTopic("counts"),),
)
WORDS = Topology(0, (READS, COUNTS))


def tasks(zero=(), one=(), standby=()):
    """Tasks of the two parts; standbys are of the second, which has state."""
    active = {name: frozenset(numbers) for name, numbers in (("0", zero), ("1", one)) if numbers}
    return Tasks(active, {"1": frozenset(standby)} if standby else {})


class Desk:
    """A group with its clock and topics, and everything it has asked to be stored, change by change."""

    def __init__(self, topics=None, **config):
        self.clock = ManualClock()
        self.topics = FakeTopics(lines=2, by_word=2, counts=2) if topics is None else topics
        self.config = StreamsGroupConfig(**config)
        self.group = self.new()
        self.log = []

    def new(self):
        return StreamsGroup("g", self.clock, self.topics, lambda: self.config)

    def beat(self, member_id, epoch=JOIN, reported=None, topology=None, **fields):
        if epoch == JOIN:
            first = {"process_id": member_id[0], "rebalance_timeout_ms": REBALANCE_MS}
            fields, reported, topology = first | fields, reported or NO_TASKS, topology or WORDS
        request = Heartbeat(member_id=member_id, epoch=epoch, reported=reported, topology=topology, **fields)
        change = self.group.heartbeat(request)
        self.log.append(change.entries)
        return change.answer

    def remove(self, *member_ids, **fields):
        self.log.append(self.group.remove(member_ids, **fields).entries)

    def pass_time(self, milliseconds):
        """Time goes by, and who was not heard of is removed."""
        self.clock.advance_ms(milliseconds)
        overdue = self.group.overdue()
        if overdue:
            self.remove(*overdue)
        return overdue

    def restored(self):
        """The group as a start would build it from what was stored."""
        group = self.new()
        for entries in self.log:
            for key, value in entries:
                group.put(key, value)
        group.start_sessions()
        return group

    def codes(self, answer):
        return [status.code for status in answer.status]


# --- joining and reconciling ------------------------------------------------------------------------------------------


def test_a_member_joins_and_has_every_task():
    desk = Desk()
    answer = desk.beat("a")
    assert (answer.epoch, answer.tasks, answer.status) == (2, tasks((0, 1), (0, 1)), ())
    assert desk.group.state_name == "Stable"
    again = desk.beat("a", 2)
    assert (again.epoch, again.tasks) == (2, None)


def test_a_second_member_gets_tasks_when_the_first_has_given_them_up():
    desk = Desk()
    mine = desk.beat("a").tasks
    answer = desk.beat("b")
    assert (answer.epoch, answer.tasks, desk.group.state_name) == (3, NO_TASKS, "Reconciling")
    kept = desk.beat("a", 2, mine).tasks
    assert len(list(each(kept.active))) == 2
    assert desk.beat("b", 3).tasks is None
    assert desk.beat("a", 2).tasks is None, "without a report it shows nothing"
    assert desk.beat("a", 2, kept).epoch == 3
    theirs = desk.beat("b", 3, NO_TASKS).tasks
    assert sorted([*each(kept.active), *each(theirs.active)]) == sorted(each(mine.active))
    assert desk.group.state_name == "Stable"


def test_standbys_are_in_the_other_process():
    desk = Desk(num_standby_replicas=1)
    desk.beat("a")
    early = desk.beat("b").tasks
    assert (early.active, len(early.standby["1"])) == ({}, 1)
    kept = desk.beat("a", 2, tasks((0, 1), (0, 1))).tasks
    desk.beat("a", 2, kept)
    theirs = desk.beat("b", 3, early).tasks
    mine = desk.beat("a", 3, kept).tasks
    assert theirs.standby == {"1": kept.active["1"]}
    assert mine.standby == {"1": theirs.active["1"]}


def test_other_settings_are_another_assignment():
    desk = Desk()
    desk.beat("a1")
    desk.beat("b1")
    desk.config = StreamsGroupConfig(num_standby_replicas=1)
    epoch = desk.group.epoch
    desk.beat("b1", 3)
    assert desk.group.epoch == epoch + 1
    assert desk.group.target("b1").standby != {} or desk.group.target("a1").standby != {}


def test_an_answer_may_be_lost():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    kept = desk.beat("a", 2, tasks((0, 1), (0, 1))).tasks
    desk.beat("a", 2, kept)
    assert desk.beat("a", 2, kept).epoch == 3, "the answer with the new epoch was lost"
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 2)
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 2, tasks((0, 1), (0, 1)))
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 4)


def test_an_answer_that_asks_for_more_to_be_given_up_may_be_lost():
    desk = Desk(FakeTopics(lines=6, by_word=6, counts=6))
    mine = desk.beat("a").tasks
    desk.beat("b")
    kept = desk.beat("a", 2, mine).tasks
    desk.beat("c")
    less = desk.beat("a", 2, kept)
    assert (less.epoch, desk.group.current("a").state) == (3, MemberState.UNREVOKED_TASKS)
    again = desk.beat("a", 2, kept)
    assert (again.epoch, again.tasks) == (3, less.tasks), "it has not heard of it"
    assert desk.beat("a", 3, less.tasks).epoch == 4


def test_what_a_lost_answer_has_told_is_told_again():
    desk = Desk()
    mine = desk.beat("a").tasks
    desk.beat("b")
    kept = desk.beat("a", 2, mine).tasks
    desk.beat("a", 2, kept)
    more = desk.beat("b", 3).tasks
    assert desk.beat("b", 3, NO_TASKS).tasks == more
    assert desk.beat("b", 3, more).tasks is None


def test_members_that_are_not_there():
    desk = Desk()
    with pytest.raises(UnknownMember):
        desk.beat("a", 2)
    with pytest.raises(UnknownMember):
        desk.remove("a")
    assert desk.log == []


def test_a_group_has_a_limit():
    desk = Desk(max_size=1)
    desk.beat("a")
    with pytest.raises(GroupFull):
        desk.beat("b")
    assert desk.beat("a").epoch == 2


def test_members_of_one_process_hand_over_a_task_too():
    desk = Desk()
    mine = desk.beat("p1").tasks
    assert desk.beat("p2").tasks == NO_TASKS
    kept = desk.beat("p1", 2, mine).tasks
    assert desk.beat("p2", 3, NO_TASKS).tasks is None
    desk.beat("p1", 2, kept)
    assert len(list(each(desk.beat("p2", 3, NO_TASKS).tasks.active))) == 2


def test_a_process_has_a_task_once():
    desk = Desk()
    desk.beat("p1")
    desk.beat("p2")
    desk.group.put(CurrentKey("g", "p1"), CurrentValue(2, 2, assigned=HeldTasks(standby={"0": frozenset((0, 1))})))
    answer = desk.beat("p2", 3, NO_TASKS)
    assert (answer.tasks.active.keys(), desk.group.current("p2").state) == ({"1"}, MemberState.UNRELEASED_TASKS)


def test_a_member_of_an_unknown_state_joins_anew():
    desk = Desk()
    desk.beat("a")
    held = desk.group.current("a").assigned
    desk.group.put(CurrentKey("g", "a"), CurrentValue(2, 2, MemberState.UNKNOWN, held))
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 2)
    assert desk.beat("a").tasks == tasks((0, 1), (0, 1))


# --- the topology -----------------------------------------------------------------------------------------------------


def test_topics_that_are_missing_are_told_until_they_are_there():
    desk = Desk(FakeTopics(lines=2))
    answer = desk.beat("a")
    assert (answer.epoch, answer.tasks, desk.codes(answer)) == (2, NO_TASKS, [StatusCode.MISSING_INTERNAL_TOPICS])
    assert [(topic.name, topic.partitions) for topic in answer.missing] == [("by_word", 2), ("counts", 2)]
    assert desk.group.state_name == "NotReady"
    desk.topics.create("by_word", 2)
    assert [topic.name for topic in desk.beat("a", 2).missing] == ["counts"]
    desk.topics.create("counts", 2)
    answer = desk.beat("a", 3, NO_TASKS)
    assert (answer.tasks, answer.status) == (tasks((0, 1), (0, 1)), ())


def test_without_its_source_the_application_waits():
    desk = Desk(FakeTopics())
    assert desk.codes(desk.beat("a")) == [StatusCode.MISSING_SOURCE_TOPICS]
    desk.topics.create("lines", 1)
    assert desk.codes(desk.beat("a", 2)) == [StatusCode.MISSING_INTERNAL_TOPICS]


def test_tasks_are_taken_back_when_a_topic_goes():
    desk = Desk()
    mine = desk.beat("a").tasks
    desk.topics.delete("lines")
    answer = desk.beat("a", 2, mine)
    assert (answer.tasks, desk.codes(answer)) == (NO_TASKS, [StatusCode.MISSING_SOURCE_TOPICS])
    assert desk.beat("a", 2, NO_TASKS).epoch == 3


def test_a_source_that_grows_is_told():
    desk = Desk()
    desk.beat("a")
    desk.topics.grow("lines")
    assert desk.codes(desk.beat("a", 2)) == [StatusCode.INCORRECTLY_PARTITIONED_TOPICS]


def test_other_topics_are_none_of_its_affair():
    desk = Desk()
    desk.beat("a")
    desk.topics.create("other", 3)
    desk.beat("a", 2)
    assert desk.log[-1] == []


def test_the_topology_stays_as_it_was_brought():
    desk = Desk()
    desk.beat("a", topology=Topology(1, WORDS.subtopologies))
    for other in (Topology(2, WORDS.subtopologies), Topology(1, (READS,))):
        with pytest.raises(GroupError) as refused:
            desk.beat("b", topology=other)
        assert refused.value.code is Code.invalid_request
    answer = desk.beat("c", topology=WORDS)
    assert desk.codes(answer) == [StatusCode.STALE_TOPOLOGY]
    assert answer.status[0].detail == "The member's topology epoch 0 is behind the group's topology epoch 1."


def test_a_topology_that_cannot_work_leaves_nothing_behind():
    desk = Desk()
    with pytest.raises(InvalidTopology):
        desk.beat("a", topology=Topology(0, (COUNTS,)))
    assert desk.group.entries() == []
    assert desk.beat("a").tasks == tasks((0, 1), (0, 1))


def test_who_has_a_task_that_there_is_not_is_told_so():
    desk = Desk()
    desk.beat("a")
    for wrong, message in (
        (tasks((2,)), "Task 2 for subtopology 0 is invalid. Number of tasks for this subtopology: 2"),
        (Tasks({"7": frozenset((0,))}), "Subtopology 7 does not exist in the topology."),
    ):
        with pytest.raises(GroupError, match=message):
            desk.beat("a", 2, wrong)


def test_members_bring_a_topology_that_was_lost():
    desk = Desk()
    desk.beat("a")
    desk.group.put(TopologyKey("g"), None)
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 2)
    assert desk.beat("a").tasks == tasks((0, 1), (0, 1))


# --- when it is assigned ----------------------------------------------------------------------------------------------


def test_the_first_members_are_assigned_together():
    desk = Desk(initial_rebalance_delay_ms=3_000)
    answer = desk.beat("a")
    assert (answer.epoch, answer.tasks, desk.codes(answer)) == (1, NO_TASKS, [StatusCode.ASSIGNMENT_DELAYED])
    assert desk.group.state_name == "Assigning"
    desk.beat("b")
    desk.clock.advance_ms(2_999)
    assert desk.codes(desk.beat("a")) == [StatusCode.ASSIGNMENT_DELAYED]
    desk.clock.advance_ms(1)
    for member_id in ("a", "b"):
        answer = desk.beat(member_id)
        assert (answer.epoch, len(list(each(answer.tasks.active))), answer.status) == (3, 2, ())


def test_assignments_have_an_interval():
    desk = Desk(assignment_interval_ms=1_000)
    desk.beat("a")
    answer = desk.beat("b")
    assert (answer.epoch, desk.codes(answer)) == (2, [StatusCode.ASSIGNMENT_DELAYED])
    desk.clock.advance_ms(1_000)
    assert desk.beat("b", 2).epoch == 3


@pytest.mark.parametrize("interval_ms", [0, 1_000])
def test_a_clock_that_was_set_back_delays_no_assignment(interval_ms):
    """The target was made in what is the future now: nobody who came got anything until then."""
    desk = Desk(assignment_interval_ms=interval_ms)
    desk.beat("a")
    desk.clock.set_back_ms(3_600_000)
    desk.group = desk.restored()
    answer = desk.beat("b")
    assert (answer.epoch, answer.status) == (3, ())


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_a_member_leaves():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    with pytest.raises(GroupNotEmpty):
        desk.group.delete()
    desk.remove("b")
    assert desk.beat("a", 2, tasks((0, 1), (0, 1))).epoch == 4
    desk.remove("a")
    assert desk.group.state_name == "Empty"
    desk.group.delete()
    assert sorted(map(str, desk.group.tombstones())) == sorted(str((key, None)) for key, _ in desk.group.entries())


def test_a_member_is_not_heard_of():
    desk = Desk()
    desk.beat("a")
    desk.pass_time(20_000)
    desk.beat("b")
    assert desk.pass_time(25_000) == ["a"]
    assert desk.beat("b", 3, NO_TASKS).tasks == tasks((0, 1), (0, 1))


def test_a_member_that_gives_nothing_up_is_removed():
    desk = Desk()
    mine = desk.beat("a").tasks
    desk.beat("b")
    desk.beat("a", 2, mine)
    desk.clock.advance_ms(REBALANCE_MS - 1)
    assert desk.pass_time(0) == []
    desk.beat("a", 2, mine)
    desk.beat("b", 3)
    assert desk.pass_time(1) == ["a"]


def test_a_member_may_end_the_whole_application():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    answer = desk.beat("a", 2, shuts_down=True)
    assert desk.codes(answer) == [StatusCode.SHUTDOWN_APPLICATION]
    assert "Streams group member a encountered a fatal error" in answer.status[0].detail
    desk.remove("a")
    assert desk.codes(desk.beat("b", 3)) == [StatusCode.SHUTDOWN_APPLICATION]
    desk.remove("b")
    assert desk.beat("c").status == ()


def test_who_leaves_may_ask_for_it_too():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    desk.remove("a", shuts_down=True)
    assert desk.codes(desk.beat("b", 3)) == [StatusCode.SHUTDOWN_APPLICATION]


# --- endpoints --------------------------------------------------------------------------------------------------------


def test_members_are_told_who_answers_queries_of_what():
    desk = Desk()
    answer = desk.beat("a", endpoint=("host", 65_535))
    everything = {"lines": frozenset((0, 1)), "by_word": frozenset((0, 1))}
    assert answer.endpoints == (Endpoint("host", 65_535, everything, {}),)
    assert answer.endpoint_epoch == 0
    assert desk.beat("a", 2, endpoint_epoch=0).endpoints is None
    answer = desk.beat("b", endpoint=("other", 1))
    assert answer.endpoint_epoch == 1
    assert [(each.host, each.active) for each in answer.endpoints] == [("host", everything), ("other", {})]
    assert [each.host for each in desk.beat("a", 2, endpoint_epoch=0).endpoints] == ["host", "other"]


# --- offsets ----------------------------------------------------------------------------------------------------------


def commit(desk, member_id="", epoch=-1, topic="lines", number=0, **fields):
    partitions = (TopicPartition(topic, number),)
    desk.group.check_commit(Commit(member_id=member_id, generation=epoch, partitions=partitions, **fields))


def test_who_may_commit():
    desk = Desk()
    commit(desk)
    desk.beat("a")
    commit(desk, "a", 2)
    commit(desk, transactional=True)
    with pytest.raises(UnknownMember):
        commit(desk)
    with pytest.raises(UnknownMember):
        commit(desk, "x", 2)
    with pytest.raises(StaleMemberEpoch):
        commit(desk, "a", 3)
    with pytest.raises(IllegalGeneration):
        commit(desk, "a", 3, transactional=True)
    with pytest.raises(GroupError) as old:
        commit(desk, "a", 2, knows_epochs=False)
    assert old.value.code is Code.unsupported_version


def test_an_epoch_that_is_over_is_good_for_tasks_that_were_had_since():
    desk = Desk()
    mine = desk.beat("a").tasks
    desk.beat("b")
    kept = desk.beat("a", 2, mine).tasks
    gone = sorted(set(each(mine.active)) - set(each(kept.active)))
    desk.beat("a", 2, kept)
    assert desk.group.current("a").epoch == 3
    topics = {"0": "lines", "1": "by_word"}
    for name, number in each(kept.active):
        commit(desk, "a", 2, topics[name], number)
    for name, number in gone:
        with pytest.raises(StaleMemberEpoch):
            commit(desk, "a", 2, topics[name], number)
    with pytest.raises(StaleMemberEpoch):
        commit(desk, "a", 2, "counts")


def test_what_is_given_up_may_be_committed_until_it_is():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    desk.group.put(
        CurrentKey("g", "a"),
        CurrentValue(3, 2, MemberState.UNREVOKED_TASKS, revoking=HeldTasks({"0": {0: 2}})),
    )
    commit(desk, "a", 2)
    with pytest.raises(StaleMemberEpoch):
        commit(desk, "a", 1)


def test_who_is_told_offsets():
    desk = Desk()
    desk.beat("a")
    desk.group.check_fetch(None, -1)
    desk.group.check_fetch("a", 2)
    with pytest.raises(StaleMemberEpoch):
        desk.group.check_fetch("a", 1)
    with pytest.raises(UnknownMember):
        desk.group.check_fetch("x", 2)


def test_offsets_of_what_it_reads_do_not_expire():
    desk = Desk()
    desk.beat("a")
    assert [desk.group.expires_offsets_from(topic, 7) for topic in ("lines", "by_word", "counts")] == [None, None, 7]
    desk.remove("a")
    assert desk.group.expires_offsets_from("lines", 7) == 7
    assert not desk.group.is_subscribed_to("lines")


# --- as it is stored --------------------------------------------------------------------------------------------------


def test_what_cannot_be_stored_is_taken_back():
    desk = Desk()
    desk.beat("a")
    before = desk.group.entries()
    request = Heartbeat(member_id="b", epoch=JOIN, topology=WORDS, reported=NO_TASKS, process_id="b")
    desk.group.heartbeat(request).take_back()
    assert desk.group.entries() == before
    desk.group.remove(["a"]).take_back()
    assert desk.group.entries() == before
    assert desk.pass_time(SESSION_MS) == ["a"]


def test_a_heartbeat_that_is_not_stored_changes_no_time_to_give_up_tasks():
    desk = Desk()
    mine = desk.beat("a").tasks
    desk.beat("b")

    def in_vain(reported):
        desk.group.heartbeat(Heartbeat(member_id="a", epoch=2, reported=reported)).take_back()

    in_vain(mine)
    assert desk.pass_time(REBALANCE_MS) == []
    kept = desk.beat("a", 2, mine).tasks
    desk.clock.advance_ms(REBALANCE_MS - 1_000)
    in_vain(kept)
    desk.beat("a", 2)
    desk.beat("b", 3)
    assert desk.pass_time(1_000) == ["a"]


def test_a_start_goes_on_where_the_group_was():
    desk = Desk()
    mine = desk.beat("a").tasks
    desk.beat("b")
    kept = desk.beat("a", 2, mine).tasks
    desk.group = desk.restored()
    assert desk.beat("a", 2, kept).epoch == 3
    assert len(list(each(desk.beat("b", 3, NO_TASKS).tasks.active))) == 2
    desk.group = desk.restored()
    assert desk.pass_time(SESSION_MS) == ["a", "b"]


# --- any order of everything ------------------------------------------------------------------------------------------


class Client:
    """A member as clients are: it works on what it owns, and owns what it was told until it gives it up.

    What it says in full that it owns is all that it has until it is told again. A member that had been told more, has
    not begun with it, and begins with it after it has said so would have what others are given meanwhile: the group
    takes it at its word, as Kafka does.
    """

    def __init__(self, member_id):
        self.member_id = member_id
        self.epoch = 0
        self.owned = NO_TASKS
        self.wanted = NO_TASKS

    @property
    def process_id(self):
        return self.member_id[0]

    def forget(self):
        self.epoch, self.owned, self.wanted = 0, NO_TASKS, NO_TASKS

    def take(self, answer):
        self.epoch = answer.epoch
        if answer.tasks is not None:
            self.wanted = answer.tasks


TOPICS = {"lines": 3, "by_word": 3, "counts": 3}


class AnyOrder(RuleBasedStateMachine):
    """Members come, lose answers, are slow, go and die; topics and settings change; the process ends and starts again.

    A change is durable from when an answer that knows it is given; a crash loses any of the changes after that.
    """

    def __init__(self):
        super().__init__()
        self.desk = Desk(FakeTopics(**TOPICS), num_standby_replicas=1)
        self.clients = {}
        self.number = 0
        self.durable = 0
        self.waiting = []  # (client, answer, how much of the log it knows)

    @initialize(processes=st.lists(st.sampled_from("pqr"), min_size=2, max_size=4))
    def some_come(self, processes):
        for process in processes:
            self.comes(process)

    def _fence_the_removed(self):
        """A client stops to work when its session is over, as it counts it."""
        for name, client in self.clients.items():
            if client.epoch > 0 and name not in self.desk.group.members:
                client.forget()

    @precondition(lambda self: len(self.clients) < 5)
    @rule(process=st.sampled_from("pqr"))
    def comes(self, process):
        self.number += 1
        name = f"{process}{self.number}"
        self.clients[name] = Client(name)
        self.beats(name)

    def beats(self, name, *, keepalive=False):
        client = self.clients[name]
        joins = client.epoch == 0
        if joins:
            client.forget()
        request = Heartbeat(
            member_id=name,
            epoch=client.epoch,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            topology=WORDS if joins else None,
            reported=None if keepalive else client.owned,
            process_id=client.process_id if joins else None,
        )
        try:
            change = self.desk.group.heartbeat(request)
        except GroupError:
            client.forget()
        else:
            self.desk.log.append(change.entries)
            self.waiting.append((client, change.answer, len(self.desk.log)))
            if not keepalive:
                client.wanted = client.owned  # see `Client`

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def somebody_beats(self, data):
        self.one_beats(data.draw(st.sampled_from(sorted(self.clients))), data)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), rounds=st.integers(1, 3))
    def everybody_beats(self, data, rounds):
        for name in sorted(self.clients) * rounds:
            self.one_beats(name, data)

    def one_beats(self, name, data):
        """A heartbeat, full or not, whose answer comes at once or not; then the member does what it is told, or not."""
        if any(client.member_id == name for client, _, _ in self.waiting):
            return
        client = self.clients[name]
        self.beats(name, keepalive=client.epoch > 0 and data.draw(st.booleans()))
        arrives = data.draw(st.sampled_from((True, True, True, True, False)))
        if self.waiting and self.waiting[-1][0] is client and arrives:
            _, answer, known = self.waiting.pop()
            self.durable = max(self.durable, known)
            client.take(answer)
            if data.draw(st.sampled_from((True, False))):
                client.owned = client.wanted
        self._fence_the_removed()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), lost=st.booleans())
    def an_answer_arrives(self, data, lost):
        client, answer, known = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.durable = max(self.durable, known)
        if not lost and self.clients.get(client.member_id) is client:
            client.take(answer)
            self._fence_the_removed()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def does_what_it_was_told(self, data):
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.owned = client.wanted

    @precondition(lambda self: len(self.clients) > 2)
    @rule(data=st.data(), says_so=st.booleans())
    def goes(self, data, says_so):
        """Whoever is dead works on nothing; its session tells the group, where it does not say so itself."""
        name = data.draw(st.sampled_from(sorted(self.clients)))
        del self.clients[name]
        if says_so and name in self.desk.group.members:
            self.desk.remove(name)

    @rule(milliseconds=st.sampled_from((*[100, 1_000, 5_000] * 3, 20_000, 50_000)))
    def time_passes(self, milliseconds):
        self.desk.pass_time(milliseconds)
        self._fence_the_removed()

    @rule(data=st.data())
    def topics_change(self, data):
        """They go, or come back with another number of partitions; mostly they are as they were."""
        topics = self.desk.topics
        for name, before in TOPICS.items():
            after = data.draw(st.sampled_from((None, 2, *[before] * 8)))
            topic = topics.get(name)
            if topic is not None and len(topic.logs) != after:
                topics.delete(name)
            if after is not None and topics.get(name) is None:
                topics.create(name, after)

    @rule(
        standbys=st.integers(0, 2),
        interval_ms=st.sampled_from((0, 0, 0, 1_000)),
        delay_ms=st.sampled_from((0, 0, 0, 3_000)),
    )
    def settings_change(self, standbys, interval_ms, delay_ms):
        self.desk.config = StreamsGroupConfig(
            num_standby_replicas=standbys, assignment_interval_ms=interval_ms, initial_rebalance_delay_ms=delay_ms
        )

    @rule(data=st.data())
    def the_process_ends_and_starts_again(self, data):
        kept = data.draw(st.integers(self.durable, len(self.desk.log)))
        del self.desk.log[kept:]
        self.waiting.clear()
        self.desk.group = self.desk.restored()
        self.durable = kept
        self._fence_the_removed()

    @invariant()
    def no_task_is_worked_on_twice(self):
        active = [task for client in self.clients.values() for task in each(client.owned.active)]
        assert len(active) == len(set(active))
        used = [
            (client.process_id, task)
            for client in self.clients.values()
            for tasks in client.owned.kinds
            for task in each(tasks)
        ]
        assert len(used) == len(set(used)), "two members share a state directory"

    @invariant()
    def the_state_is_what_is_stored(self):
        group = self.desk.group
        assert dict(self.desk.restored().entries()) == dict(group.entries())
        assert all(group.current(name).epoch <= group.target_epoch <= group.epoch for name in group.members)

    @invariant()
    def nobody_stays_for_ever(self):
        assert self.desk.group.is_empty or self.desk.group.next_deadline() is not None

    def teardown(self):
        """Whoever is left has everything, and as much as the others, after a few heartbeats."""
        self.waiting.clear()
        self.desk.config = StreamsGroupConfig()
        self.desk.pass_time(SESSION_MS)  # the dead are gone; the living join again
        self._fence_the_removed()
        self.desk.topics = self.desk.group.topics = FakeTopics(**TOPICS)
        self.desk.topics.version = self.desk.clock.now_ms()
        for _ in range(8):
            for name in sorted(self.clients):
                self.beats(name)
                while self.waiting:
                    client, answer, _ = self.waiting.pop()
                    client.take(answer)
                self.clients[name].owned = self.clients[name].wanted
                self.no_task_is_worked_on_twice()
        group = self.desk.group
        assert group.state_name == ("Stable" if self.clients else "Empty")
        assert set(group.members) == set(self.clients)
        expected = {(name, number) for name in "01" for number in range(3)} if self.clients else set()
        assert {task for client in self.clients.values() for task in each(client.owned.active)} == expected


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
