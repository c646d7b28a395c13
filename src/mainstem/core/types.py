"""A topic partition, and what a topic may be called."""

import re
from typing import Final

import msgspec

LONGEST_TOPIC_NAME: Final = 249
"""Characters; `name-partition` and an ending make a file's name, of which there may be 255."""
_TOPIC_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{LONGEST_TOPIC_NAME}}}")


def is_topic_name(text: object) -> bool:
    """Whether `text` is what Kafka takes for a topic's name."""
    return isinstance(text, str) and bool(_TOPIC_NAME.fullmatch(text)) and text not in (".", "..")


class TopicPartition(msgspec.Struct, frozen=True, order=True, gc=False):
    """One ordered log: partition number `partition` of `topic`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
