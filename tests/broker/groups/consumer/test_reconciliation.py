from uuid import UUID

from mainstem.broker.groups.consumer.member import Member
from mainstem.broker.groups.consumer.reconciliation import STABLE, UNRELEASED, UNREVOKED, reconciled
from mainstem.broker.groups.modern.partitions import owned_since

T, U = UUID(int=1), UUID(int=2)


def sets(**topics):
    return {{"t": T, "u": U}[name]: frozenset(found) for name, found in topics.items() if found}


def a_member(epoch=1, state=STABLE, assigned=None, revoking=None):
    return Member(
        member_id="m",
        epoch=epoch,
        previous_epoch=epoch,
        state=state,
        assigned=owned_since(assigned or {}, epoch),
        revoking=owned_since(revoking or {}, epoch),
    )


def step(member, target, *, epoch=2, others=(), reported=None, subscribed=(T, U), changed=False):
    return reconciled(
        member,
        target_epoch=epoch,
        target=target,
        subscribed=subscribed,
        is_owned=lambda topic_id, partition: (topic_id, partition) in others,
        reported=reported,
        subscription_changed=changed,
    )


def test_a_member_that_is_there_stays():
    member = a_member(2, assigned=sets(t=(0,)))
    assert step(member, sets(t=(0,))) is member


def test_it_goes_straight_to_what_is_free():
    after = step(a_member(), sets(t=(0, 1)))
    assert (after.epoch, after.state, after.assigned) == (2, STABLE, {T: {0: 2, 1: 2}})


def test_it_gives_up_first_in_its_old_epoch():
    member = a_member(assigned=sets(t=(0, 1)))
    after = step(member, sets(t=(1,), u=(0,)), reported=sets(t=(0, 1)))
    assert (after.epoch, after.state) == (1, UNREVOKED)
    assert (after.assigned, after.revoking) == ({T: {1: 1}}, {T: {0: 1}})
    assert step(after, sets(t=(1,), u=(0,)), reported=None) is after
    assert step(after, sets(t=(1,), u=(0,)), reported=sets(t=(0, 1))) is after
    done = step(after, sets(t=(1,), u=(0,)), reported=sets(t=(1,)))
    assert (done.epoch, done.state, done.assigned, done.revoking) == (2, STABLE, {T: {1: 1}, U: {0: 2}}, {})


def test_what_it_does_not_have_any_more_need_not_be_given_up():
    after = step(a_member(assigned=sets(t=(0, 1))), sets(t=(1,)), reported=sets(t=(1,)))
    assert (after.epoch, after.state, after.revoking) == (2, STABLE, {})


def test_what_it_has_just_given_up_it_may_have_again_at_once():
    """It was counted as somebody's for one more heartbeat, in which nobody read it."""
    member = a_member(state=UNREVOKED, assigned=sets(t=(0,)), revoking=sets(t=(1,)))
    after = step(member, sets(t=(0, 1)), epoch=3, others=[(T, 0), (T, 1)], reported=sets(t=(0,)))
    assert (after.epoch, after.state, after.assigned, after.revoking) == (3, STABLE, {T: {0: 1, 1: 3}}, {})


def test_it_waits_for_what_others_have_in_the_new_epoch():
    after = step(a_member(), sets(t=(0, 1)), others=[(T, 1)])
    assert (after.epoch, after.state, after.assigned) == (2, UNRELEASED, {T: {0: 2}})
    assert step(after, sets(t=(0, 1)), others=[(T, 1)]).assigned == after.assigned
    done = step(after, sets(t=(0, 1)), epoch=2)
    assert (done.state, done.assigned) == (STABLE, {T: {0: 2, 1: 2}})


def test_a_newer_target_is_taken_while_it_waits():
    after = step(a_member(state=UNRELEASED), sets(t=(0,)), epoch=5)
    assert (after.epoch, after.state) == (5, STABLE)


def test_what_it_is_not_subscribed_to_is_given_up_at_once():
    """The next target may be a while away; until then the member would read what nobody asked for."""
    member = a_member(2, assigned=sets(t=(0,), u=(0,)))
    after = step(member, sets(t=(0,), u=(0,)), subscribed=(T,), changed=True, reported=sets(t=(0,), u=(0,)))
    assert (after.epoch, after.state, after.assigned, after.revoking) == (2, UNREVOKED, {T: {0: 2}}, {U: {0: 2}})
    assert step(member, sets(t=(0,), u=(0,)), subscribed=(T,)) is member, "only when it says something new"
    gone = step(member, sets(t=(0,), u=(0,)), subscribed=(T,), changed=True, reported=sets(t=(0,)))
    assert (gone.state, gone.assigned, gone.revoking) == (STABLE, {T: {0: 2}}, {})
    assert step(member, {}, subscribed=(T, U), changed=True) is member


def test_a_topic_that_it_may_not_have_is_not_given():
    after = step(a_member(), sets(t=(0,), u=(0,)), subscribed=(T,))
    assert after.assigned == {T: {0: 2}}
