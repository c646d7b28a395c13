import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainstem.broker.fields import Writer
from mainstem.broker.groups.classic.group import (
    COMPLETING,
    DEAD,
    EMPTY,
    LARGE,
    PREPARING,
    STABLE,
    TRANSITIONS,
    ClassicGroup,
    GroupState,
)
from mainstem.broker.groups.classic.messages import JoinRequest, Protocol, SyncRequest
from mainstem.broker.groups.config import ClassicGroupConfig
from mainstem.broker.groups.errors import (
    FencedInstance,
    GroupError,
    GroupNotEmpty,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownGroup,
    UnknownMember,
)
from mainstem.broker.groups.membership import Commit
from mainstem.core import ManualClock
from mainstem.wire.errors import Code
from tests.support.properties import examples


def subscription(*topics):
    """ConsumerProtocolSubscription, version 0."""
    writer = Writer(0)
    writer.array(topics, writer.string)
    writer.blob(b"")
    return writer.done()


RANGE = (Protocol("range", subscription("t")),)
OTHER = (Protocol("range", subscription("t", "u")),)


class Desk:
    """A group with its clock, and the answers that its members were given, in order."""

    def __init__(self, **config):
        self.clock = ManualClock()
        self.group = ClassicGroup("g", self.clock, ClassicGroupConfig(**config))
        self.answers = {}
        self.records = []
        self.unstored = []

    def take(self, step, *, store=True):
        if step.record is not None:
            self.records.append(step.record)
        for answer in step.answers:
            answer()
        if step.record is not None and step.after_stored is not None:
            if store:
                self.take(step.after_stored())
            else:
                self.unstored.append(step.after_stored)

    def join(
        self,
        who,
        member_id="",
        *,
        instance=None,
        protocols=RANGE,
        kind="consumer",
        session=10_000,
        rebalance=30_000,
        ask=False,
        skip=True,
        store=True,
    ):
        request = JoinRequest(
            member_id=member_id,
            instance_id=instance,
            client_id=who,
            client_host="/h",
            protocol_type=kind,
            protocols=protocols,
            rebalance_timeout_ms=rebalance,
            session_timeout_ms=session,
            member_id_required=ask,
            may_skip_assignment=skip,
        )
        self.answers.pop(who, None)
        step = self.group.join(request, lambda answer: self.answers.__setitem__(who, answer))
        self.take(step, store=store)
        return self.answers.get(who)

    def sync(self, who, member_id, generation, assignments=(), *, instance=None, store=True):
        self.answers.pop(who, None)
        request = SyncRequest(
            member_id=member_id, instance_id=instance, generation=generation, assignments=dict(assignments)
        )
        step = self.group.sync(request, lambda answer: self.answers.__setitem__(who, answer))
        self.take(step, store=store)
        return self.answers.get(who)

    def pass_time(self, milliseconds):
        self.clock.advance_ms(milliseconds)
        while (deadline := self.group.next_deadline()) is not None and deadline <= self.clock.monotonic():
            self.take(self.group.expire())

    def leave(self, *members):
        codes, step = self.group.leave([(member, None) for member in members])
        self.take(step)
        return codes


def stable(*names, **config):
    """A desk with a stable group of those members; their ids."""
    desk, ids = Desk(**config), {}
    for name in names:
        answer = desk.join(name)
        ids[name] = answer.member_id if answer else None
        for other in list(ids)[:-1]:
            desk.join(other, ids[other])
        ids[name] = desk.answers[name].member_id
    generation = desk.group.generation
    for name in names[1:]:
        desk.sync(name, ids[name], generation)
    desk.sync(names[0], ids[names[0]], generation, [(ids[name], name.encode()) for name in names])
    assert desk.group.state is STABLE
    return desk, ids


# --- joining ----------------------------------------------------------------------------------------------------------


def test_g10_the_first_member_does_not_wait():
    desk = Desk()
    answer = desk.join("a")
    assert (answer.error, answer.generation, answer.leader) == (Code.none, 1, answer.member_id)
    assert answer.members == ((answer.member_id, None, RANGE[0].metadata),)


def test_with_a_delay_the_first_rebalance_waits_for_more_members():
    desk = Desk(initial_rebalance_delay_ms=3000)
    assert desk.join("a") is None
    desk.pass_time(2999)
    assert desk.join("b") is None
    desk.pass_time(1)
    assert "a" not in desk.answers, "somebody came: once more"
    desk.pass_time(3000)
    assert {desk.answers["a"].generation, desk.answers["b"].generation} == {1}
    assert len(desk.answers["a"].members) == 2


