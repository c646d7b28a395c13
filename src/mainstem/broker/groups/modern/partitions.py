"""Sets of partitions by topic id, and of tasks by subtopology. They are never changed, only replaced: a member's state
can be compared and kept.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar
from uuid import UUID

K = TypeVar("K", bound=Hashable)

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Topic id: partitions. A topic without any is left out."""

Owned: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Topic id: partition: the epoch at which it was assigned to the member that has it (KIP-1251)."""


def assignment_of(partitions: Iterable[tuple[K, int]]) -> Mapping[K, frozenset[int]]:
    """The set of these partitions."""
    topics: dict[K, set[int]] = {}
    for topic_id, partition in partitions:
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(found) for topic_id, found in topics.items()}


def without_epochs(owned: Mapping[K, Mapping[int, int]]) -> Mapping[K, frozenset[int]]:
    """The partitions of `owned`."""
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def owned_since(assignment: Mapping[K, frozenset[int]], epoch: int) -> Mapping[K, Mapping[int, int]]:
    """The partitions of `assignment`, all of them assigned at `epoch`."""
    return {topic_id: dict.fromkeys(sorted(partitions), epoch) for topic_id, partitions in assignment.items()}


def each(assignment: Mapping[K, Iterable[int]]) -> Iterator[tuple[K, int]]:
    """(topic id, partition) of each."""
    for topic_id, partitions in assignment.items():
        for partition in partitions:
            yield topic_id, partition


def is_subset(part: Mapping[K, frozenset[int]], whole: Mapping[K, Iterable[int]]) -> bool:
    """True if every partition of `part` is in `whole`."""
    return all(partitions <= set(whole.get(topic_id, ())) for topic_id, partitions in part.items())


def overlap(one: Mapping[K, frozenset[int]], other: Mapping[K, Iterable[int]]) -> bool:
    """True if a partition is in both."""
    return any(not partitions.isdisjoint(other.get(topic_id, ())) for topic_id, partitions in one.items())
