"""A topic partition, and what a topic may be called."""

import re

import msgspec


def is_topic_name(text: object) -> bool:
    """Whether `text` is what Kafka takes for a topic's name."""
    return isinstance(text, str) and bool(re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", text)) and text not in (".", "..")


class TopicPartition(msgspec.Struct, frozen=True, order=True, gc=False):
    """One ordered log: partition number `partition` of `topic`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