def test_the_delay_is_not_longer_than_the_rebalance_timeout():
    desk = Desk(initial_rebalance_delay_ms=3000)
    desk.join("a", rebalance=5000)
    for name in "bcd":
        desk.pass_time(2000)
        desk.join(name, rebalance=5000)
    assert desk.answers["a"].generation == 1


def test_a_member_id_that_is_never_used_expires():
    desk, ids = stable("a")
    asked = desk.join("b", ask=True)
    assert (asked.error, asked.generation) == (Code.member_id_required, -1)
    assert desk.group.is_expected
    desk.join("a", ids["a"])
    assert "a" not in desk.answers, "the pending member is waited for"
    desk.pass_time(10_000)
    assert desk.answers["a"].generation == 2
    assert desk.join("b", asked.member_id).error is Code.unknown_member_id


def test_a_rebalance_waits_for_everybody():
    desk, ids = stable("a")
    assert desk.join("b") is None
    with pytest.raises(RebalanceInProgress):
        desk.group.heartbeat(ids["a"], None, 1)
    answer = desk.join("a", ids["a"])
    assert (answer.generation, len(answer.members)) == (2, 2)
    assert desk.answers["b"].members == ()


def test_who_does_not_come_back_in_time_is_out():
    desk, ids = stable("a", "b")
    desk.join("c", rebalance=30_000)
    desk.join("a", ids["a"])
    for _ in range(5):
        desk.pass_time(6_000)
        with pytest.raises((RebalanceInProgress, UnknownMember, IllegalGeneration)):
            desk.group.heartbeat(ids["b"], None, 2)
    assert len(desk.answers["a"].members) == 2
    with pytest.raises(UnknownMember):
        desk.group.heartbeat(ids["b"], None, 3)


def test_the_leader_that_is_out_is_replaced():
    desk, ids = stable("a", "b")
    desk.join("c")
    desk.join("b", ids["b"])
    desk.leave(ids["a"])
    assert desk.answers["b"].leader == ids["b"]
    assert len(desk.answers["b"].members) == 2


def test_a_new_member_that_is_never_heard_of_again_is_given_up():
    """It waits in JoinGroup without a session; its connection may be gone."""
    desk, ids = stable("a", new_member_join_timeout_ms=5_000)
    desk.join("b", rebalance=60_000)
    for _ in range(2):
        desk.pass_time(2_500)
        if desk.group.state is PREPARING:
            with pytest.raises(RebalanceInProgress):
                desk.group.heartbeat(ids["a"], None, 1)
    assert desk.answers["b"].error is Code.unknown_member_id
    assert desk.join("a", ids["a"]).generation == 2


def test_the_group_votes_for_a_protocol_that_all_know():
    desk = Desk()
    both = (Protocol("sticky", b"s"), Protocol("range", b"r"))
    first = desk.join("a", protocols=both)
    assert first.protocol == "sticky"
    desk.join("b", protocols=(Protocol("range", b"b"),))
    answer = desk.join("a", first.member_id, protocols=both)
    assert answer.protocol == "range"
    assert {metadata for _, _, metadata in answer.members} == {b"r", b"b"}


def test_cooperative_members_join_twice():
    """A cooperative rebalance is two rebalances: members join again with what they gave up."""
    desk = Desk()
    owned = lambda text: (Protocol("cooperative-sticky", text),)  # noqa: E731
    a = desk.join("a", protocols=owned(b"")).member_id
    desk.sync("a", a, 1, [(a, b"0,1")])
    desk.join("b", protocols=owned(b""))
    desk.join("a", a, protocols=owned(b"0,1"))
    b = desk.answers["b"].member_id
    desk.sync("b", b, 2)
    desk.sync("a", a, 2, [(a, b"0"), (b, b"")])
    assert desk.answers["b"].assignment == b""
    desk.join("a", a, protocols=owned(b"0"))
    with pytest.raises(RebalanceInProgress):
        desk.group.heartbeat(b, None, 2)
    desk.join("b", b, protocols=owned(b""))
    desk.sync("b", b, 3)
    desk.sync("a", a, 3, [(a, b"0"), (b, b"1")])
    assert (desk.answers["a"].assignment, desk.answers["b"].assignment) == (b"0", b"1")


def test_a_full_group_takes_nobody():
    desk, ids = stable("a", max_size=1)
    assert desk.join("b").error is Code.group_max_size_reached
    assert desk.join("a", ids["a"]).error is Code.none


