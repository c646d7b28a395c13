"""What the groups of every newer protocol do alike, seen on a small one; their own properties are beside them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups.errors import GroupNotEmpty, IllegalGeneration, StaleMemberEpoch, UnknownMember
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.modern.group import REBALANCE, SESSION, RecordGroup
from mainstem.broker.groups.share.records import (
    CurrentKey,
    CurrentValue,
    MemberKey,
    MemberValue,
    ShareGroupKey,
    ShareGroupValue,
)
from mainstem.core import ManualClock, TopicPartition
from tests.support.topics import FakeTopics

GROUP = ShareGroupKey("g")
MEMBERS = [MemberKey("g", name) for name in "abc"]


class SmallGroup(RecordGroup):
    """Members, and an epoch."""

    kind = "share"
    ORDER = (ShareGroupKey, MemberKey, CurrentKey)

    def __init__(self, clock):
        super().__init__("g", clock, FakeTopics())
        self.members = {}

    state_name = "Stable"

    def _after_put(self, key, before, value):
        if isinstance(key, MemberKey):
            if value is None:
                self.members.pop(key.member_id, None)
                self.drop_deadline(key.member_id, SESSION)
            else:
                self.members[key.member_id] = value

    def _start_session(self, member_id):
        self.set_deadline(member_id, SESSION, 1_000)

    def catch_up(self):
        pass

    def check_commit(self, commit):
        pass

    def expires_offsets_from(self, topic, committed_ms):
        return None

    def is_subscribed_to(self, topic):
        return False


@pytest.fixture
def group():
    return SmallGroup(ManualClock())


def put(group, *entries, raises=False):
    with group.changing():
        for key, value in entries:
            group._put(key, value)
        if raises:
            raise ZeroDivisionError
        return group.change(None)


PUTS = st.lists(
    st.tuples(st.sampled_from(MEMBERS), st.none() | st.builds(MemberValue, client_id=st.sampled_from("xy")))
    | st.tuples(st.just(GROUP), st.builds(ShareGroupValue, st.integers(1, 3))),
    max_size=6,
)


@given(st.lists(PUTS, max_size=4), PUTS, st.booleans())
def test_a_change_is_stored_whole_or_leaves_nothing_behind(before, puts, fails):
    group, stored = SmallGroup(ManualClock()), {}
    for each in before:
        stored |= dict(put(group, *each).entries)
    had, members = dict(group.entries()), dict(group.members)
    if fails:
        with pytest.raises(ZeroDivisionError):
            put(group, *puts, raises=True)
    else:
        change = put(group, *puts)
        assert len({key for key, _ in change.entries}) == len(change.entries), "each record once"
        after = stored | dict(change.entries)
        assert {key: value for key, value in after.items() if value is not None} == dict(group.entries())
        change.take_back()
    assert (dict(group.entries()), group.members) == (had, members)
    assert {key: value for key, value in stored.items() if value is not None} == had


def test_what_is_as_it_was_is_not_stored(group):
    put(group, (MEMBERS[0], MemberValue()))
    assert put(group, (MEMBERS[0], MemberValue()), (MEMBERS[1], None)).entries == []


def test_one_change_at_a_time(group):
    with pytest.raises(AssertionError, match="one change at a time"), group.changing(), group.changing():
        pass
    put(group)


def test_members_go_before_the_group_and_come_after_it(group):
    put(group, (CurrentKey("g", "a"), CurrentValue(1, 0, {})), (MEMBERS[0], MemberValue()), (GROUP, ShareGroupValue(1)))
    assert [type(key) for key, _ in group.entries()] == [ShareGroupKey, MemberKey, CurrentKey]
    assert [type(key) for key, _ in group.tombstones()] == [CurrentKey, MemberKey, ShareGroupKey]


def test_who_is_taken_back_has_time_to_be_heard_of(group):
    put(group, (MEMBERS[0], MemberValue()))
    group.start_sessions()
    group._clock.advance_ms(400)
    put(group, (MEMBERS[0], None)).take_back()
    assert group.next_deadline() == group._clock.monotonic() + 1
    group._clock.advance_ms(400)
    put(group, (MEMBERS[1], MemberValue())).take_back()
    group.start_sessions(only_missing=True)
    assert group.next_deadline() == group._clock.monotonic() + 0.6


def test_each_who_is_late_is_told_once(group):
    put(group, (MEMBERS[0], MemberValue()), (MEMBERS[1], MemberValue()))
    group.start_sessions()
    group.set_deadline("a", REBALANCE, 900)
    group.set_deadline("b", REBALANCE, 2_000)
    group.set_deadline("gone", SESSION, 10)
    group.set_deadline("b", REBALANCE, 10, if_absent=True)
    group._clock.advance_ms(1_000)
    assert group.overdue() == ["a", "b"]
    assert group.overdue() == []
    group.drop_deadline("b", REBALANCE)
    assert group.next_deadline() is None


def test_only_a_group_without_members_goes(group):
    put(group, (MEMBERS[0], MemberValue()))
    for refused in (group.delete, group.check_empty):
        with pytest.raises(GroupNotEmpty, match="it is Stable with 1 members"):
            refused()
    with pytest.raises(UnknownMember):
        group.check_known("b")
    group.check_known("a")
    put(group, (MEMBERS[0], None))
    group.delete()


def test_who_may_commit_without_being_a_member(group):
    assert group._is_no_members(Commit())
    put(group, (MEMBERS[0], MemberValue()))
    assert not group._is_no_members(Commit())
    assert group._is_no_members(Commit(transactional=True))
    assert not group._is_no_members(Commit(transactional=True, member_id="a"))


def test_an_epoch_that_is_over_is_good_for_what_the_member_has_had_since(group):
    def check(generation, since, wrong=StaleMemberEpoch):
        commit = Commit(member_id="a", generation=generation, partitions=[TopicPartition("t", 0)])
        group._check_commit_epoch(commit, 5, lambda _: since, wrong)

    check(5, None)
    check(3, 3)
    for generation, since in ((6, 1), (2, 3), (4, None)):
        with pytest.raises(StaleMemberEpoch):
            check(generation, since)
    with pytest.raises(IllegalGeneration):
        check(6, 1, IllegalGeneration)
