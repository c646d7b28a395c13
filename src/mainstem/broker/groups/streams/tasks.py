"""Tasks: a subtopology and a number of its partitions each. Sets of them are never changed, only replaced."""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from mainstem.broker.groups.modern.partitions import each, overlap, without_epochs

TaskId: TypeAlias = tuple[str, int]
"""(subtopology id, partition)."""

TaskSet: TypeAlias = Mapping[str, frozenset[int]]
"""Subtopology id: partitions. A subtopology without any is left out."""

TaskEpochs: TypeAlias = Mapping[str, Mapping[int, int]]
"""Subtopology id: partition: the epoch at which the task was assigned to the member that has it."""


class Tasks(msgspec.Struct, frozen=True):
    """What a member is to have, or says that it has."""

    active: TaskSet = {}
    standby: TaskSet = {}
    """Copies of the state of tasks that are active elsewhere."""
    warmup: TaskSet = {}
    """Copies that are to become active. Kafka 4.3 assigns none."""

    @property
    def kinds(self) -> tuple[TaskSet, TaskSet, TaskSet]:
        """One after the other."""
        return self.active, self.standby, self.warmup

    def overlaps(self, held: "HeldTasks") -> bool:
        """True if a task is in both, as the same kind of task."""
        return any(overlap(ours, theirs) for ours, theirs in zip(self.kinds, held.kinds, strict=True))

    def is_within(self, *held: "HeldTasks") -> bool:
        """True if every task is in one of them, as the same kind of task."""
        theirs = [{task for one in held for task in each(one.kinds[kind])} for kind in range(len(self.kinds))]
        return all(found.issuperset(each(tasks)) for found, tasks in zip(theirs, self.kinds, strict=True))


class HeldTasks(msgspec.Struct, frozen=True):
    """What a member has, with the epochs of the active ones: they decide who may commit."""

    active: TaskEpochs = {}
    standby: TaskSet = {}
    warmup: TaskSet = {}

    @property
    def kinds(self) -> tuple[TaskEpochs, TaskSet, TaskSet]:
        """One after the other."""
        return self.active, self.standby, self.warmup

    def without_epochs(self) -> Tasks:
        """The same tasks."""
        return Tasks(without_epochs(self.active), self.standby, self.warmup)

    def ids(self) -> Iterator[tuple[TaskId, bool]]:
        """Every task, and whether it is an active one."""
        for task_id in each(self.active):
            yield task_id, True
        for tasks in (self.standby, self.warmup):
            for task_id in each(tasks):
                yield task_id, False


NO_TASKS: Final = Tasks()
HOLDS_NOTHING: Final = HeldTasks()
