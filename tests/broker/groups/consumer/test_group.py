import contextlib

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainstem.broker.groups.config import ConsumerGroupConfig
from mainstem.broker.groups.consumer.group import ConsumerGroup, Resolved
from mainstem.broker.groups.consumer.messages import JOIN, LEAVE_FOR_A_WHILE, Heartbeat
from mainstem.broker.groups.consumer.records import (
    ConsumerGroupKey,
    CurrentKey,
    MemberState,
    RegexKey,
    TargetMemberKey,
)
from mainstem.broker.groups.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupError,
    GroupFull,
    GroupNotEmpty,
    IllegalGeneration,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
)
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.modern.partitions import assignment_of, each
from mainstem.core import ManualClock, TopicPartition
from mainstem.wire.errors import Code
from tests.support.properties import examples
from tests.support.topics import FakeTopics

SESSION_MS, REBALANCE_MS = 45_000, 60_000


class Desk:
    """A group with its clock and topics, and everything it has asked to be stored."""

    def __init__(self, topics=None, **config):
        self.clock = ManualClock()
        self.topics = FakeTopics(t=4) if topics is None else topics
        self.config = ConsumerGroupConfig(**config)
        self.group = self.new()
        self.log = []

    def new(self):
        return ConsumerGroup("g", self.clock, self.topics, lambda: self.config)

    def beat(self, member_id, epoch=JOIN, *, topics=("t",), regex=None, reported=(), resolved=None, **fields):
        """A full heartbeat; `reported` are partitions of `t`, None for a keepalive."""
        request = Heartbeat(
            member_id=member_id,
            epoch=epoch,
            rebalance_timeout_ms=fields.pop("rebalance_timeout_ms", REBALANCE_MS if reported is not None else -1),
            topics=topics if reported is not None and regex is None else None,
            regex=regex,
            reported=None if reported is None else self.partitions(*reported),
            client_id="c",
            client_host="/h",
            **fields,
        )
        change = self.group.heartbeat(request, resolved)
        self.log.append(change.entries)
        return change.answer

    def partitions(self, *numbers):
        return assignment_of((self.topics.id_of("t"), number) for number in numbers)

    def told(self, answer):
        """The partitions of `t` in an answer."""
        assert answer.assignment is not None
        return sorted(number for _, number in each(answer.assignment))

    def remove(self, *member_ids):
        self.log.append(self.group.remove(member_ids, None).entries)

    def pass_time(self, milliseconds):
        self.clock.advance_ms(milliseconds)
        overdue = self.group.overdue()
        if overdue:
            self.log.append(self.group.remove(overdue, None).entries)
        return overdue

    def restored(self, changes=None):
        """The group as a start would build it from what was stored."""
        latest = {}
        for entries in self.log if changes is None else changes:
            latest.update(entries)
        group = self.new()
        for key, value in sorted(latest.items(), key=lambda item: item[0].VERSION):
            if value is not None:
                group.put(key, value)
        group.start_sessions()
        return group

    def settle(self, **epochs):
        """Everybody reports what it was told until nothing changes; the partitions of each."""
        has = {name: list(each(self.group.members[name].assigned)) for name in epochs}
        for _ in range(6):
            for name, epoch in list(epochs.items()):
                answer = self.beat(name, epoch, reported=[number for _, number in has[name]])
                epochs[name] = answer.epoch
                has[name] = list(each(answer.assignment))
        assert self.group.state_name == "Stable"
        return {name: sorted(number for _, number in found) for name, found in has.items()}


# --- joining ----------------------------------------------------------------------------------------------------------


def test_the_first_member_is_given_everything_at_once():
    desk = Desk()
    answer = desk.beat("a")
    assert (answer.member_id, answer.epoch, desk.told(answer)) == ("a", 2, [0, 1, 2, 3])
    assert (desk.group.epoch, desk.group.target_epoch, desk.group.state_name) == (2, 2, "Stable")


def test_a_member_of_version_0_is_given_an_id():
    answer = Desk().beat("")
    assert len(answer.member_id) == 36


