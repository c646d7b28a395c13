"""Which topics a group reads: by name, or by an expression that the log resolves; and whether they have changed."""

import hashlib
from collections.abc import Iterable, Iterator, Sized
from typing import Protocol
from uuid import UUID

from mainstem.broker.groups.errors import GroupError
from mainstem.wire.errors import Code


class TopicFacts(Protocol):
    """What groups need to know of a topic."""

    name: str
    topic_id: UUID

    @property
    def logs(self) -> Sized:
        """One for each partition."""


class TopicsView(Protocol):
    """The topics that are there; `version` grows whenever one is created, deleted or grown."""

    version: int

    def get(self, name: str) -> TopicFacts | None:
        """The topic of that name, if there is one."""

    def get_by_id(self, topic_id: UUID | None) -> TopicFacts | None:
        """The topic with that id, if there is one."""

    def __iter__(self) -> Iterator[TopicFacts]: ...


def topics_hash(names: Iterable[str], topics: TopicsView) -> int:
    """A number that changes when one of these topics is created, deleted, made anew or grown; 0: none is there.

    It is stored with the group's epoch. Kafka has another one there (XXH3): the epoch of a group that moves from one
    program to the other grows by one more, and nothing else happens.
    """
    found = [topic for name in sorted(names) if (topic := topics.get(name)) is not None]
    if not found:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for topic in found:
        digest.update(b"%d %s %d;" % (len(topic.name), topic.topic_id.bytes, len(topic.logs)))
    return int.from_bytes(digest.digest(), "big", signed=True)


class InvalidExpression(GroupError):
    """What a member is subscribed to is no regular expression of RE2."""

    def __init__(self, reason: str) -> None:
        super().__init__(Code.invalid_regular_expression, "", reason)