def test_a_group_that_is_deleted_just_now_sends_members_to_the_coordinator():
    desk = Desk()
    desk.group.delete()
    assert desk.join("a").error is Code.coordinator_not_available
    with pytest.raises(UnknownGroup):
        desk.group.check_may_delete_offsets()


# --- synchronizing ----------------------------------------------------------------------------------------------------


def test_nobody_has_its_part_before_the_assignment_is_durable():
    desk = Desk()
    member = desk.join("a").member_id
    assert desk.sync("a", member, 1, [(member, b"all")], store=False) is None
    assert desk.group.state is COMPLETING
    assert desk.records[-1].members[0].assignment == b"all"
    desk.take(desk.unstored.pop()())
    assert desk.answers["a"].assignment == b"all"
    assert desk.group.state is STABLE


def test_a_rebalance_while_the_assignment_is_stored_makes_it_void():
    desk = Desk()
    member = desk.join("a").member_id
    desk.sync("a", member, 1, [(member, b"all")], store=False)
    desk.join("b")
    assert desk.answers["a"].error is Code.rebalance_in_progress
    desk.take(desk.unstored.pop()())
    assert desk.group.state is PREPARING


def test_members_that_never_synchronize_are_out():
    desk, ids = stable("a", "b")
    desk.join("a", ids["a"])
    desk.join("b", ids["b"])
    generation = desk.group.generation
    desk.sync("a", ids["a"], generation, [(ids["a"], b"x"), (ids["b"], b"y")])
    for _ in range(6):  # `b` sends heartbeats and no SyncGroup
        desk.pass_time(5_000)
        for name in "ab":
            with contextlib.suppress(GroupError):
                desk.group.heartbeat(ids[name], None, generation)
    with pytest.raises(UnknownMember):
        desk.group.heartbeat(ids["b"], None, generation)
    assert desk.group.state is PREPARING


def test_an_answer_that_cannot_be_stored_is_given_as_such():
    desk = Desk()
    member = desk.join("a").member_id
    desk.sync("a", member, 1, [(member, b"all")], store=False)
    desk.take(desk.group.abandon())
    assert desk.answers["a"].error is Code.coordinator_not_available


# --- staying and leaving ----------------------------------------------------------------------------------------------


def test_a_session_expires_on_the_clock():
    desk, ids = stable("a", "b")
    desk.pass_time(9_999)
    desk.group.heartbeat(ids["a"], None, desk.group.generation)
    desk.pass_time(1)
    assert list(desk.group.members) == [ids["a"]]
    assert desk.group.state is PREPARING
    desk.pass_time(9_999)
    assert desk.group.state is EMPTY
    assert desk.records[-1].members == ()


def test_the_last_session_that_expires_leaves_the_group_empty():
    desk, _ = stable("a")
    desk.pass_time(10_000)
    assert desk.group.state is EMPTY
    assert (desk.records[-1].generation, desk.records[-1].protocol, desk.records[-1].members) == (2, None, ())
    assert desk.group.protocol_type == "consumer"


def test_commits_are_signs_of_life():
    desk, ids = stable("a")
    for _ in range(3):
        desk.pass_time(9_999)
        desk.group.check_commit(Commit(member_id=ids["a"], generation=1))
    assert desk.group.state is STABLE


def test_g8_unknown_member_id_is_not_said_to_members_that_stay_in_a_concurrent_rebalance():
    """Nisshi said it to members that were still there, when others came and went at the same time."""
    desk, ids = stable("a", "b")
    desk.join("c")
    desk.join("d")
    desk.leave(ids["b"])
    desk.join("a", ids["a"])
    generation = desk.group.generation
    assert {desk.answers[name].error for name in "acd"} == {Code.none}
    assert {desk.answers[name].generation for name in "acd"} == {generation}
    for name in "acd":
        desk.group.heartbeat(desk.answers[name].member_id, None, generation)


def test_g8_no_extra_rebalance_when_a_member_exceeds_its_poll_interval():
    """It leaves and comes back at once, as clients do: the others join once for both."""
    desk, ids = stable("a", "b")
    before = desk.group.generation
    desk.leave(ids["b"])
    desk.join("b")
    answer = desk.join("a", ids["a"])
    assert (answer.generation, len(answer.members)) == (before + 1, 2)


def test_leaving_while_others_wait_completes_their_join():
    desk, ids = stable("a", "b")
    desk.join("a", ids["a"])
    assert "a" not in desk.answers
    assert desk.leave(ids["b"]) == [Code.none]
    assert desk.answers["a"].generation == 3
    desk.sync("a", ids["a"], 3, [(ids["a"], b"all")])
    assert desk.group.state is STABLE