def test_a_heartbeat_without_news_stores_nothing_and_tells_no_assignment():
    desk = Desk()
    desk.beat("a")
    assert desk.beat("a", 2, reported=None).assignment is None
    assert desk.log[-1] == []


def test_a_full_heartbeat_is_told_everything():
    """Its answer may have been lost; librdkafka and Java send one after every error."""
    desk = Desk()
    desk.beat("a")
    assert desk.told(desk.beat("a", 2, reported=())) == [0, 1, 2, 3]
    assert desk.log[-1] == []


def test_g7_a_partition_is_owned_until_a_heartbeat_shows_it_gone():
    desk = Desk()
    desk.beat("a")
    b = desk.beat("b")
    assert (b.epoch, desk.told(b)) == (3, []), "everything is still the first one's"
    a = desk.beat("a", 2, reported=(0, 1, 2, 3))
    assert (a.epoch, len(desk.told(a))) == (2, 2), "it is to give up two, in its old epoch"
    kept = desk.told(a)
    assert desk.beat("b", 3, reported=None).assignment is None
    assert desk.beat("a", 2, reported=None).epoch == 2, "a keepalive shows nothing"
    assert desk.beat("b", 3, reported=None).assignment is None
    assert desk.group.state_name == "Reconciling"
    a = desk.beat("a", 2, reported=kept)
    assert a.epoch == 3
    b = desk.beat("b", 3, reported=None)
    assert desk.told(b) == sorted({0, 1, 2, 3} - set(kept))
    assert desk.group.state_name == "Stable"


def test_a_member_that_does_not_give_up_its_partitions_in_time_is_removed():
    desk = Desk()
    desk.beat("a", rebalance_timeout_ms=10_000)
    desk.beat("b")
    desk.beat("a", 2, reported=(0, 1, 2, 3), rebalance_timeout_ms=10_000)
    for _ in range(9):
        assert desk.pass_time(1_000) == []
        desk.beat("a", 2, reported=None)
    assert desk.pass_time(1_001) == ["a"]
    assert desk.settle(b=3) == {"b": [0, 1, 2, 3]}


def test_a_member_without_heartbeats_is_removed_after_its_session():
    desk = Desk()
    desk.beat("a")
    assert desk.pass_time(SESSION_MS - 1) == []
    assert desk.pass_time(1) == ["a"]
    assert (desk.group.is_empty, desk.group.state_name, desk.group.epoch) == (True, "Empty", 3)
    assert desk.group.next_deadline() is None


def test_subscriptions_are_followed():
    desk = Desk(FakeTopics(t=2, u=1))
    desk.beat("a")
    answer = desk.beat("a", 2, topics=("t", "u"), reported=(0, 1))
    assert answer.epoch == 3
    assert sorted(each(answer.assignment)) == sorted(
        [(desk.topics.id_of("t"), 0), (desk.topics.id_of("t"), 1), (desk.topics.id_of("u"), 0)]
    )
    answer = desk.beat("a", 3, topics=("u",), reported=(0, 1))
    assert list(each(answer.assignment)) == [(desk.topics.id_of("u"), 0)]


def test_topics_that_come_grow_and_go_are_followed_at_the_next_heartbeat():
    desk = Desk(FakeTopics(u=1))
    assert desk.beat("a").assignment == {}, "there is no such topic yet"
    desk.topics.create("t", 1)
    assert desk.told(desk.beat("a", 2, reported=None)) == [0]
    desk.topics.grow("t", 2)
    answer = desk.beat("a", 3, reported=None)
    assert (answer.epoch, desk.told(answer)) == (4, [0, 1, 2])
    desk.topics.grow("u", 1)
    assert desk.beat("a", 4, reported=None).epoch == 4, "nobody reads it"
    desk.topics.delete("t")
    answer = desk.beat("a", 4, reported=None)
    assert answer.assignment == {}
    desk.topics.create("t", 1)
    answer = desk.beat("a", answer.epoch, reported=())
    assert desk.told(answer) == [0], "a topic of that name is another topic"


