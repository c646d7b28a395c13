"""A topic with records of transactions that were aborted or are still open: no reader of ours may show them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from mainstem.client.connection import Connection
from mainstem.client.topics import end_offsets
from tests.support.waiting import wait_until

WORDS = ("before", "aborted", "between", "open", "after")

VISIBLE = ("before", "between")
"""What readers show while the transaction is open; they all had the chance to see more."""

DECIDED = ("before", "between", "open", "after")
"""What they show once it is committed. `aborted` never."""

Made = Iterable[tuple[str, bytes | None, bytes | None]]


@contextmanager
def undecided(connection: Connection, name: str, make: Callable[[str], Made]) -> Iterator[Callable[[], None]]:
    """Write what `make` gives for each word, as (topic, key, value), all of it to partition 0; commit by calling.

        before    committed
        aborted   aborted
        between   committed
        open      open: everything behind it waits, whether committed or not
        after     committed

    All is there before a reader starts, so one that reads what is uncommitted shows it with `between` at the latest.
    """
    stranger, other = (
        Producer(connection.confluent(transactional_id=f"{name}-{number}") | {"log_level": 0}) for number in range(2)
    )

    topics: set[str] = set()

    def write(producer: Producer, word: str) -> None:
        producer.begin_transaction()
        for topic, key, value in make(word):
            topics.add(topic)
            producer.produce(topic, key=key, value=value, partition=0)
        assert producer.flush(60) == 0  # an abort drops what is still queued in the client

    for producer in (stranger, other):
        producer.init_transactions(60)
    for word in WORDS:
        producer = stranger if word == "open" else other
        write(producer, word)
        if word == "aborted":
            producer.abort_transaction(60)
        elif word != "open":
            producer.commit_transaction(60)
    is_open = True

    def commit() -> None:
        nonlocal is_open
        stranger.commit_transaction(60)
        is_open = False
        for topic in topics:  # the commit is answered before its markers are written
            wait_until(
                lambda: end_offsets(connection, topic, committed=True)[0] == end_offsets(connection, topic)[0],  # noqa: B023
                f"{topic} is decided",
            )

    try:
        yield commit
    finally:
        if is_open:
            stranger.abort_transaction(60)