def test_a_pending_member_that_leaves_disturbs_nobody():
    desk, _ = stable("a")
    asked = desk.join("b", ask=True).member_id
    assert desk.leave(asked) == [Code.none]
    assert desk.group.state is STABLE


def test_a_member_that_leaves_in_the_middle_of_its_join_is_answered():
    desk, _ids = stable("a")
    asked = desk.join("b", ask=True).member_id
    desk.join("b", asked)
    desk.leave(asked)
    assert desk.answers["b"].error is Code.unknown_member_id


# --- static members ---------------------------------------------------------------------------------------------------


def test_a_member_that_asks_again_before_it_is_answered_is_answered_twice():
    """Else nothing that it asked behind that on its connection ever was."""
    desk, ids = stable("a", "b")
    told = []

    def twice(ask):
        for _ in range(2):
            desk.take(ask(told.append))
        assert [each.error for each in told] == [Code.rebalance_in_progress]

    twice(
        lambda reply: desk.group.join(
            JoinRequest(
                member_id=ids["b"],
                instance_id=None,
                client_id="b",
                client_host="/h",
                protocol_type="consumer",
                protocols=OTHER,
                rebalance_timeout_ms=30_000,
                session_timeout_ms=10_000,
            ),
            reply,
        )
    )
    generation = desk.join("a", ids["a"]).generation
    assert [each.error for each in told] == [Code.rebalance_in_progress, Code.none]
    told.clear()
    twice(lambda reply: desk.group.sync(SyncRequest(member_id=ids["b"], generation=generation), reply))
    desk.sync("a", ids["a"], generation)
    assert [each.error for each in told] == [Code.rebalance_in_progress, Code.none]


def test_a_static_member_that_does_not_rejoin_stays_until_its_session_expires():
    desk = Desk()
    first = desk.join("a", instance="i").member_id
    desk.sync("a", first, 1, [(first, b"x")], instance="i")
    desk.join("b", rebalance=5_000, session=60_000)
    desk.pass_time(5_000)
    assert desk.group.state is PREPARING, "the longest rebalance timeout counts"
    desk.group.members[first].session_timeout_ms = 120_000
    with pytest.raises(RebalanceInProgress):
        desk.group.heartbeat(first, "i", 1)
    desk.pass_time(25_000)
    assert desk.answers["b"].generation == 2
    assert len(desk.answers["b"].members) == 2, "it is still a member"
    assert desk.answers["b"].leader == desk.answers["b"].member_id, "the leader must take part"


def test_a_pending_member_that_takes_an_instance_id_can_leave_again():
    """It asked for a member id without one: the expiry of both members failed, and the group stood still."""
    desk = Desk()
    first = desk.join("a", instance="i").member_id
    desk.sync("a", first, 1, [(first, b"x")], instance="i")
    asked = desk.join("b", ask=True)
    desk.join("b", asked.member_id, instance="i")
    for _ in range(4):
        desk.pass_time(60_000)
    assert desk.group.state is EMPTY
    assert desk.join("c", instance="i").error is Code.none


def test_only_absent_static_members_do_not_make_a_generation():
    desk = Desk()
    first = desk.join("a", instance="i", session=1_000_000, rebalance=5_000).member_id
    desk.sync("a", first, 1, [(first, b"x")], instance="i")
    desk.join("b", session=1_000_000, rebalance=5_000)
    desk.leave(next(m for m in desk.group.members if m != first))
    desk.pass_time(5_000)
    assert desk.group.state is PREPARING
    assert desk.join("a", first, instance="i", session=1_000_000, rebalance=5_000).generation == 2


def only_an_absent_static_member(rebalance):
    """A group whose one member left is a static one that has gone; it came with that rebalance timeout."""
    desk = Desk()
    desk.join("a", instance="i")
    desk.join("b")
    a = desk.join("a", desk.answers["a"].member_id, instance="i").member_id
    generation = desk.group.generation
    desk.sync("a", a, generation, [], instance="i")
    desk.join("a", instance="i", rebalance=rebalance)
    desk.clock.advance_ms(9_000)
    a = desk.answers["a"].member_id
    desk.group.heartbeat(a, "i", generation)
    desk.leave(desk.answers["b"].member_id)
    assert desk.group.state is PREPARING
    return desk


@pytest.mark.parametrize("rebalance", [-(2**31), -1, 0])
def test_a_rebalance_timeout_of_nothing_is_the_session_timeout(rebalance):
    desk = only_an_absent_static_member(rebalance)
    assert desk.group.next_deadline() == desk.clock.monotonic() + 10
    desk.pass_time(10_000)
    assert desk.group.state is EMPTY