def test_members_that_come_within_the_assignment_interval_are_assigned_together():
    desk = Desk(assignment_interval_ms=1_000)
    desk.beat("a")
    b = desk.beat("b")
    assert (b.epoch, b.assignment, desk.group.state_name) == (2, {}, "Assigning")
    desk.clock.advance_ms(1_000)
    assert desk.settle(a=2, b=2) == {"a": [0, 1], "b": [2, 3]}
    assert desk.group.target_epoch == 3


@pytest.mark.parametrize("interval_ms", [0, 1_000])
def test_a_clock_that_was_set_back_delays_no_assignment(interval_ms):
    """The target was made in what is the future now: nobody who came got anything until then."""
    desk = Desk(assignment_interval_ms=interval_ms)
    desk.beat("a")
    desk.clock.set_back_ms(3_600_000)
    desk.group = desk.restored()
    assert desk.beat("b").epoch == 3
    assert desk.settle(a=2, b=3) == {"a": [0, 1], "b": [2, 3]}


def test_the_assignor_that_most_ask_for_is_taken():
    desk = Desk(FakeTopics(t=3))
    desk.beat("b", assignor="range")
    assert desk.group.assignor == "range"
    desk.beat("a", assignor="range")
    assert desk.settle(a=3, b=2) == {"a": [0, 1], "b": [2]}
    desk.beat("c", assignor="uniform")
    assert desk.group.assignor == "range"


def test_a_group_has_a_largest_size():
    desk = Desk(max_size=1)
    desk.beat("a")
    with pytest.raises(GroupFull):
        desk.beat("b")
    with pytest.raises(GroupFull):
        desk.beat("")
    desk.beat("a", 2)


# --- epochs -----------------------------------------------------------------------------------------------------------


def test_an_epoch_that_the_group_does_not_know_is_fenced():
    desk = Desk()
    desk.beat("a")
    desk.beat("a", 2, topics=("t", "u"), reported=(0, 1, 2, 3))
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 4)
    with pytest.raises(UnknownMember):
        desk.beat("b", 2)
    desk.beat("a", 3, topics=("t",), reported=(0, 1, 2, 3))
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 2)


def test_a_member_that_lost_an_answer_comes_with_its_last_epoch():
    desk = Desk()
    desk.beat("a")
    desk.beat("a", 2, topics=("t", "u"), reported=(0, 1, 2, 3))
    assert desk.beat("a", 2, topics=("t", "u"), reported=(0, 1)).epoch == 3
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 2, reported=None)
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 2, topics=("t", "u"), reported=(0, 1, 7))


def test_epoch_0_always_joins_again():
    desk = Desk()
    desk.beat("a")
    answer = desk.beat("a")
    assert (answer.epoch, desk.told(answer)) == (2, [0, 1, 2, 3])
    assert desk.log[-1] == []


# --- static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_joins_again_whose_answer_is_lost():
    """franz-go gives up where it is told that its instance id is taken, by itself."""
    desk = Desk()
    desk.beat("a", instance_id="i")
    answer = desk.beat("a", instance_id="i")
    assert (answer.epoch, desk.told(answer)) == (2, [0, 1, 2, 3])
    assert desk.log[-1] == []


def test_a_static_member_that_is_restarted_takes_its_old_place():
    desk = Desk()
    desk.beat("a", instance_id="i")
    desk.beat("b")
    desk.settle(a=2, b=3)
    with pytest.raises(UnreleasedInstance):
        desk.beat("a2", instance_id="i")
    before, epoch = desk.group.members["a"].assigned, desk.group.epoch
    desk.log.append(desk.group.leave_for_a_while(desk.group.members["a"]).entries)
    assert desk.group.members["a"].epoch == LEAVE_FOR_A_WHILE
    answer = desk.beat("a2", instance_id="i")
    assert (answer.epoch, desk.told(answer)) == (epoch, sorted(number for _, number in each(before)))
    assert set(desk.group.members) == {"a2", "b"}
    with pytest.raises(FencedInstance):
        desk.beat("a", epoch, instance_id="i")
    with pytest.raises(UnknownMember):
        desk.beat("a", epoch)
    with pytest.raises(UnknownMember):
        desk.beat("c", 2, instance_id="j")


