from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainstem.broker.groups.config import ShareGroupConfig
from mainstem.broker.groups.errors import FencedMemberEpoch, GroupFull, GroupNotEmpty, UnknownGroup, UnknownMember
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.share.group import JOIN, Heartbeat, ShareGroup
from mainstem.broker.groups.share.records import (
    ShareGroupKey,
    StatePartitionsKey,
    StatePartitionsValue,
    TopicPartitions,
)
from mainstem.core import ManualClock
from tests.support.properties import examples
from tests.support.topics import FakeTopics


class Desk:
    """A group with its clock and topics, and everything it has asked to be stored, change by change."""

    def __init__(self, **config):
        self.clock = ManualClock()
        self.topics = FakeTopics(t=4)
        self.config = ShareGroupConfig(**config)
        self.group = self.new()
        self.log = []

    def new(self):
        return ShareGroup("g", self.clock, self.topics, lambda: self.config)

    def beat(self, member_id, epoch=JOIN, topics=("t",)):
        change = self.group.heartbeat(
            Heartbeat(member_id=member_id, epoch=epoch, topics=topics if epoch == JOIN else None)
        )
        self.log.append(change.entries)
        return change.answer

    def remove(self, *member_ids):
        self.log.append(self.group.remove(member_ids).entries)

    def restored(self):
        """The group as a start would build it from what was stored."""
        group = self.new()
        for entries in self.log:
            for key, value in entries:
                group.put(key, value)
        group.start_sessions()
        return group

    def numbers(self, answer):
        return sorted(answer.assignment.get(self.topics.get("t").topic_id, ()))


def test_a_member_joins_and_reads_everything():
    desk = Desk()
    answer = desk.beat("a")
    assert (answer.member_id, answer.epoch, desk.numbers(answer)) == ("a", 2, [0, 1, 2, 3])
    assert desk.beat("a", 2).assignment is None
    assert desk.group.state_name == "Stable"


def test_who_comes_gets_partitions_at_once():
    """Nobody has to give up anything first."""
    desk = Desk()
    desk.beat("a")
    answer = desk.beat("b")
    assert (answer.epoch, desk.numbers(answer)) == (3, [2, 3])
    answer = desk.beat("a", 2)
    assert (answer.epoch, desk.numbers(answer)) == (3, [0, 1])


def test_an_answer_may_be_lost():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    desk.beat("a", 2)
    answer = desk.beat("a", 2)
    assert (answer.epoch, desk.numbers(answer)) == (3, [0, 1])
    assert desk.beat("a", 3).assignment is None
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 4)


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


def test_a_member_leaves():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    with pytest.raises(GroupNotEmpty):
        desk.group.delete()
    desk.remove("b")
    answer = desk.beat("a", 2)
    assert (answer.epoch, answer.assignment) == (4, None)  # it has what it had before "b" came
    desk.remove("a")
    assert desk.group.state_name == "Empty"
    desk.group.delete()


def test_a_member_is_not_heard_of():
    desk = Desk()
    desk.beat("a")
    desk.clock.advance_ms(20_000)
    desk.beat("b")
    desk.clock.advance_ms(25_000)
    assert desk.group.overdue() == ["a"]
    assert desk.group.overdue() == []
    desk.remove("a")
    assert desk.numbers(desk.beat("b", 3)) == [0, 1, 2, 3]


def test_it_comes_back_from_its_records():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    desk.beat("a", 2)
    desk.remove("b")
    again = desk.new()
    for key, value in [entry for entries in desk.log for entry in entries]:
        again.put(key, value)
    assert again.entries() == desk.group.entries()
    assert again.members == desk.group.members
    assert [each.partitions for each in again.state_partitions.initialized] == [(0, 1, 2, 3)]
    assert again.next_deadline() is None
    again.start_sessions()
    assert again.next_deadline() == desk.clock.monotonic() + 45
    for key in again.keys():  # noqa: SIM118 it is no dict
        again.put(key, None)
    assert again.entries() == []