def test_absent_static_members_are_looked_for_once_a_second_however_short_their_timeout():
    desk = only_an_absent_static_member(1)
    desk.clock.advance_ms(1)
    desk.take(desk.group.expire())
    assert desk.group.next_deadline() == desk.clock.monotonic() + 1
    desk.pass_time(10_000)
    assert desk.group.state is EMPTY


def test_a_second_process_with_the_instance_id_fences_the_first_in_the_middle_of_its_requests():
    desk = Desk()
    first = desk.join("a", instance="i").member_id
    desk.sync("a", first, 1, [(first, b"x")], instance="i")
    desk.join("b")
    desk.join("a", first, instance="i", protocols=(Protocol("range", b"z"),))
    assert desk.group.state is COMPLETING
    desk.sync("b", desk.answers["b"].member_id, 2)
    desk.join("new", instance="i")
    assert desk.answers["b"].error is Code.rebalance_in_progress
    with pytest.raises(FencedInstance):
        desk.group.heartbeat(first, "i", 2)
    for name in ("a", "b"):
        desk.answers.pop(name, None)


def test_a_fenced_join_is_answered():
    desk = Desk()
    first = desk.join("a", instance="i").member_id
    desk.sync("a", first, 1, [(first, b"x")], instance="i")
    desk.join("b")
    other = next(m for m in desk.group.members if m != first)
    desk.join("a", first, instance="i")
    desk.sync("a", first, 2, [(first, b"x"), (other, b"y")], instance="i")
    desk.sync("b", other, 2)
    desk.join("c")
    desk.join("a", first, instance="i")
    assert "a" not in desk.answers
    desk.join("new", instance="i")
    assert desk.answers["a"].error is Code.fenced_instance_id


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_who_may_commit():
    desk, ids = stable("a")

    def check(member_id, generation, **options):
        desk.group.check_commit(Commit(member_id=member_id, generation=generation, **options))

    check(ids["a"], 1)
    with pytest.raises(IllegalGeneration):
        check(ids["a"], 2)
    with pytest.raises(UnknownMember):
        check("x", 1)
    with pytest.raises(UnknownMember):
        check("", -1)
    check("", -1, transactional=True)
    with pytest.raises(IllegalGeneration):
        check(ids["a"], -1, transactional=True)
    desk.join("a", ids["a"])
    with pytest.raises(RebalanceInProgress):
        check(ids["a"], 2)
    check(ids["a"], 2, transactional=True)
    desk.leave(ids["a"])
    check("", -1)


def test_when_offsets_expire():
    desk = Desk()
    group = desk.group
    assert group.expires_offsets_from("t", 5) == 5, "a group that only commits"
    member = desk.join("a").member_id
    assert group.expires_offsets_from("t", 5) is None, "while it rebalances"
    desk.sync("a", member, 1, [(member, b"")])
    assert group.expires_offsets_from("t", 5) is None, "it reads the topic"
    assert group.expires_offsets_from("other", 5) == 5, "it no longer reads this one"
    desk.leave(member)
    assert group.expires_offsets_from("t", 5) == desk.clock.now_ms(), "since it is empty"


def test_unreadable_subscriptions_may_mean_any_topic():
    desk = Desk()
    member = desk.join("a", protocols=(Protocol("range", b"?"),)).member_id
    desk.sync("a", member, 1, [(member, b"")])
    assert desk.group.is_subscribed_to("anything")
    assert desk.group.expires_offsets_from("anything", 5) is None
    other = Desk()
    other.join("w", kind="connect", protocols=(Protocol("x", b"?"),))
    assert not other.group.is_subscribed_to("anything")
    with pytest.raises(GroupNotEmpty):
        other.group.check_may_delete_offsets()
    with pytest.raises(GroupNotEmpty):
        other.group.delete()


# --- as it is stored --------------------------------------------------------------------------------------------------


def test_a_restored_group_goes_on():
    desk, ids = stable("a", "b")
    restored = ClassicGroup.restore("g", desk.records[-1], desk.clock, ClassicGroupConfig())
    assert (restored.state, restored.generation, restored.members.leader) == (STABLE, 2, ids["a"])
    assert restored.subscribed_topics == {"t"}
    restored.heartbeat(ids["b"], None, 2)
    desk.group = restored
    assert desk.sync("b", ids["b"], 2).assignment == b"b"
    desk.pass_time(10_000)
    assert desk.group.state is EMPTY, "who is not heard of is out"


