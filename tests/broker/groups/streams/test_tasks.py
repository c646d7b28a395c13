from mainstem.broker.groups.streams.tasks import HOLDS_NOTHING, NO_TASKS, HeldTasks, Tasks

HELD = HeldTasks({"0": {0: 5, 1: 6}}, {"1": frozenset((2,))})


def tasks(active=(), standby=()):
    return Tasks(*({"0": frozenset(numbers)} if numbers else {} for numbers in (active, standby)))


def test_tasks_without_their_epochs():
    assert HELD.without_epochs() == Tasks({"0": frozenset((0, 1))}, {"1": frozenset((2,))})
    assert HOLDS_NOTHING.without_epochs() == NO_TASKS


def test_every_task_has_an_id():
    assert sorted(HELD.ids()) == [(("0", 0), True), (("0", 1), True), (("1", 2), False)]


def test_a_task_is_in_both_only_as_the_same_kind():
    assert tasks(active=(1, 2)).overlaps(HELD)
    assert not tasks(active=(2,)).overlaps(HELD)
    assert not tasks(standby=(0,)).overlaps(HELD)
    assert not NO_TASKS.overlaps(HELD)
    assert tasks(active=(1,)).is_within(HELD)
    assert NO_TASKS.is_within(HOLDS_NOTHING)
    assert not tasks(active=(1, 2)).is_within(HELD)
    assert not tasks(standby=(0,)).is_within(HELD)
