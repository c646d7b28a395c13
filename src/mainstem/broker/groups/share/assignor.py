"""The assignor of share groups, `simple`: how many members read each partition, and which. A pure function.

A partition may have many members, and a member many partitions. Every partition of a topic is to have as many members,
so many that each subscriber has one partition at least. Who has a partition keeps it if that allows.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from uuid import UUID

from mainstem.broker.groups.modern.assignors import Subscriber
from mainstem.broker.groups.modern.partitions import Assignment


def assign_simple(members: Mapping[str, Subscriber], partitions: Mapping[UUID, int]) -> dict[str, Assignment]:
    """What each member is to have, topic by topic; the same for the same input."""
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    found: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, member_ids in subscribers.items():
        before = {member_id: members[member_id].target.get(topic_id, frozenset()) for member_id in member_ids}
        for member_id, own in _topic(member_ids, partitions[topic_id], before).items():
            if own:
                found[member_id][topic_id] = frozenset(own)
    return dict(found)


def _topic(member_ids: Sequence[str], partitions: int, before: Mapping[str, Iterable[int]]) -> dict[str, set[int]]:
    """One topic: all places of its partitions are shared out among its subscribers as evenly as can be."""
    sharing = -(-len(member_ids) // partitions)
    places = sharing * partitions
    quotas, given = {}, 0
    for number, member_id in enumerate(member_ids, 1):
        upto = -(-number * places // len(member_ids))
        quotas[member_id], given = upto - given, upto
    owned: dict[str, set[int]] = {member_id: set() for member_id in member_ids}
    count = [0] * partitions
    for member_id in member_ids:
        for each in sorted(before[member_id]):
            if each < partitions and len(owned[member_id]) < quotas[member_id] and count[each] < sharing:
                owned[member_id].add(each)
                count[each] += 1
    # By how many members they have, the lowest number first. The partitions that fewest have are given first: the last
    # members find as many free ones as the first.
    free = [[each for each in range(partitions) if count[each] == level] for level in range(sharing)]
    for member_id in member_ids:
        _fill(owned[member_id], quotas[member_id], free)
    return owned


def _fill(own: set[int], quota: int, free: list[list[int]]) -> None:
    """Give a member what it lacks of its quota, out of `free`: a heap of partitions for each count of members."""
    put_back: list[tuple[int, int]] = []
    for level, heap in enumerate(free):
        if len(own) == quota:
            break
        while heap and len(own) < quota:
            each = heappop(heap)
            put_back.append((level if each in own else level + 1, each))
            own.add(each)
    for level, each in put_back:
        if level < len(free):
            heappush(free[level], each)