def test_a_static_member_that_stays_away_is_removed_after_its_session():
    desk = Desk()
    desk.beat("a", instance_id="i")
    desk.group.leave_for_a_while(desk.group.members["a"])
    assert desk.pass_time(SESSION_MS) == ["a"]


def test_who_may_leave():
    desk = Desk()
    desk.beat("a", instance_id="i")
    desk.beat("b")

    def leaving(member_id, instance_id=None):
        return desk.group.leaving(Heartbeat(member_id=member_id, epoch=-1, instance_id=instance_id)).member_id

    assert (leaving("b"), leaving("a", "i")) == ("b", "a")
    with pytest.raises(UnknownMember):
        leaving("x")
    with pytest.raises(UnknownMember):
        leaving("a", "j")
    with pytest.raises(FencedInstance):
        leaving("b", "i")


# --- expressions ------------------------------------------------------------------------------------------------------


def test_an_expression_is_resolved_anew_when_topics_have_changed():
    desk = Desk(FakeTopics(t=1, tt=1, u=1))
    assert desk.group.unresolved("t+") == {"t+"}
    answer = desk.beat("a", regex="t+", resolved={"t+": Resolved(frozenset({"t", "tt"}), 1)})
    assert set(answer.assignment) == {desk.topics.id_of("t"), desk.topics.id_of("tt")}
    assert desk.group.unresolved(None) == set()
    assert desk.group.is_subscribed_to("tt")
    desk.topics.create("ttt", 1)
    assert desk.group.unresolved(None) == {"t+"}
    found = Resolved(frozenset({"t", "tt", "ttt"}), desk.topics.version)
    answer = desk.beat("a", 2, reported=None, resolved={"t+": found})
    assert (answer.epoch, len(answer.assignment)) == (3, 3)
    desk.beat("a", 3, regex="", topics=(), reported=None)
    assert desk.group.regexes == {}
    assert any(key == RegexKey("g", "t+") and value is None for key, value in desk.log[-1])


def test_an_expression_that_nobody_has_changes_nothing():
    """Each heartbeat that had waited for one beside a JOIN that was refused raised the epoch."""
    desk = Desk(FakeTopics(t=1))
    desk.beat("a", regex="t", resolved={"t": Resolved(frozenset({"t"}), desk.topics.version)})
    desk.topics.create("u", 1)
    found = {
        "t": Resolved(frozenset({"t"}), desk.topics.version),
        "refused": Resolved(frozenset({"u"}), desk.topics.version),
    }
    assert desk.beat("a", 2, reported=None, resolved=found).epoch == 2
    assert set(desk.group.regexes) == {"t"}


def test_an_expression_that_is_refused_by_now_stays_what_it_was():
    """A group whose expression another program had stored lost its topics, and nobody was told."""
    desk = Desk(FakeTopics(t=1))
    desk.beat("a", regex="t", resolved={"t": Resolved(frozenset({"t"}), desk.topics.version)})
    desk.topics.create("u", 1)
    assert desk.beat("a", 2, reported=None, resolved={"t": Resolved(None, desk.topics.version)}).epoch == 2
    assert desk.group.regexes["t"].topics == ("t",)
    assert desk.group.unresolved(None) == set()


def test_what_an_expression_matched_of_fewer_topics_does_not_come_back():
    """Of two heartbeats that wait for it the one that asked first may be answered last."""
    desk = Desk(FakeTopics(t=1))
    before = desk.topics.version
    desk.topics.create("tt", 1)
    now = Resolved(frozenset({"t", "tt"}), desk.topics.version)
    desk.beat("a", regex="t+", resolved={"t+": now})
    desk.beat("a", 2, reported=None, resolved={"t+": Resolved(frozenset({"t"}), before)})
    assert desk.group.regexes["t+"].topics == ("t", "tt")


