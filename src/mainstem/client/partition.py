"""One partition for whoever lives by it: its committed records as they come, and appends that nobody waits for."""

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.reader import arrived, committed_consumer, is_record
from mainstem.core import MainstemError, Retriable, TopicPartition
from mainstem.core.logging import get_logger

log = get_logger()

_RECONNECT_MS = 500  # librdkafka doubles its pauses up to ten seconds: too long for whoever waits for an answer
_PAUSE_SECONDS = 0.2


class PartitionFollower:
    """Reads on for ever, in a thread of its own; every record is handed over once, whatever errors come between them.

    A record that the log does not give cannot be missed here: markers, aborted transactions and compaction leave gaps,
    too, of which no consumer is told.

    Args:
        connection: the log.
        place: the partition; it must exist.
        start: the first offset.
        take: is given offsets and values in their order, and the next offset to read, which may lie behind the markers
            of transactions. The follower waits while it runs.
        failed: is told why nothing more will come.
        name: what the broker calls it.
    """

    def __init__(
        self,
        connection: Connection,
        place: TopicPartition,
        start: int,
        take: Callable[[list[tuple[int, bytes | None]], int], None],
        failed: Callable[[MainstemError], None],
        *,
        name: str,
    ) -> None:
        self._place, self._take, self._failed = place, take, failed
        self._consumer = committed_consumer(connection, name, deleted="error", reconnect_ms=_RECONNECT_MS)
        self._next, self._is_there = start, False  # whether the consumer reads on from `_next`
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; nothing is handed over any more on return."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._is_there:
                    self._consumer.assign([ConfluentPartition(self._place.topic, self._place.partition, self._next)])
                    self._is_there = True
                self._hand_over(arrived(self._consumer, _PAUSE_SECONDS))
            except (Retriable, KafkaException) as error:
                # The consumer reads on behind an error, and may have: what follows it is thrown away, and read again.
                self._is_there = False
                log.warning("partition_not_read", topic=self._place.topic, next_offset=self._next, error=str(error))
                self._stopping.wait(_PAUSE_SECONDS)
            except MainstemError as error:
                self._failed(error)
                return

    def _hand_over(self, messages: list[Any]) -> None:
        records: list[tuple[int, bytes | None]] = []
        next_offset = self._next
        try:
            for message in messages:
                found, offset = is_record(message, self._place.topic), message.offset()
                if offset < next_offset:
                    raise BrokerUnavailable(f"{self._place}: expected offset {next_offset} or later, found {offset}")
                if found:
                    records.append((offset, message.value()))
                next_offset = offset + found
        finally:  # an error comes after what was read before it
            if next_offset > self._next and not self._stopping.is_set():
                self._take(records, next_offset)
                self._next = next_offset


class PartitionAppender:
    """Appends records in their order, each once, several times or not at all: who wants to know reads them back.

    Where the log does not answer for `seconds`, a record is given up; later ones may still arrive.
    """

    def __init__(self, connection: Connection, place: TopicPartition, *, seconds: float = 10.0) -> None:
        self._place = place
        # Not idempotent: librdkafka takes half a second until a new producer has its id.
        settings = connection.confluent(acks="all", max_in_flight=1, linger_ms=0, log_level=2)
        settings |= {"message.timeout.ms": int(seconds * 1000), "reconnect.backoff.ms": 50, "retry.backoff.ms": 50}
        self._producer = Producer(settings | {"reconnect.backoff.max.ms": _RECONNECT_MS})

    def append(self, value: bytes) -> None:
        """Send one record, without a key.

        Raises:
            BrokerUnavailable: too many wait already; this one is not sent.
        """
        self._producer.poll(0)
        try:
            self._producer.produce(
                self._place.topic, value=value, partition=self._place.partition, on_delivery=self._delivered
            )
        except BufferError as error:
            raise BrokerUnavailable(f"{self._place}: too many records wait to be appended") from error

    def close(self, seconds: float = 1.0) -> None:
        """Send what waits, for so long at most; the rest is given up."""
        self._producer.flush(seconds)
        self._producer.purge()
        self._producer.flush(seconds)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            log.warning("record_not_appended", topic=self._place.topic, error=error.str())
