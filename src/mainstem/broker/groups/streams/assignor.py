"""The `sticky` assignor: who has which tasks. Pure, and the same for the same input.

Everybody gets as many active tasks or one more, and a process as many as its members let it. A task stays where it was,
else it goes where a standby has its state already, else to the process that has least to do. Standbys, for parts with
state alone, go where the task was before, then where a standby was, then to whoever has least to do; a process has a
task once. Kafka 4.3 has no other assignor for streams groups, and no warm-ups.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mainstem.broker.groups.modern.partitions import assignment_of, each
from mainstem.broker.groups.streams.configured import ConfiguredSubtopology
from mainstem.broker.groups.streams.tasks import NO_TASKS, TaskId, Tasks


class TaskMember(msgspec.Struct, frozen=True):
    """A member as the assignor sees it."""

    process_id: str
    """Members with the same one share a state directory."""
    target: Tasks = NO_TASKS
    """What it was to have until now."""


def assign_sticky(
    members: Mapping[str, TaskMember], subtopologies: Mapping[str, ConfiguredSubtopology], standbys: int
) -> dict[str, Tasks]:
    """What each member is to have; `standbys` copies of each task with state."""
    if not members:
        return {}
    work = _Work(members)
    active = [(name, number) for name, part in subtopologies.items() for number in range(part.tasks)]
    stateful = [task for task in active if subtopologies[task[0]].is_stateful]
    work.assign_active(active)
    work.assign_standbys(stateful, standbys, len(active) + len(stateful) * standbys)
    return {
        member_id: Tasks(assignment_of(work.active[member_id]), assignment_of(work.standby[member_id]))
        for member_id in members
    }


def _quota(tasks: int, members: int) -> int:
    return -(-tasks // members)


class _Work:
    """Who has got what so far."""

    def __init__(self, members: Mapping[str, TaskMember]) -> None:
        self.active: dict[str, list[TaskId]] = {member_id: [] for member_id in members}
        self.standby: dict[str, list[TaskId]] = {member_id: [] for member_id in members}
        self._process = {member_id: member.process_id for member_id, member in members.items()}
        self._members: dict[str, list[str]] = {}
        self._was_active: dict[TaskId, str] = {}
        self._was_standby: dict[TaskId, list[str]] = {}
        for member_id in sorted(members):
            member = members[member_id]
            self._members.setdefault(member.process_id, []).append(member_id)
            for task in each(member.target.active):
                self._was_active.setdefault(task, member_id)
            for task in each(member.target.standby):
                self._was_standby.setdefault(task, []).append(member_id)
        self._has: dict[str, set[TaskId]] = {process_id: set() for process_id in self._members}

    def assign_active(self, tasks: Sequence[TaskId]) -> None:
        """Give every task to one member."""
        quotas = _Quotas(len(tasks), len(self.active))
        left = []
        for task in sorted(tasks, key=lambda task: (task[1], task[0])):  # tasks of one number are joined
            before = [self._was_active[task]] if task in self._was_active else []
            for member_id in [*before, *self._by_load(self._was_standby.get(task, ()))]:
                if quotas.has_room(self._count(member_id)):
                    self._give(member_id, task, self.active)
                    quotas.given(self._count(member_id))
                    break
            else:
                left.append(task)
        self._give_to_least_loaded(sorted(left), self.active)

    def assign_standbys(self, tasks: Sequence[TaskId], standbys: int, total: int) -> None:
        """Give every task to `standbys` further processes, as far as there are so many."""
        quota = _quota(total, len(self.active))
        left = []
        for task in sorted(tasks, key=lambda task: (task[1], task[0]), reverse=True):
            before = [self._was_active[task]] if task in self._was_active else []
            candidates = [*before, *self._by_load(self._was_standby.get(task, ()))]
            for _ in range(standbys):
                for member_id in candidates:
                    if task not in self._has[self._process[member_id]] and self._count(member_id) < quota:
                        self._give(member_id, task, self.standby)
                        break
                else:
                    left.append(task)
        self._give_to_least_loaded(sorted(left, reverse=True), self.standby)

    def _give_to_least_loaded(self, tasks: Iterable[TaskId], kind: dict[str, list[TaskId]]) -> None:
        """Each task for the process with least to do that has not got it, and there for the member with least."""
        heap = [(self._load(process_id), process_id) for process_id in self._members]
        heapq.heapify(heap)
        for task in tasks:
            passed = []
            while heap and task in self._has[heap[0][1]]:
                passed.append(heapq.heappop(heap))
            if heap:
                process_id = heap[0][1]
                self._give(min(self._members[process_id], key=self._count), task, kind)
                heapq.heapreplace(heap, (self._load(process_id), process_id))
            for one in passed:
                heapq.heappush(heap, one)

    def _give(self, member_id: str, task: TaskId, kind: dict[str, list[TaskId]]) -> None:
        kind[member_id].append(task)
        self._has[self._process[member_id]].add(task)

    def _count(self, member_id: str) -> int:
        return len(self.active[member_id]) + len(self.standby[member_id])

    def _load(self, process_id: str) -> float:
        return sum(map(self._count, self._members[process_id])) / len(self._members[process_id])

    def _by_load(self, member_ids: Iterable[str]) -> list[str]:
        return sorted(member_ids, key=lambda member_id: (self._load(self._process[member_id]), self._count(member_id)))


class _Quotas:
    """How many tasks a member may have: one more than the least for as many members as it takes, and for no others."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self._most = _quota(tasks, members)

    def has_room(self, count: int) -> bool:
        return count < self._most

    def given(self, count: int) -> None:
        """A member has got its `count`th task."""
        if count == self._most:
            self._tasks -= count
            self._members -= 1
            self._most = _quota(self._tasks, self._members) if self._members else 0
