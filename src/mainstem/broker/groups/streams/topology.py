"""What an application is made of, as its members tell it and as it is stored.

A topology has subtopologies: parts that are connected by topics alone. Each reads source topics and repartition topics,
which another one, or itself, writes; and its stores have changelog topics. It has as many tasks as the largest of what
it reads has partitions.
"""

from collections.abc import Mapping

import msgspec


class InternalTopic(msgspec.Struct, frozen=True):
    """A topic that the log makes for the application."""

    name: str
    partitions: int = 0
    """0: as many as what is written to it takes; always 0 for a changelog."""
    replication_factor: int = 0
    """0: the broker's default."""
    configs: tuple[tuple[str, str], ...] = ()


class CopartitionGroup(msgspec.Struct, frozen=True):
    """Topics that are joined, and so have as many partitions: by their places in the subtopology's lists."""

    source_topics: tuple[int, ...] = ()
    source_topic_regexes: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


class Subtopology(msgspec.Struct, frozen=True, kw_only=True):
    """One part."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regexes: tuple[str, ...] = ()
    """Kafka 4.3 refuses them."""
    changelog_topics: tuple[InternalTopic, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    @property
    def topics_read(self) -> tuple[str, ...]:
        """Sources, and repartition topics."""
        return self.source_topics + tuple(topic.name for topic in self.repartition_source_topics)

    @property
    def all_topics(self) -> tuple[str, ...]:
        """Whatever it reads, writes, or has for a changelog."""
        changelogs = tuple(topic.name for topic in self.changelog_topics)
        return self.topics_read + self.repartition_sink_topics + changelogs


class Topology(msgspec.Struct, frozen=True):
    """All parts."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()

    def is_as(self, other: "Topology") -> bool:
        """Whether it is the same one; the order of the parts means nothing."""
        return self.epoch == other.epoch and self._by_id() == other._by_id()

    def _by_id(self) -> Mapping[str, Subtopology]:
        return {each.subtopology_id: each for each in self.subtopologies}

    @property
    def required_topics(self) -> frozenset[str]:
        """What has to be there before tasks are assigned."""
        return frozenset(
            name
            for each in self.subtopologies
            for name in (*each.topics_read, *(topic.name for topic in each.changelog_topics))
        )

    def readers(self) -> Mapping[str, str]:
        """Topic: the subtopology that reads it."""
        return {name: each.subtopology_id for each in self.subtopologies for name in each.topics_read}
