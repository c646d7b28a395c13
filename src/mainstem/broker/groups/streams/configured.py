"""A topology held against the topics that there are: how many tasks it has, which topics are missing, what is wrong.

Pure; the texts are Kafka's, as applications print them.
"""

import enum
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from mainstem.broker.groups.streams.topology import InternalTopic, Subtopology, Topology
from mainstem.wire.errors import Code, RequestError

Count: TypeAlias = Callable[[str], int | None]
"""How many partitions a topic has; None: it is not there."""

SHOWN: Final = 3
"""Of many missing topics so many are named."""

MOST_TASKS: Final = 10_000
"""Of one topology: to assign them takes up to half a second, in which nobody else is answered. Kafka has no limit."""


class StatusCode(enum.IntEnum):
    """What members are told beside their tasks; the numbers are the protocol's."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(msgspec.Struct, frozen=True):
    """One of them, with what applications print."""

    code: StatusCode
    detail: str


class ConfiguredSubtopology(msgspec.Struct, frozen=True):
    """One part, with numbers of partitions for everything."""

    tasks: int
    source_topics: tuple[str, ...]
    repartition_source_topics: tuple[InternalTopic, ...]
    repartition_sink_topics: tuple[str, ...]
    changelog_topics: tuple[InternalTopic, ...]

    @property
    def is_stateful(self) -> bool:
        """Only such parts have standbys."""
        return bool(self.changelog_topics)

    @property
    def topics_read(self) -> tuple[str, ...]:
        """Sources, and repartition topics."""
        return self.source_topics + tuple(topic.name for topic in self.repartition_source_topics)


class Configured(msgspec.Struct, frozen=True):
    """What came of it."""

    subtopologies: Mapping[str, ConfiguredSubtopology] = {}
    """By their ids, in their order."""
    missing: tuple[InternalTopic, ...] = ()
    """Topics that the log is to make."""
    problem: Status | None = None
    """Why no tasks are assigned."""

    @property
    def is_ready(self) -> bool:
        """Whether tasks can be assigned."""
        return self.problem is None


class InvalidTopology(RequestError):
    """No topics could make this topology work."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.streams_invalid_topology, message)


class _Problem(Exception):
    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configured(topology: Topology, count: Count) -> Configured:
    """Hold a topology against the topics.

    Raises:
        InvalidTopology: it cannot work.
    """
    if topology.epoch < 0:
        raise InvalidTopology("Topology epoch must be non-negative.")
    internal = (topic for each in topology.subtopologies for topic in each.repartition_source_topics)
    if any(topic.partitions < 0 for topic in internal):
        raise InvalidTopology("Number of partitions must be at least 1.")
    try:
        return _configured(topology, count)
    except _Problem as problem:
        return Configured(problem=problem.status)


def _configured(topology: Topology, count: Count) -> Configured:
    missing = {name for each in topology.subtopologies for name in each.source_topics if count(name) is None}
    if missing:
        raise _Problem(StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_some(missing)} are missing.")
    decided = _repartition_counts(topology.subtopologies, count)

    def partitions(name: str) -> int:
        found = count(name)
        found = decided.get(name) if found is None else found
        if found is None:
            raise InvalidTopology(f"No partition count for source topic {name}")
        return found

    _copartition(topology.subtopologies, decided, partitions)
    found: dict[str, ConfiguredSubtopology] = {}
    total = 0
    for each in sorted(topology.subtopologies, key=lambda each: each.subtopology_id):
        if not each.topics_read:
            raise InvalidTopology(f"No source topics found for subtopology {each.subtopology_id}")
        if each.subtopology_id in found:
            raise InvalidTopology(f"Subtopology {each.subtopology_id} is there twice")
        tasks = max(partitions(name) for name in each.topics_read)
        total += tasks
        if total > MOST_TASKS:
            raise InvalidTopology(f"A topology has at most {MOST_TASKS} tasks")
        decided.update((topic.name, tasks) for topic in each.changelog_topics)
        found[each.subtopology_id] = ConfiguredSubtopology(
            tasks=tasks,
            source_topics=each.source_topics,
            repartition_source_topics=_decided(each.repartition_source_topics, decided),
            repartition_sink_topics=each.repartition_sink_topics,
            changelog_topics=_decided(each.changelog_topics, decided),
        )
    to_make = _to_make(found.values(), count)
    if not to_make:
        return Configured(found)
    names = [topic.name for topic in to_make]
    detail = f"Internal topics are missing: {_some(names)}"
    return Configured(found, to_make, Status(StatusCode.MISSING_INTERNAL_TOPICS, detail))


