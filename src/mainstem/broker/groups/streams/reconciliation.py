"""From what a member has to what it is to have, one step per heartbeat. Pure: the group stores what comes out.

As in groups of the consumer protocol: a member first gives up what it has to (UNREVOKED_TASKS, in its old epoch), then
goes to the target's epoch, with what is free of its new tasks, and gets the others as they become free
(UNRELEASED_TASKS). An active task is free when nobody has it; and whatever it is to be, no task is free for a member
whose process has it in another way: they share one state directory.
"""

from collections.abc import Callable

from mainstem.broker.groups.modern.partitions import assignment_of, each
from mainstem.broker.groups.streams.records import CurrentValue, MemberState
from mainstem.broker.groups.streams.tasks import HOLDS_NOTHING, HeldTasks, TaskEpochs, TaskId, Tasks, TaskSet

STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_TASKS, MemberState.UNRELEASED_TASKS


def reconciled(
    current: CurrentValue,
    *,
    target_epoch: int,
    target: Tasks,
    is_taken: Callable[[TaskId, bool], bool],
    reported: Tasks | None,
) -> CurrentValue:
    """The member after one step towards its part of the target assignment; itself if there is nothing to do.

    `is_taken` tells of a task whether it is not free for this member, as an active one or not. `reported` is what the
    member says that it has; None: it does not say.
    """
    epoch = current.epoch
    if current.state is STABLE and epoch == target_epoch:
        return current
    if current.state is UNREVOKED:
        if reported is None or reported.overlaps(current.revoking):
            return current
        epoch += 1  # a step of its own, though the target may want still more of it
    had, wanted = current.assigned, target
    keeps = HeldTasks(
        _numbers(had.active, wanted.active),
        _common(had.standby, wanted.standby),
        _common(had.warmup, wanted.warmup),
    )
    revoking = HeldTasks(
        _without(had.active, wanted.active),
        _less(had.standby, wanted.standby),
        _less(had.warmup, wanted.warmup),
    )
    if revoking != HOLDS_NOTHING and (reported is None or reported.overlaps(revoking)):
        return CurrentValue(epoch, current.epoch, UNREVOKED, keeps, revoking)
    missing = (
        _less(wanted.active, had.without_epochs().active),
        _less(wanted.standby, had.standby),
        _less(wanted.warmup, had.warmup),
    )
    free = [
        assignment_of(task for task in each(found) if not is_taken(task, is_active))
        for found, is_active in zip(missing, (True, False, False), strict=True)
    ]
    gets = HeldTasks(
        _joined(keeps.active, free[0], target_epoch), _union(keeps.standby, free[1]), _union(keeps.warmup, free[2])
    )
    state = STABLE if list(missing) == free else UNRELEASED
    return CurrentValue(target_epoch, current.epoch, state, gets, HOLDS_NOTHING)


def _numbers(had: TaskEpochs, wanted: TaskSet) -> TaskEpochs:
    return _filled(
        {
            name: {number: epoch for number, epoch in found.items() if number in wanted.get(name, ())}
            for name, found in had.items()
        }
    )


def _without(had: TaskEpochs, wanted: TaskSet) -> TaskEpochs:
    return _filled(
        {
            name: {number: epoch for number, epoch in found.items() if number not in wanted.get(name, ())}
            for name, found in had.items()
        }
    )


def _filled(tasks: TaskEpochs) -> TaskEpochs:
    return {name: found for name, found in tasks.items() if found}


def _common(one: TaskSet, other: TaskSet) -> TaskSet:
    return assignment_of((name, number) for name, number in each(one) if number in other.get(name, ()))


def _less(one: TaskSet, other: TaskSet) -> TaskSet:
    return assignment_of((name, number) for name, number in each(one) if number not in other.get(name, ()))


def _union(one: TaskSet, other: TaskSet) -> TaskSet:
    return assignment_of([*each(one), *each(other)])


def _joined(keeps: TaskEpochs, free: TaskSet, epoch: int) -> TaskEpochs:
    joined = {name: dict(found) for name, found in keeps.items()}
    for name, number in each(free):
        joined.setdefault(name, {})[number] = epoch
    return joined