def test_what_cannot_be_stored_is_taken_back():
    desk = Desk()
    desk.beat("a")
    before = desk.group.entries()
    change = desk.group.heartbeat(Heartbeat(member_id="b", epoch=JOIN, topics=("t",)))
    assert dict(change.entries)[ShareGroupKey("g")].epoch == 3
    change.take_back()
    assert desk.group.entries() == before
    assert list(desk.group.members) == ["a"]


def test_members_that_come_together_are_assigned_together():
    desk = Desk(assignment_interval_ms=1_000)
    desk.beat("a")
    assert desk.numbers(desk.beat("b")) == []
    assert desk.beat("a", 2).epoch == 2
    desk.clock.advance_ms(1_000)
    answer = desk.beat("b", 2)
    assert (answer.epoch, desk.numbers(answer)) == (3, [2, 3])


@pytest.mark.parametrize("interval_ms", [0, 1_000])
def test_a_clock_that_was_set_back_delays_no_assignment(interval_ms):
    """The target was made in what is the future now: nobody who came got anything until then."""
    desk = Desk(assignment_interval_ms=interval_ms)
    desk.beat("a")
    desk.clock.set_back_ms(3_600_000)
    desk.group = desk.restored()
    answer = desk.beat("b")
    assert (answer.epoch, desk.numbers(answer)) == (3, [2, 3])


def test_nobody_commits_offsets():
    desk = Desk()
    desk.beat("a")
    for refused in (lambda: desk.group.check_commit(Commit()), desk.group.check_may_delete_offsets):
        with pytest.raises(UnknownGroup):
            refused()
    assert desk.group.expires_offsets_from("t", 0) is None
    assert (desk.group.is_subscribed_to("t"), desk.group.is_subscribed_to("u")) == (True, False)


def test_a_topic_that_nobody_has_made_yet():
    desk = Desk()
    desk.topics = FakeTopics()
    desk.group = desk.new()
    assert desk.beat("a").assignment == {}


def test_topics_come_grow_and_go():
    desk = Desk()
    desk.beat("a")
    desk.topics.grow("t")
    answer = desk.beat("a", 2)
    assert (answer.epoch, desk.numbers(answer)) == (3, [0, 1, 2, 3, 4])
    desk.topics.create("other", 1)
    assert desk.beat("a", 3).epoch == 3
    desk.topics.delete("t")
    answer = desk.beat("a", 3)
    assert (answer.epoch, answer.assignment) == (4, {})


def test_what_is_assigned_has_state_until_its_topic_is_gone():
    desk = Desk()
    desk.topics = FakeTopics(t=2, u=1)
    desk.group = desk.new()
    desk.beat("a", topics=("t",))

    def tracked():
        return {each.topic: each.partitions for each in desk.group.state_partitions.initialized}

    assert tracked() == {"t": (0, 1)}
    desk.beat("a", topics=("u",))
    desk.topics.grow("t")
    desk.beat("a", desk.group.epoch)
    assert tracked() == {"t": (0, 1), "u": (0,)}, "nobody reads the new partition"
    desk.beat("a", topics=("t",))
    assert tracked() == {"t": (0, 1, 2), "u": (0,)}
    desk.topics.delete("t")
    desk.topics.create("t", 1)
    desk.log.append(desk.group.forget_missing_topics().entries)
    assert tracked() == {"u": (0,)}
    assert desk.group.forget_missing_topics().entries == []
    desk.beat("a", desk.group.epoch)
    assert tracked() == {"t": (0,), "u": (0,)}
    assert desk.group.state_partitions.initialized[1].topic_id == desk.topics.id_of("t")
    assert desk.restored().entries() == desk.group.entries()


def test_what_was_to_be_initialized_by_another_program_is():
    desk = Desk()
    topic = desk.topics.get("t")
    waiting = TopicPartitions(topic.topic_id, "t", (0, 1))
    desk.group.put(StatePartitionsKey("g"), StatePartitionsValue(initializing=(waiting,)))
    desk.beat("a")
    found = desk.group.state_partitions
    assert (found.initializing, found.initialized[0].partitions) == ((), (0, 1, 2, 3))


