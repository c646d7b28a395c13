import pytest

from mainstem.broker.groups.classic.group import STABLE, ClassicGroup
from mainstem.broker.groups.config import ClassicGroupConfig, ConsumerGroupConfig
from mainstem.broker.groups.consumer.migration import MigrationPolicy, downgraded, may_downgrade, upgraded
from mainstem.broker.groups.embedded import Subscription, read_assignment, write_assignment, write_subscription
from mainstem.broker.groups.errors import UnknownGroup
from mainstem.broker.groups.records import GroupValue, MemberValue
from mainstem.core import ManualClock
from tests.broker.groups.consumer.test_classic_members import Classics
from tests.support.topics import FakeTopics

BOTH = MigrationPolicy.BIDIRECTIONAL


def a_classic_group(assignments, *, kind="consumer", metadata=None, clock=None):
    """A stable group of generation 7."""
    subscription = write_subscription(Subscription(1, ("t",))) if metadata is None else metadata
    members = tuple(
        MemberValue(name, None, "c", "/h", 30_000, 10_000, subscription, assignment)
        for name, assignment in assignments.items()
    )
    value = GroupValue(kind, 7, "range", next(iter(assignments)), 0, members)
    return ClassicGroup.restore("g", value, clock or ManualClock(), ClassicGroupConfig())


def up(classic, topics, policy=BOTH, **config):
    return upgraded(classic, policy, ManualClock(), topics, lambda: ConsumerGroupConfig(**config))


def given(*numbers):
    return write_assignment(1, {"t": frozenset(numbers)})


def test_members_go_on_with_what_they_have():
    topics = FakeTopics(t=4)
    group = up(a_classic_group({"a": given(0, 1), "b": given(2, 3)}), topics)
    assert (group.epoch, group.target_epoch, group.state_name) == (7, 7, "Stable")
    a = group.members["a"]
    assert (a.epoch, a.assigned, a.topics) == (7, {topics.id_of("t"): {0: 7, 1: 7}}, {"t"})
    assert (a.classic.session_timeout_ms, a.rebalance_timeout_ms) == (10_000, 30_000)
    assert group.targets["b"] == {topics.id_of("t"): {2, 3}}
    assert group.next_deadline() == pytest.approx(group._clock.monotonic() + 10)


@pytest.mark.parametrize(
    ("classic", "policy", "config"),
    [
        (a_classic_group({"a": given(0)}), MigrationPolicy.DOWNGRADE, {}),
        (a_classic_group({"a": given(0)}), MigrationPolicy.DISABLED, {}),
        (a_classic_group({"a": given(0)}, kind="connect"), BOTH, {}),
        (a_classic_group({"a": given(0), "b": given(1)}), BOTH, {"max_size": 1}),
        (a_classic_group({"a": given(0), "b": given(0)}), BOTH, {}),
        (a_classic_group({"a": given(0)[:-4] + b"\0\0\0\1x"}), BOTH, {}),
        (a_classic_group({"a": given(0)}, metadata=b"\0"), BOTH, {}),
    ],
    ids=("policy", "disabled", "type", "size", "twice", "user data", "unreadable"),
)
def test_a_group_that_cannot_become_one_stays_as_it_is(classic, policy, config):
    with pytest.raises(UnknownGroup):
        up(classic, FakeTopics(t=4), policy, **config)
    assert classic.state is STABLE


def test_a_group_that_has_not_voted_yet_is_upgraded_by_what_its_members_prefer():
    classic = a_classic_group({"a": b""})
    classic.protocol = None
    assert up(classic, FakeTopics(t=4)).members["a"].topics == {"t"}


def test_when_a_group_may_go_back():
    desk = Classics()
    desk.beat("a")
    b = desk.join().member_id
    config = ClassicGroupConfig()
    assert may_downgrade(desk.group, {"a"}, BOTH, config)
    assert not may_downgrade(desk.group, {b}, BOTH, config)
    assert not may_downgrade(desk.group, {"a", b}, BOTH, config)
    assert not may_downgrade(desk.group, {"a"}, MigrationPolicy.UPGRADE, config)
    assert not may_downgrade(desk.group, {"a"}, BOTH, ClassicGroupConfig(max_size=0))


def test_what_a_member_still_had_when_it_joined_is_its_own_unless_another_was_given_it():
    topics = FakeTopics(t=6)
    had = write_subscription(Subscription(1, ("t",), {"t": frozenset(range(4))}))
    group = up(a_classic_group({"a": given(0), "b": given(3)}, metadata=had), topics)
    of = topics.id_of("t")
    assert {name: set(member.assigned[of]) for name, member in group.members.items()} == {"a": {0, 1, 2}, "b": {3}}
    assert group.targets == {"a": {of: {0, 1, 2}}, "b": {of: {3}}}


def test_classic_members_go_on_with_what_they_have():
    desk = Classics()
    desk.beat("a")
    b = desk.join(names=("sticky", "range")).member_id
    kept = desk.told(desk.beat("a", 2, reported=(0, 1, 2, 3)))
    desk.beat("a", 2, reported=kept)
    assert desk.join(b, names=("sticky", "range")).generation == 3
    classic, value = downgraded(desk.group, {"a"}, desk.clock, ClassicGroupConfig())
    assert (classic.generation, classic.state, classic.protocol, classic.members.leader) == (3, STABLE, "sticky", b)
    assert read_assignment(value.members[0].assignment).partitions == {"t": {0, 1, 2, 3} - set(kept)}
    assert [protocol.name for protocol in classic.members[b].protocols] == ["sticky", "range"]
    assert classic.subscribed_topics == {"t"}


def test_the_protocol_is_one_that_all_know():
    desk = Classics()
    desk.beat("a")
    desk.join(names=("sticky", "range"))
    desk.join(names=("range",))
    classic, _ = downgraded(desk.group, {"a"}, desk.clock, ClassicGroupConfig())
    assert classic.protocol == "range"