def test_a_restored_empty_group_keeps_its_generation_and_type():
    desk, _ = stable("a")
    desk.pass_time(10_000)
    restored = ClassicGroup.restore("g", desk.records[-1], desk.clock, ClassicGroupConfig())
    assert (restored.state, restored.generation, restored.protocol_type) == (EMPTY, 2, "consumer")
    assert not restored.is_subscribed_to("t")
    desk.group = restored
    assert desk.join("a").generation == 3


def killed(desk):
    """The desk of the group as it was stored last; whoever waited will ask again."""
    desk.group = ClassicGroup.restore("g", desk.records[-1], desk.clock, ClassicGroupConfig())
    desk.answers.clear()
    desk.unstored.clear()
    return desk.group


def test_nobody_is_told_of_a_generation_that_is_not_stored():
    desk, ids = stable("a", "b")
    assert desk.join("b", ids["b"], protocols=OTHER) is None, "the leader is to join again"
    assert desk.join("a", ids["a"], store=False) is None
    assert (desk.group.state, desk.group.generation) == (COMPLETING, 3)
    again = desk.join("a", ids["a"], store=False)
    assert again.error is Code.rebalance_in_progress, "who has asked first; of the generation it still is not told"
    [stored] = desk.unstored
    desk.take(stored())
    assert {name: answer.generation for name, answer in desk.answers.items()} == {"a": 3, "b": 3}
    assert len(desk.answers["a"].members) == 2


def test_who_comes_while_a_generation_is_stored_is_in_the_next_one_with_all_others():
    """Each formed one of its own and wrote the whole group: 300 members of 40 KB took 3 GB of memory."""
    desk, ids = stable("a")
    desk.join("b", store=False)
    desk.join("a", ids["a"], store=False)
    assert (desk.group.state, desk.group.generation) == (COMPLETING, 2)
    before = len(desk.records)
    for name in ("c", "d", "e"):
        assert desk.join(name, store=False) is None
    assert len(desk.records) == before
    assert not desk.answers.keys() & {"a", "b"}
    desk.take(desk.unstored.pop()())
    assert len(desk.records) == before + 1
    assert {answer.generation for answer in desk.answers.values()} == {3}
    assert set(desk.answers) == {"a", "b", "c", "d", "e"}
    assert len(desk.answers["a"].members) == 5


def test_who_leaves_while_a_generation_is_stored_is_not_in_the_next_one():
    desk, ids = stable("a", "b")
    desk.join("b", ids["b"], protocols=OTHER, store=False)
    desk.join("a", ids["a"], store=False)
    (stored,) = desk.unstored
    desk.unstored.clear()
    desk.leave(ids["b"])
    desk.take(stored())
    assert (desk.answers["a"].generation, len(desk.answers["a"].members)) == (4, 1)
    assert set(desk.group.members) == {ids["a"]}


def test_static_members_that_come_back_meanwhile_share_one_record():
    desk = Desk()
    first = desk.join("a", instance="i")
    desk.sync("a", first.member_id, first.generation, [(first.member_id, b"part")])
    before = len(desk.records)
    for name in ("b", "c", "d"):
        assert desk.join(name, instance="i", store=False) is None
    assert len(desk.records) == before + 1
    assert {name: desk.answers[name].error for name in ("b", "c")} == dict.fromkeys("bc", Code.fenced_instance_id)
    while desk.unstored:
        desk.take(desk.unstored.pop()(), store=False)
    assert len(desk.records) == before + 2
    assert (desk.answers["d"].error, desk.answers["d"].generation) == (Code.none, first.generation)
    assert killed(desk).members.holder("i") == desk.records[-1].members[0].member_id


def test_an_assignment_that_the_leader_brings_again_is_written_once():
    desk, ids = stable("a")
    desk.join("a", ids["a"], protocols=OTHER)
    before = len(desk.records)
    for _ in range(3):
        desk.sync("a", ids["a"], 2, [(ids["a"], b"part")], store=False)
    assert len(desk.records) == before + 1
    desk.take(desk.unstored.pop()())
    assert desk.answers["a"].assignment == b"part"