def test_an_expression_and_names_are_both_subscribed_to():
    desk = Desk(FakeTopics(t=1, u=1))
    request = Heartbeat(
        member_id="a", epoch=0, rebalance_timeout_ms=1, topics=("u",), regex="t", reported={}, client_id="c"
    )
    change = desk.group.heartbeat(request, {"t": Resolved(frozenset({"t"}), 1)})
    assert set(change.answer.assignment) == {desk.topics.id_of("t"), desk.topics.id_of("u")}


# --- offsets ----------------------------------------------------------------------------------------------------------


def commits(desk, member_id="", generation=-1, *partitions, **options):
    found = [TopicPartition("t", number) for number in partitions]
    desk.group.check_commit(Commit(member_id=member_id, generation=generation, partitions=found, **options))


def test_who_may_commit():
    desk = Desk()
    commits(desk)
    desk.beat("a")
    with pytest.raises(UnknownMember):
        commits(desk)
    commits(desk, transactional=True)
    commits(desk, "a", 2, 0)
    with pytest.raises(StaleMemberEpoch):
        commits(desk, "a", 3, 0)
    with pytest.raises(IllegalGeneration):
        commits(desk, "a", 3, 0, transactional=True)
    with pytest.raises(UnknownMember):
        commits(desk, "b", 2, 0)
    with pytest.raises(GroupError) as refused:
        commits(desk, "a", 2, 0, knows_epochs=False)
    assert refused.value.code is Code.unsupported_version


def test_kip_1251_an_epoch_that_is_over_is_good_for_partitions_that_the_member_has_had_since():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    found = desk.settle(a=2, b=3)
    commits(desk, "a", 2, *found["a"])
    with pytest.raises(StaleMemberEpoch):
        commits(desk, "a", 2, *found["b"])
    commits(desk, "b", 3, *found["b"])
    desk.topics.grow("t", 2)
    after = desk.settle(a=3, b=3)
    new = set(after["a"]) - set(found["a"])
    assert new
    with pytest.raises(StaleMemberEpoch):
        commits(desk, "a", 3, *new)


def test_partitions_that_are_to_be_given_up_may_be_committed():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    desk.beat("a", 2, reported=(0, 1, 2, 3))
    commits(desk, "a", 2, 0, 1, 2, 3)


def test_who_may_be_told_offsets():
    desk = Desk()
    desk.beat("a")
    desk.group.check_fetch(None, -1)
    desk.group.check_fetch("a", 2)
    with pytest.raises(StaleMemberEpoch):
        desk.group.check_fetch("a", 3)
    with pytest.raises(UnknownMember):
        desk.group.check_fetch("b", 2)


def test_when_offsets_expire_and_may_be_deleted():
    desk = Desk()
    desk.beat("a")
    assert desk.group.expires_offsets_from("t", 5) is None
    assert desk.group.expires_offsets_from("u", 5) == 5
    assert (desk.group.is_subscribed_to("t"), desk.group.is_subscribed_to("u")) == (True, False)
    desk.group.check_may_delete_offsets()
    with pytest.raises(GroupNotEmpty):
        desk.group.delete()
    desk.remove("a")
    assert desk.group.expires_offsets_from("t", 5) == 5
    desk.group.delete()


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_only_what_changes_is_stored():
    desk = Desk()
    desk.beat("a")
    desk.beat("b")
    keys = {type(key).__name__ for key, _ in desk.log[-1]}
    assert keys == {"MemberKey", "ConsumerGroupKey", "TargetMemberKey", "TargetKey", "CurrentKey"}
    desk.beat("a", 2, reported=(0, 1, 2, 3))
    assert [key for key, _ in desk.log[-1]] == [CurrentKey("g", "a")]
    desk.remove("b")
    assert [(key, value is None) for key, value in desk.log[-1]] == [
        (CurrentKey("g", "b"), True),
        (TargetMemberKey("g", "b"), True),
        (desk.log[-1][2][0], True),
        (ConsumerGroupKey("g"), False),
    ]


