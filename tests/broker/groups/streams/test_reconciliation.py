from mainstem.broker.groups.streams.reconciliation import reconciled
from mainstem.broker.groups.streams.records import CurrentValue, MemberState
from mainstem.broker.groups.streams.tasks import HOLDS_NOTHING, NO_TASKS, HeldTasks, Tasks


def held(active=(), standby=(), epoch=1):
    return HeldTasks(
        {"0": dict.fromkeys(active, epoch)} if active else {}, {"0": frozenset(standby)} if standby else {}
    )


def tasks(active=(), standby=()):
    return held(active, standby).without_epochs()


def step(current, target, *, epoch=5, taken=(), reported=None):
    return reconciled(
        current,
        target_epoch=epoch,
        target=target,
        is_taken=lambda task, is_active: task[1] in taken,
        reported=reported,
    )


def test_a_member_that_is_there_stays():
    current = CurrentValue(5, 4, MemberState.STABLE, held((0,)))
    assert step(current, tasks((0, 1))) is current


def test_a_new_member_gets_what_is_free():
    after = step(CurrentValue(0, 0), tasks((0, 1), (2,)), taken=(1,), reported=NO_TASKS)
    assert after == CurrentValue(5, 0, MemberState.UNRELEASED_TASKS, held((0,), (2,), 5))
    then = step(after, tasks((0, 1), (2,)))
    assert then == CurrentValue(5, 5, MemberState.STABLE, held((0, 1), (2,), 5))


def test_a_member_first_gives_up_and_then_gets():
    current = CurrentValue(1, 0, MemberState.STABLE, held((0, 1), (2,)))
    target = tasks((1, 3))
    after = step(current, target, reported=tasks((0, 1), (2,)))
    assert after == CurrentValue(1, 1, MemberState.UNREVOKED_TASKS, held((1,)), held((0,), (2,)))
    for reported in (None, tasks((0, 1)), tasks((1,), (2,))):
        assert step(after, target, reported=reported) is after
    then = step(after, target, reported=tasks((1,)))
    assert then == CurrentValue(5, 1, MemberState.STABLE, HeldTasks({"0": {1: 1, 3: 5}}), HOLDS_NOTHING)


def test_a_task_that_becomes_a_standby_is_given_up_first():
    current = CurrentValue(1, 0, MemberState.STABLE, held((0,)))
    after = step(current, tasks((), (0,)), taken=(0,), reported=tasks((0,)))
    assert after == CurrentValue(1, 1, MemberState.UNREVOKED_TASKS, HOLDS_NOTHING, held((0,)))
    after = step(after, tasks((), (0,)), taken=(0,), reported=NO_TASKS)
    assert after.state is MemberState.UNRELEASED_TASKS
    assert step(after, tasks((), (0,))).assigned == held((), (0,))


def test_another_target_may_come_while_it_gives_up():
    after = CurrentValue(1, 1, MemberState.UNREVOKED_TASKS, held((1,)), held((0,)))
    again = step(after, tasks((2,)), epoch=6, reported=tasks((1,)))
    assert again == CurrentValue(2, 1, MemberState.UNREVOKED_TASKS, HOLDS_NOTHING, held((1,)))
    assert step(again, tasks((2,)), epoch=6, reported=NO_TASKS).epoch == 6


def test_what_was_given_up_already_is_not_waited_for():
    current = CurrentValue(1, 0, MemberState.STABLE, held((0, 1)))
    after = step(current, tasks((1,)), reported=tasks((1,)))
    assert after == CurrentValue(5, 1, MemberState.STABLE, held((1,)))


def test_a_part_that_has_no_task_left_is_left_out():
    current = CurrentValue(1, 0, MemberState.STABLE, held((0,)))
    assert step(current, Tasks(), reported=NO_TASKS).assigned == HOLDS_NOTHING