def _decided(topics: Iterable[InternalTopic], decided: Mapping[str, int]) -> tuple[InternalTopic, ...]:
    return tuple(msgspec.structs.replace(topic, partitions=topic.partitions or decided[topic.name]) for topic in topics)


def _to_make(subtopologies: Iterable[ConfiguredSubtopology], count: Count) -> tuple[InternalTopic, ...]:
    wanted = {
        topic.name: topic for each in subtopologies for topic in each.repartition_source_topics + each.changelog_topics
    }
    for name, topic in wanted.items():
        there = count(name)
        if there is not None and there != topic.partitions:
            raise _Problem(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {topic.partitions}, found {there}",
            )
    return tuple(topic for name, topic in sorted(wanted.items()) if count(name) is None)


def _some(names: Collection[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(sorted(names)[:SHOWN]) + (f" and {more} additional topics" if more > 0 else "")


# --- repartition topics -----------------------------------------------------------------------------------------------


def _repartition_counts(subtopologies: Iterable[Subtopology], count: Count) -> dict[str, int]:
    """Partitions of each repartition topic: its own number, or as many as the part that writes it has tasks."""
    subtopologies = list(subtopologies)
    fixed = {topic.name: topic.partitions for each in subtopologies for topic in each.repartition_source_topics}
    counts = {name: partitions for name, partitions in fixed.items() if partitions}
    readers: dict[str, list[Subtopology]] = {}
    for each in subtopologies:
        for topic in each.repartition_source_topics:
            readers.setdefault(topic.name, []).append(each)
    left = {name for each in subtopologies for name in each.repartition_sink_topics if name not in counts}
    ready = deque(subtopologies)  # who is looked at (again): of what one writes, the number may be known now
    while ready:
        each = ready.popleft()
        wanted = left.intersection(each.repartition_sink_topics)
        most = _most_read(each, counts, count) if wanted else None
        if most is not None:
            left -= wanted
            for name in wanted:
                counts[name] = most
                ready.extend(readers.get(name, ()))
    if left:  # each waits for another
        raise InvalidTopology(
            "Failed to compute number of partitions for all repartition topics. "
            "There may be loops in the topology that cannot be resolved."
        )
    if any(name not in counts for name in fixed):
        raise InvalidTopology(
            "Failed to compute number of partitions for all repartition topics, "
            "because a repartition source topic is never used as a sink topic."
        )
    return counts


def _most_read(each: Subtopology, counts: Mapping[str, int], count: Count) -> int | None:
    """Partitions of the largest topic that the part reads, of those that are known."""
    known = [counts.get(topic.name) for topic in each.repartition_source_topics]
    known += [count(name) for name in each.source_topics]
    return max((one for one in known if one is not None), default=None)


# --- what is joined ---------------------------------------------------------------------------------------------------


def _copartition(
    subtopologies: Iterable[Subtopology], decided: dict[str, int], partitions: Callable[[str], int]
) -> None:
    """Give repartition topics as many partitions as what they are joined with."""
    subtopologies = list(subtopologies)
    repartition = {topic.name: topic for each in subtopologies for topic in each.repartition_source_topics}
    fixed = {name: partitions(name) for name, topic in sorted(repartition.items()) if topic.partitions}
    for each in subtopologies:
        for names in _copartitioned(each):
            ours = {name: partitions(name) for name in names if name in repartition}
            theirs = {name: partitions(name) for name in names if name not in repartition}
            if theirs:
                wanted = _same(theirs)
            elif fixed:
                wanted = _same(fixed, ours)
            else:
                wanted = max(ours.values())
            for name, found in ours.items():
                if repartition[name].partitions and found != wanted:
                    raise _Problem(
                        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                        f"Number of partitions [{found}] of repartition topic [{name}] doesn't match "
                        f"number of partitions [{wanted}] of the source topic.",
                    )
                decided[name] = wanted


def _copartitioned(each: Subtopology) -> Iterable[frozenset[str]]:
    """The topics of each group of the part; an empty group says nothing."""
    for group in each.copartition_groups:
        try:
            names = {each.source_topics[place] for place in group.source_topics}
            names |= {each.repartition_source_topics[place].name for place in group.repartition_source_topics}
        except IndexError:
            raise InvalidTopology(f"a group of topics of {each.subtopology_id} names one that it has not") from None
        if names:
            yield frozenset(names)


def _same(counts: Mapping[str, int], shown: Mapping[str, int] | None = None) -> int:
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}={found}" for name, found in sorted((shown or counts).items()))
        raise _Problem(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{listed}}}]",
        )
    return next(iter(counts.values()))