def revoke_in_vain(desk, *reported):
    """A heartbeat of `a` that is not stored."""
    request = Heartbeat(member_id="a", epoch=2, reported=desk.partitions(*reported))
    desk.group.heartbeat(request).take_back()


def test_who_is_told_to_give_up_partitions_in_vain_has_no_deadline_for_it():
    """It was removed when the time was over, though nothing was to be given up."""
    desk = Desk()
    desk.beat("a", rebalance_timeout_ms=10_000)
    desk.beat("b")
    revoke_in_vain(desk, 0, 1, 2, 3)
    assert desk.pass_time(10_001) == []


def test_who_gives_up_partitions_in_vain_has_no_more_time_for_it():
    """It had them for as long as it sent heartbeats: nothing gave them to others."""
    desk = Desk()
    desk.beat("a", rebalance_timeout_ms=10_000)
    desk.beat("b")
    answer = desk.beat("a", 2, reported=(0, 1, 2, 3), rebalance_timeout_ms=10_000)
    kept = desk.told(answer)
    assert desk.pass_time(6_000) == []
    revoke_in_vain(desk, *kept)
    assert desk.pass_time(3_999) == []
    revoke_in_vain(desk, *kept)
    desk.clock.advance_ms(1)
    assert desk.group.overdue() == ["a"]
    desk.group.remove(["a"], None).take_back()
    assert desk.pass_time(9_999) == []
    assert desk.pass_time(1) == ["a"], "it could not be removed: it has all the time again, and not more"


def test_who_leaves_for_a_while_has_nothing_to_give_up_meanwhile():
    desk = Desk()
    desk.beat("a", rebalance_timeout_ms=10_000, instance_id="i")
    desk.beat("b")
    desk.beat("a", 2, reported=(0, 1, 2, 3), rebalance_timeout_ms=10_000)
    desk.group.leave_for_a_while(desk.group.member("a")).take_back()
    assert desk.pass_time(9_999) == []
    desk.log.append(desk.group.leave_for_a_while(desk.group.member("a")).entries)
    assert desk.pass_time(1) == []
    assert desk.pass_time(SESSION_MS) == ["a", "b"]


def test_a_change_that_cannot_be_stored_is_taken_back():
    desk = Desk()
    desk.beat("a", instance_id="i")
    before, when = desk.group.entries(), desk.group.next_deadline()
    request = Heartbeat(member_id="b", epoch=0, rebalance_timeout_ms=1, topics=("t",), reported={})
    desk.group.heartbeat(request).take_back()
    assert (desk.group.entries(), desk.group.next_deadline()) == (before, when)
    assert list(desk.group.owners.values()) == ["a"] * 4
    desk.group.remove(["a"], None).take_back()
    assert desk.group.entries() == before
    assert desk.group.static == {"i": "a"}
    assert desk.group.next_deadline() is not None


def test_a_call_that_raises_leaves_nothing_behind():
    desk = Desk()
    desk.beat("a")
    before = desk.group.entries()
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 10, topics=("u",))
    unknown = msgspec.structs.replace(desk.group.members["a"].current(), state=MemberState.UNKNOWN)
    desk.group.put(CurrentKey("g", "a"), unknown)
    with pytest.raises(FencedMemberEpoch):
        desk.beat("a", 2, topics=("u",), reported=(0,))
    desk.group.put(CurrentKey("g", "a"), dict(before)[CurrentKey("g", "a")])
    assert desk.group.entries() == before


def test_a_state_that_a_later_program_wrote_is_left_by_joining_anew():
    desk = Desk()
    desk.beat("a")
    unknown = msgspec.structs.replace(desk.group.members["a"].current(), state=MemberState.UNKNOWN)
    desk.group.put(CurrentKey("g", "a"), unknown)
    assert desk.told(desk.beat("a", 0)) == [0, 1, 2, 3]
    assert desk.group.members["a"].state is MemberState.STABLE