def test_offsets_are_set_and_deleted():
    desk = Desk()
    topic_id, other = desk.topics.get("t").topic_id, UUID(int=7)
    for numbers in ((1,), (0, 1)):
        desk.log.append(desk.group.set_offsets([TopicPartitions(topic_id, "t", numbers)]).entries)
    desk.log.append(desk.group.set_offsets([TopicPartitions(other, "o", (0,))]).entries)
    assert (desk.group.epoch, desk.group.target_epoch, desk.group.state_name) == (1, 1, "Empty")
    assert [each.partitions for each in desk.group.state_partitions.initialized] == [(0, 1), (0,)]
    desk.log.append(desk.group.delete_offsets([topic_id]).entries)
    assert desk.group.state_partitions.deleting == ((topic_id, "t"),)
    assert desk.group.topics_with_state == {topic_id, other}, "it is not done yet"
    assert desk.group.delete_offsets([topic_id]).entries == []
    desk.log.append(desk.group.offsets_deleted([topic_id]).entries)
    assert desk.group.topics_with_state == {other}
    assert desk.group.state_partitions.deleting == ()
    desk.log.append(desk.group.delete_offsets([other]).entries)
    desk.log.append(desk.group.offsets_deleted([other]).entries)
    again = desk.restored()
    assert again.entries() == desk.group.entries() == [(StatePartitionsKey("g"), StatePartitionsValue())]


def test_offsets_of_a_group_with_members_stay_as_they_are():
    desk = Desk()
    desk.beat("a")
    topic_id = desk.topics.get("t").topic_id
    with pytest.raises(GroupNotEmpty):
        desk.group.set_offsets([TopicPartitions(topic_id, "t", (0,))])
    with pytest.raises(GroupNotEmpty):
        desk.group.delete_offsets([topic_id])
    assert desk.restored().entries() == desk.group.entries()


def test_what_is_read_again_is_not_being_deleted_any_more():
    desk = Desk()
    topic_id = desk.topics.get("t").topic_id
    desk.group.set_offsets([TopicPartitions(topic_id, "t", (0,))])
    desk.group.delete_offsets([topic_id])
    desk.beat("a")
    found = desk.group.state_partitions
    assert (found.initialized[0].partitions, found.deleting) == ((0, 1, 2, 3), ())
    assert desk.group.offsets_deleted([topic_id]).entries == []


def test_two_answers_are_lost_one_after_the_other():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    assert desk.beat("a", 2).epoch == 3
    desk.beat("c")
    assert desk.beat("a", 2).epoch == 4
    answer = desk.beat("a", 2)
    assert (answer.epoch, answer.assignment) == (4, desk.group.current("a").assigned)


class Client:
    """A member as clients are: it knows what it was last told."""

    def __init__(self, topics):
        self.topics = topics
        self.epoch = 0
        self.reads = {}
        self.told_topics = None


