"""Offset, position and topic partition: one word per idea (a swap of the first two is a type error)."""

import re
from typing import NewType

import msgspec

Offset = NewType("Offset", int)
"""A record's number in its partition; the first record of a partition has offset 0."""

Position = NewType("Position", int)
"""A byte in a file."""


def is_topic_name(text: object) -> bool:
    """Whether `text` is what Kafka takes for a topic's name."""
    return isinstance(text, str) and bool(re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", text)) and text not in (".", "..")


class TopicPartition(msgspec.Struct, frozen=True, order=True, gc=False):
    """One ordered log: partition number `partition` of `topic`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