def test_a_start_goes_on_where_the_group_was():
    desk = Desk()
    desk.beat("a", instance_id="i")
    desk.beat("b")
    desk.beat("a", 2, reported=(0, 1, 2, 3), instance_id="i")
    group = desk.restored()
    assert group.entries() == desk.group.entries()
    assert (group.owners, group.static) == (desk.group.owners, {"i": "a"})
    desk.group = group
    assert desk.pass_time(SESSION_MS - 1) == []
    desk.beat("b", 3, reported=None)
    assert desk.pass_time(1) == ["a"]
    assert desk.settle(b=3) == {"b": [0, 1, 2, 3]}


# --- any order of everything ------------------------------------------------------------------------------------------


class Client:
    """A member as clients are: it reads what it owns, and owns what it was told until it gives it up.

    What it says in full that it owns is all that it has until it is told again. A member that had been told more, has
    not begun with it, and begins with it after it has said so would have what others are given meanwhile: the group
    takes it at its word, as Kafka does.
    """

    def __init__(self, member_id, instance_id, topics):
        self.member_id, self.instance_id, self.topics = member_id, instance_id, topics
        self.epoch = 0
        self.owned = frozenset()
        self.wanted = frozenset()
        self.away = False

    def forget(self):
        self.epoch, self.owned, self.wanted = 0, frozenset(), frozenset()

    def take(self, answer):
        self.epoch = answer.epoch
        if answer.assignment is not None:
            self.wanted = frozenset(each(answer.assignment))