class AnyOrder(RuleBasedStateMachine):
    """Members come, lose answers, subscribe anew, go and die; topics change; the process ends and starts again.

    A change is durable from when an answer that knows it is given; a crash loses any of the changes after that.
    """

    def __init__(self):
        super().__init__()
        self.desk = Desk()
        self.desk.topics = FakeTopics(t=3, u=2)
        self.desk.group = self.desk.new()
        self.clients = {}
        self.number = 0
        self.durable = 0

    def forget_the_removed(self):
        for name, client in self.clients.items():
            if name not in self.desk.group.members:
                client.epoch, client.reads, client.told_topics = 0, {}, None

    def beats(self, name, *, lost=False):
        client = self.clients[name]
        subscribes = client.topics != client.told_topics
        request = Heartbeat(member_id=name, epoch=client.epoch, topics=client.topics if subscribes else None)
        change = self.desk.group.heartbeat(request)  # nobody who is in the group is ever refused
        self.desk.log.append(change.entries)
        if lost:
            return
        self.durable = len(self.desk.log)
        client.epoch, client.told_topics = change.answer.epoch, client.topics
        if change.answer.assignment is not None:
            client.reads = change.answer.assignment
        assert client.reads == self.desk.group.current(name).assigned

    @precondition(lambda self: len(self.clients) < 6)
    @rule(topics=st.sampled_from((("t",), ("t", "u"), ("u",))), lost=st.booleans())
    def comes(self, topics, lost):
        self.number += 1
        name = f"m{self.number}"
        self.clients[name] = Client(topics)
        self.beats(name, lost=lost)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), lost=st.booleans())
    def somebody_beats(self, data, lost):
        self.beats(data.draw(st.sampled_from(sorted(self.clients))), lost=lost)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def subscribes_anew(self, data):
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.topics = data.draw(st.sampled_from((("t",), ("u",), ("t", "u"))))

    @precondition(lambda self: len(self.clients) > 2)
    @rule(data=st.data(), says_so=st.booleans())
    def goes(self, data, says_so):
        name = data.draw(st.sampled_from(sorted(self.clients)))
        del self.clients[name]
        if says_so and name in self.desk.group.members:
            self.desk.remove(name)

    @rule(milliseconds=st.sampled_from((100, 5_000, 5_000, 20_000, 50_000)))
    def time_passes(self, milliseconds):
        self.desk.clock.advance_ms(milliseconds)
        self.desk.remove(*self.desk.group.overdue())
        self.forget_the_removed()

    @rule(what=st.sampled_from(("grow", "delete", "create")), name=st.sampled_from(("t", "u")))
    def topics_change(self, what, name):
        topics = self.desk.topics
        if what == "create" and topics.get(name) is None:
            topics.create(name, 2)
        elif what == "delete" and topics.get(name) is not None:
            topics.delete(name)
            self.desk.log.append(self.desk.group.forget_missing_topics().entries)
        elif what == "grow" and topics.get(name) is not None and len(topics.get(name).logs) < 8:
            topics.grow(name)

    @rule(milliseconds=st.sampled_from((0, 0, 3_000)))
    def the_interval_is_set(self, milliseconds):
        self.desk.config = ShareGroupConfig(assignment_interval_ms=milliseconds)

    @rule(data=st.data())
    def the_process_ends_and_starts_again(self, data):
        self.durable = data.draw(st.integers(self.durable, len(self.desk.log)))
        del self.desk.log[self.durable :]
        self.desk.group = self.desk.restored()
        self.forget_the_removed()

    @rule()
    def what_cannot_be_stored_is_taken_back(self):
        group = self.desk.group
        before, members = group.entries(), dict(group.members)
        group.heartbeat(Heartbeat(member_id="other", epoch=JOIN, topics=("t", "u"))).take_back()
        assert (group.entries(), dict(group.members)) == (before, members)

    @invariant()
    def the_state_is_what_is_stored(self):
        group = self.desk.group
        assert self.desk.restored().entries() == group.entries()
        assert all(group.current(name).epoch <= group.target_epoch <= group.epoch for name in group.members)

    @invariant()
    def what_is_assigned_has_state(self):
        group = self.desk.group
        tracked = {each.topic_id: set(each.partitions) for each in group.state_partitions.initialized}
        for name in group.members:
            for topic_id, numbers in group.current(name).assigned.items():
                assert self.desk.topics.get_by_id(topic_id) is None or numbers <= tracked[topic_id]

    @invariant()
    def nobody_stays_for_ever(self):
        assert self.desk.group.is_empty or self.desk.group.next_deadline() is not None

    def teardown(self):
        """Every partition that somebody is subscribed to is read, and whoever subscribes reads something."""
        self.desk.config = ShareGroupConfig()
        self.time_passes(50_000)
        for _ in range(2):
            for name in sorted(self.clients):
                self.beats(name)
        group, topics = self.desk.group, self.desk.topics
        assert set(group.members) == set(self.clients)
        there = {name: topics.get(name) for client in self.clients.values() for name in client.topics}
        for topic in filter(None, there.values()):
            readers = [each for each in self.clients.values() if topic.name in each.topics]
            shares = [each.reads.get(topic.topic_id, frozenset()) for each in readers]
            assert all(shares)
            counts = [sum(number in each for each in shares) for number in range(len(topic.logs))]
            assert max(counts) - min(counts) <= 0, "each partition has as many members"
        ids = {topic.topic_id: topic.name for topic in filter(None, there.values())}
        for each in self.clients.values():
            assert {ids[topic_id] for topic_id in each.reads} <= set(each.topics)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