def test_a_generation_that_was_told_takes_its_assignment_after_a_crash():
    """ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID were the answers to SyncGroup: they end a consumer's session."""
    desk, ids = stable("a", "b")
    desk.join("b", ids["b"], protocols=OTHER)
    desk.join("a", ids["a"])
    group = killed(desk)
    assert (group.state, group.generation, group.members.leader) == (COMPLETING, 3, ids["a"])
    group.heartbeat(ids["b"], None, 3)
    assert desk.sync("b", ids["b"], 3) is None
    assert desk.sync("a", ids["a"], 3, [(ids["a"], b"1"), (ids["b"], b"2")]).assignment == b"1"
    assert desk.answers["b"].assignment == b"2"
    assert desk.group.state is STABLE


def test_an_answer_that_a_crash_has_lost_is_given_again():
    desk, ids = stable("a", "b")
    desk.join("b", ids["b"], protocols=OTHER)
    desk.join("a", ids["a"])
    killed(desk)
    again = desk.join("b", ids["b"], protocols=OTHER)
    assert (again.error, again.generation, again.leader) == (Code.none, 3, ids["a"])


def test_a_group_whose_members_have_no_assignments_is_stable_after_a_crash():
    """As of clients that want a leader, and nothing else: healthy ones were thrown out."""
    desk, ids = stable("a", "b")
    desk.join("b", ids["b"], protocols=OTHER)
    desk.join("a", ids["a"])
    desk.sync("b", ids["b"], 3)
    desk.sync("a", ids["a"], 3, [])
    assert killed(desk).state is STABLE
    desk.pass_time(9_000)
    desk.group.heartbeat(ids["a"], None, 3)
    assert desk.sync("b", ids["b"], 3).assignment == b""


def test_a_generation_that_nobody_assigns_after_a_crash_ends():
    desk, ids = stable("a", "b")
    desk.join("b", ids["b"], protocols=OTHER)
    desk.join("a", ids["a"])
    group = killed(desk)
    desk.pass_time(9_000)
    group.heartbeat(ids["a"], None, 3)
    desk.pass_time(60_000)
    assert desk.group.state is EMPTY


def test_who_has_left_does_not_come_back_by_a_crash():
    """It held the rebalance up until its session ended, and every start of the broker began that anew."""
    desk, ids = stable("a", "b", "c")
    assert desk.leave(ids["c"]) == [Code.none]
    group = killed(desk)
    assert (group.state, group.generation, set(group.members)) == (PREPARING, 3, {ids["a"], ids["b"]})
    with pytest.raises(RebalanceInProgress):
        group.heartbeat(ids["a"], None, 3)
    assert desk.join("b", ids["b"]) is None
    assert desk.join("a", ids["a"]).generation == 4
    assert set(group.members) == {ids["a"], ids["b"]}


def test_who_is_new_in_a_rebalance_is_told_to_ask_for_another_id_after_a_crash():
    desk, ids = stable("a", "b")
    new = desk.join("c", ask=True).member_id
    assert desk.join("c", new) is None
    desk.leave(ids["b"])
    killed(desk)
    assert desk.join("c", new).error is Code.unknown_member_id
    assert desk.join("a", ids["a"]).generation == 3


def test_the_record_of_a_large_group_is_not_written_for_each_that_leaves():
    desk, ids = stable(*[f"m{number}" for number in range(LARGE + 2)])
    before = len(desk.records)
    desk.leave(ids.pop("m1"))
    desk.leave(ids.pop("m2"))
    assert len(desk.records) == before
    desk.leave(ids.pop("m3"))
    assert len(desk.records) == before + 1


def test_a_generation_that_cannot_be_stored_is_given_up():
    desk, ids = stable("a")
    assert desk.join("a", ids["a"], protocols=OTHER, store=False) is None
    desk.take(desk.group.abandon(Code.message_too_large))
    assert desk.answers["a"].error is Code.message_too_large
    desk.unstored.clear()
    assert desk.join("a", ids["a"], protocols=OTHER).generation == 3


def test_a_static_member_that_waited_for_what_cannot_be_stored_has_its_session_again():
    """Its session had ended while it waited, and nobody counted it any more: a dead member was one for ever."""
    desk = Desk()
    first = desk.join("a", instance="i1").member_id
    desk.join("b", instance="i2")
    second = desk.join("a", first, instance="i1") or desk.answers["b"]
    members = {"a": desk.answers["a"].member_id, "b": desk.answers["b"].member_id}
    generation = desk.group.generation
    leader = desk.group.members.leader
    (led,) = [name for name, member_id in members.items() if member_id == leader]
    other = "b" if led == "a" else "a"
    instances = {"a": "i1", "b": "i2"}
    desk.sync(other, members[other], generation, instance=instances[other])
    desk.sync(led, leader, generation, [(each, b"") for each in members.values()], instance=instances[led])
    assert second is not None
    assert desk.join(led, leader, instance=instances[led]) is None
    for _ in range(4):
        desk.pass_time(4_000)
        with contextlib.suppress(RebalanceInProgress):
            desk.group.heartbeat(members[other], instances[other], generation)
    desk.join(other, members[other], instance=instances[other], store=False)
    desk.take(desk.group.abandon(Code.message_too_large))
    assert {desk.answers[name].error for name in members} == {Code.message_too_large}
    desk.pass_time(100_000)
    assert desk.group.state is EMPTY


