from uuid import UUID

import pytest

from mainstem.broker.groups.config import ShareGroupConfig
from mainstem.broker.groups.errors import FencedMemberEpoch, GroupFull, GroupNotEmpty, UnknownGroup, UnknownMember
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.share.group import JOIN, Heartbeat, ShareGroup
from mainstem.broker.groups.share.records import ShareGroupKey, StatePartitionsValue, TopicPartitions
from mainstem.core import ManualClock
from tests.support.topics import FakeTopics


class Desk:
    """A group with its clock and topics, and everything it has asked to be stored."""

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
        self.log += change.entries
        return change.answer

    def remove(self, *member_ids):
        self.log += self.group.remove(member_ids).entries

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
    topic = TopicPartitions(UUID(int=1), "t", (0, 1))
    desk.log += desk.group.set_state_partitions(StatePartitionsValue((), (topic,))).entries
    desk.remove("b")
    again = desk.new()
    for key, value in desk.log:
        again.put(key, value)
    assert again.entries() == desk.group.entries()
    assert again.members == desk.group.members
    assert again.state_partitions.initialized == (topic,)
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