class AnyOrder(RuleBasedStateMachine):
    """Members come, lose answers, are slow, go and die; topics change; the process ends and starts again.

    A change is durable from when an answer that knows it is given; a crash loses any of the changes after that.
    """

    def __init__(self):
        super().__init__()
        self.desk = Desk(FakeTopics(t=3, u=2))
        self.clients = {}
        self.number = 0
        self.durable = 0
        self.waiting = []  # (client, answer, how much of the log it knows)

    def _fence_the_removed(self):
        """A client stops to read when its session is over, as it counts it."""
        for name, client in list(self.clients.items()):
            if client.epoch > 0 and name not in self.desk.group.members:
                client.forget()

    @precondition(lambda self: len(self.clients) < 5)
    @rule(static=st.booleans(), topics=st.sampled_from((("t",), ("t",), ("t", "u"), ("u",))))
    def comes(self, static, topics):
        self.number += 1
        name = f"m{self.number}"
        instance = f"i{self.number % 2}" if static else None
        self.clients[name] = Client(name, instance, topics)
        self.beats(name)

    def beats(self, name, *, keepalive=False, assignor=None):
        client = self.clients[name]
        request = Heartbeat(
            member_id=name,
            epoch=client.epoch,
            instance_id=client.instance_id,
            rebalance_timeout_ms=-1 if keepalive else REBALANCE_MS,
            topics=None if keepalive else client.topics,
            reported=None if keepalive else assignment_of(client.owned),
            assignor=assignor,
        )
        try:
            change = self.desk.group.heartbeat(request)
        except UnreleasedInstance:
            del self.clients[name]
        except FencedInstance:
            del self.clients[name]
        except GroupError:
            client.forget()
        else:
            self.desk.log.append(change.entries)
            self.waiting.append((client, change.answer, len(self.desk.log)))
            if not keepalive:
                client.wanted = client.owned  # see `Client`

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), assignor=st.sampled_from((None, None, None, "range", "uniform")))
    def somebody_beats(self, data, assignor):
        self.one_beats(data.draw(st.sampled_from(sorted(self.clients))), data, assignor)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def everybody_beats(self, data):
        for name in sorted(self.clients):
            if name in self.clients:
                self.one_beats(name, data, None)

    def one_beats(self, name, data, assignor):
        """A heartbeat, full or not, whose answer comes at once or not; then the member does what it is told, or not."""
        if any(client.member_id == name for client, _, _ in self.waiting):
            return
        client = self.clients[name]
        self.beats(name, keepalive=client.epoch > 0 and data.draw(st.booleans()), assignor=assignor)
        if self.waiting and self.waiting[-1][0] is client and data.draw(st.integers(0, 4)):
            _, answer, known = self.waiting.pop()
            self.durable = max(self.durable, known)
            client.take(answer)
            if data.draw(st.booleans()):
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

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def subscribes_anew(self, data):
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.topics = data.draw(st.sampled_from((("t",), ("u",), ("t", "u"))))

    @precondition(lambda self: len(self.clients) > 2)
    @rule(data=st.data(), for_a_while=st.booleans())
    def leaves(self, data, for_a_while):
        name = data.draw(st.sampled_from(sorted(self.clients)))
        client = self.clients.pop(name)
        group = self.desk.group
        with contextlib.suppress(GroupError):
            member = group.leaving(Heartbeat(member_id=name, epoch=-1, instance_id=client.instance_id))
            away = for_a_while and client.instance_id is not None
            change = group.leave_for_a_while(member) if away else group.remove([member.member_id], None)
            self.desk.log.append(change.entries)

    @precondition(lambda self: len(self.clients) > 2)
    @rule(data=st.data())
    def dies(self, data):
        """Whoever is dead reads nothing; its session tells the group."""
        del self.clients[data.draw(st.sampled_from(sorted(self.clients)))]

    @rule(milliseconds=st.sampled_from((100, 1_000, 5_000, 5_000, 20_000, 50_000)))
    def time_passes(self, milliseconds):
        self.desk.pass_time(milliseconds)
        self._fence_the_removed()

    @rule(what=st.sampled_from(("grow", "delete", "create")), name=st.sampled_from(("t", "u")))
    def topics_change(self, what, name):
        topics = self.desk.topics
        if what == "create" and topics.get(name) is None:
            topics.create(name, 2)
        elif what == "delete" and topics.get(name) is not None:
            topics.delete(name)
        elif what == "grow" and topics.get(name) is not None and len(topics.get(name).logs) < 8:
            topics.grow(name)

    @rule(data=st.data())
    def the_process_ends_and_starts_again(self, data):
        kept = data.draw(st.integers(self.durable, len(self.desk.log)))
        del self.desk.log[kept:]
        self.waiting.clear()
        self.desk.group = self.desk.restored()
        self.durable = kept
        self._fence_the_removed()

    @invariant()
    def no_partition_is_owned_twice(self):
        owned = [partition for client in self.clients.values() for partition in client.owned]
        assert len(owned) == len(set(owned))

    @invariant()
    def the_state_is_what_is_stored(self):
        group = self.desk.group
        assert dict(self.desk.restored().entries()) == dict(group.entries())
        mine = [(one, name) for name, member in group.members.items() for one in each(member.assigned)]
        mine += [(one, name) for name, member in group.members.items() for one in each(member.revoking)]
        assert len(mine) == len(group.owners)
        assert dict(mine) == group.owners
        assert {
            member.instance_id: name for name, member in group.members.items() if member.instance_id
        } == group.static
        assert all(member.epoch <= group.target_epoch <= group.epoch for member in group.members.values())

    @invariant()
    def nobody_stays_for_ever(self):
        assert self.desk.group.is_empty or self.desk.group.next_deadline() is not None

    def teardown(self):
        """Whoever is left has everything, and as much as the others, after a few heartbeats."""
        self.waiting.clear()
        self.desk.pass_time(SESSION_MS)  # the dead, and those that are away, are gone; the living join again
        self._fence_the_removed()
        for _ in range(8):
            for name in sorted(self.clients):
                client = self.clients.get(name)
                if client is not None:
                    self.beats(name)
                    while self.waiting:
                        self.an_answer(self.waiting.pop())
                    client.owned = client.wanted
                    self.no_partition_is_owned_twice()
        group, topics = self.desk.group, self.desk.topics
        assert group.state_name == ("Stable" if self.clients else "Empty")
        assert set(group.members) == set(self.clients)
        read = {name for client in self.clients.values() for name in client.topics if topics.get(name) is not None}
        expected = {(topics.id_of(name), one) for name in read for one in range(len(topics.get(name).logs))}
        assert {partition for client in self.clients.values() for partition in client.owned} == expected

    def an_answer(self, arrived):
        client, answer, _ = arrived
        client.take(answer)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
