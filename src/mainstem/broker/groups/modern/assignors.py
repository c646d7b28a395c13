"""Server-side assignors: who reads which partitions. Pure functions, and the same for the same input.

`range`: every topic by itself is cut into one run of partitions for each of its subscribers, in the order of instance
ids, then of member ids; so topics with as many partitions are assigned alike (joins by key). Nothing is remembered: a
member that comes or goes moves many partitions.

`uniform`: everybody has the same number of partitions or one more, as far as the subscriptions allow, and keeps as many
of those it has as it can.

Racks are not looked at: there is one node.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from mainstem.broker.groups.modern.partitions import Assignment, assignment_of


class Subscriber(msgspec.Struct, frozen=True):
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    """Existing topics that it is subscribed to."""
    instance_id: str | None = None
    target: Assignment = {}
    """What it was to have until now."""


Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Assignment]]
"""(members by id, partitions of each topic) to what each member is to have."""


def assign_range(members: Mapping[str, Subscriber], partitions: Mapping[UUID, int]) -> dict[str, Assignment]:
    """A run of each topic's partitions for each of its subscribers; the first ones get one more."""
    found: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    ordered = sorted(members, key=lambda member_id: _range_order(member_id, members[member_id]))
    subscribers: dict[UUID, list[str]] = {}
    for member_id in ordered:
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    for topic_id, member_ids in subscribers.items():
        quota, more = divmod(partitions[topic_id], len(member_ids))
        start = 0
        for place, member_id in enumerate(member_ids):
            end = start + quota + (place < more)
            if end > start:
                found[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(found)


def _range_order(member_id: str, member: Subscriber) -> tuple[bool, str]:
    return (False, member.instance_id) if member.instance_id is not None else (True, member_id)


def assign_uniform(members: Mapping[str, Subscriber], partitions: Mapping[UUID, int]) -> dict[str, Assignment]:
    """As many partitions for everybody, and as few as can be that move."""
    if not members:
        return {}
    kept = _kept(members, partitions)
    taken = {(topic_id, each) for found in kept.values() for topic_id, each in found}
    free = [
        (topic_id, each)
        for topic_id in _subscribed(members, partitions)
        for each in range(partitions[topic_id])
        if (topic_id, each) not in taken
    ]
    if len({member.topics for member in members.values()}) <= 1:
        _fill_quotas(kept, free)
    else:
        _fill_least_loaded(members, kept, free)
        _level(members, kept)
    return {member_id: assignment_of(found) for member_id, found in kept.items()}


_Partition: TypeAlias = tuple[UUID, int]


def _kept(members: Mapping[str, Subscriber], partitions: Mapping[UUID, int]) -> dict[str, list[_Partition]]:
    """What everybody has and is still subscribed to; of two that have the same, the first."""
    taken: set[_Partition] = set()
    kept: dict[str, list[_Partition]] = {}
    for member_id in sorted(members):
        member = members[member_id]
        kept[member_id] = own = []
        for topic_id in sorted(member.target.keys() & member.topics):
            for each in sorted(member.target[topic_id]):
                if each < partitions[topic_id] and (topic_id, each) not in taken:
                    taken.add((topic_id, each))
                    own.append((topic_id, each))
    return kept


def _subscribed(members: Mapping[str, Subscriber], partitions: Mapping[UUID, int]) -> list[UUID]:
    """Topics that somebody is subscribed to: the most partitions for each subscriber first."""
    counts: dict[UUID, int] = {}
    for member in members.values():
        for topic_id in member.topics:
            counts[topic_id] = counts.get(topic_id, 0) + 1
    return sorted(counts, key=lambda topic_id: (-partitions[topic_id] / counts[topic_id], counts[topic_id], topic_id))


def _fill_quotas(kept: dict[str, list[_Partition]], free: list[_Partition]) -> None:
    """All subscriptions are alike: who has most keeps the one more that not everybody can have."""
    quota, more = divmod(sum(map(len, kept.values())) + len(free), len(kept))
    limits = {
        member_id: quota + (place < more)
        for place, member_id in enumerate(sorted(kept, key=lambda member_id: -len(kept[member_id])))
    }
    for member_id, own in kept.items():
        free += own[limits[member_id] :]
        del own[limits[member_id] :]
    spare = iter(free)
    for member_id, own in kept.items():
        own.extend(islice(spare, limits[member_id] - len(own)))


def _fill_least_loaded(
    members: Mapping[str, Subscriber], kept: dict[str, list[_Partition]], free: Sequence[_Partition]
) -> None:
    """Each free partition for whoever has least of those that are subscribed to its topic."""
    heaps: dict[UUID, list[tuple[int, str]]] = {}
    for topic_id, each in free:
        heap = heaps.get(topic_id)
        if heap is None:
            heap = heaps[topic_id] = [(len(kept[who]), who) for who in members if topic_id in members[who].topics]
            heapq.heapify(heap)
        while heap[0][0] != len(kept[heap[0][1]]):  # it has got some of another topic meanwhile
            heapq.heapreplace(heap, (len(kept[heap[0][1]]), heap[0][1]))
        count, who = heap[0]
        kept[who].append((topic_id, each))
        heapq.heapreplace(heap, (count + 1, who))


MOST_ROUNDS: Final = 16
"""Each round about halves what is left to level."""


def _level(members: Mapping[str, Subscriber], kept: dict[str, list[_Partition]]) -> None:
    """Move single partitions from who has two or more above another subscriber of the topic, until nobody has."""
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    for _ in range(MOST_ROUNDS):
        moved = False
        for topic_id in sorted(subscribers):
            moved |= _level_topic(topic_id, subscribers[topic_id], kept)
        if not moved:
            return


def _level_topic(topic_id: UUID, subscribers: Sequence[str], kept: dict[str, list[_Partition]]) -> bool:
    """Level one topic among its subscribers; True if something has moved."""
    givers = {who: [each for each in kept[who] if each[0] == topic_id] for who in subscribers}
    least = [(len(kept[who]), who) for who in subscribers]
    heapq.heapify(least)
    most = [(-len(kept[who]), who) for who in subscribers if givers[who]]
    heapq.heapify(most)
    moved = False
    while most:
        above, giver = most[0]
        below, taker = least[0]
        if -above != len(kept[giver]) or not givers[giver]:
            heapq.heappop(most)
            continue
        if below != len(kept[taker]):
            heapq.heapreplace(least, (len(kept[taker]), taker))
            continue
        if -above - below < 2:
            break
        each = givers[giver].pop()
        kept[giver].remove(each)
        kept[taker].append(each)
        heapq.heapreplace(most, (-len(kept[giver]), giver))
        heapq.heapreplace(least, (len(kept[taker]), taker))
        heapq.heappush(least, (len(kept[giver]), giver))
        moved = True
    return moved


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that members ask for; the first is taken where nobody asks."""