def test_every_state_has_its_transitions():
    assert set(TRANSITIONS) == set(GroupState)
    assert not TRANSITIONS[DEAD]


# --- members that come, go and fall silent in any order ---------------------------------------------------------------


class Groups(RuleBasedStateMachine):
    """Whatever members do: a request is answered once, a generation has one assignment, nobody waits for ever."""

    def __init__(self):
        super().__init__()
        self.desk = Desk(new_member_join_timeout_ms=60_000)
        self.names = iter(f"m{number}" for number in range(10_000))
        self.ids = {}
        self.asked = set()
        self.gone = set()
        self.last_generation = 0

    def _settle_answers(self):
        for name, answer in list(self.desk.answers.items()):
            if getattr(answer, "member_id", ""):
                self.ids[name] = answer.member_id
            self.asked.discard(name)

    @rule(ask=st.booleans(), instance=st.sampled_from((None, None, "i")))
    def somebody_new(self, ask, instance):
        name = next(self.names)
        self.asked.add(name)
        self.desk.join(name, ask=ask, instance=instance, session=20_000, rebalance=25_000)
        self._settle_answers()

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), changed=st.booleans())
    def joins_again(self, data, changed):
        name = data.draw(st.sampled_from(sorted(self.ids)))
        if name in self.asked:
            return
        protocols = (Protocol("range", subscription("u")),) if changed else RANGE
        self.asked.add(name)
        member = self.desk.group.members.get(self.ids[name])
        self.desk.join(
            name,
            self.ids[name],
            instance=member.instance_id if member else None,
            protocols=protocols,
            session=20_000,
            rebalance=25_000,
        )
        self._settle_answers()

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def synchronizes(self, data):
        name = data.draw(st.sampled_from(sorted(self.ids)))
        if name in self.asked:
            return
        group, member_id = self.desk.group, self.ids[name]
        assignments = [(each, b"%d" % group.generation) for each in group.members]
        self.asked.add(name)
        self.desk.sync(name, member_id, group.generation, assignments if group.members.leader == member_id else ())
        self._settle_answers()
        answer = self.desk.answers.get(name)
        if answer is not None and answer.error is Code.none:
            assert answer.assignment == b"%d" % group.generation

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def beats(self, data):
        name = data.draw(st.sampled_from(sorted(self.ids)))
        try:
            self.desk.group.heartbeat(self.ids[name], None, self.desk.group.generation)
        except GroupError:
            return

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def leaves(self, data):
        name = data.draw(st.sampled_from(sorted(self.ids)))
        member_id = self.ids.pop(name)
        if self.desk.leave(member_id) == [Code.none]:
            self.gone.add(member_id)
        self._settle_answers()

    @rule(milliseconds=st.integers(1, 30_000))
    def time_passes(self, milliseconds):
        self.desk.pass_time(milliseconds)
        self._settle_answers()

    @precondition(lambda self: self.desk.records)
    @rule()
    def the_process_is_killed(self):
        group = killed(self.desk)
        self.asked.clear()
        assert not self.gone & set(group.members), "somebody who was told that it has left is back"

    @invariant()
    def the_group_is_sound(self):
        group = self.desk.group
        assert group.generation >= self.last_generation
        self.last_generation = group.generation
        if not group.members:
            assert group.state is EMPTY or (group.state is PREPARING and group.is_expected)
        else:
            assert group.state is not EMPTY
            leader = group.members.leader
            assert leader in group.members or (group.state is PREPARING and leader is None)
        for member in group.members.values():
            assert member.deadline is not None or member.join_reply or member.sync_reply, "it could stay for ever"
        if group.state in (STABLE, EMPTY):
            assert not any(member.join_reply or member.sync_reply for member in group.members.values())
        if group.state in (PREPARING, COMPLETING):
            assert group.next_deadline() is not None, "nobody would end the rebalance"

    def teardown(self):
        for _ in range(20):
            self.desk.pass_time(60_000)
        self._settle_answers()
        assert self.desk.group.state is EMPTY
        assert not self.asked, "somebody was never answered"


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
