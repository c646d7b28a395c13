"""Answers that come later, and small steps that handlers of the coordinators' APIs share."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from mainstem.core import TopicPartition
from mainstem.wire.errors import Code

if TYPE_CHECKING:
    from mainstem.broker.topics import Topics

T = TypeVar("T")
U = TypeVar("U")


class Later:
    """An answer that comes later, told at once to who waits for it: a future would take a turn of the loop for each.

    Whoever makes it gives an answer, once, of whatever it is an answer to.
    """

    __slots__ = ("_answer", "_given", "_told")

    def __init__(self) -> None:
        self._answer: Any = None
        self._given = False
        self._told: Callable[[Any], None] | None = None

    def give(self, answer: Any) -> None:
        """It is there; on the event loop."""
        self._answer, self._given = answer, True
        if self._told is not None:
            self._told(answer)

    def tell(self, told: Callable[[Any], None]) -> None:
        """Call `told` with it, now if it is there."""
        self._told = told
        if self._given:
            told(self._answer)


def milliseconds(duration: timedelta) -> int:
    """The number on the wire behind one of kio's durations."""
    return duration // timedelta(milliseconds=1)


def then(future: "asyncio.Future[T]", make: Callable[[T], U]) -> "asyncio.Future[U]":
    """A future of `make(result)`; an error, also one of `make`, or a cancellation passes through."""
    made: asyncio.Future[U] = future.get_loop().create_future()

    def done(finished: "asyncio.Future[T]") -> None:
        if made.done():
            return
        if finished.cancelled():
            made.cancel()
        elif (error := finished.exception()) is not None:
            made.set_exception(error)
        else:
            try:
                made.set_result(make(finished.result()))
            except Exception as failure:  # without it, the request would have no answer
                made.set_exception(failure)

    future.add_done_callback(done)
    return made


def resolve(future: "asyncio.Future[T]", value: T) -> None:
    """Give the answer to whoever waits; he may be gone."""
    if not future.done():
        future.set_result(value)


def partition_exists(topics: "Topics", partition: TopicPartition) -> bool:
    """True if the broker has that partition."""
    topic = topics.get(partition.topic)
    return topic is not None and 0 <= partition.partition < len(topic.logs)


def by_topic(
    codes: Iterable[tuple[TopicPartition, Code]], *, name: str, partitions: str, index: str, code: str
) -> list[dict[str, Any]]:
    """One answer per partition, grouped by topic, under the names that the API has for them."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition, each in codes:
        topics.setdefault(partition.topic, []).append({index: partition.partition, code: each})
    return [{name: topic, partitions: entries} for topic, entries in topics.items()]
