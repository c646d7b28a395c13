"""Read committed records from given offsets to the ends of now, or for ever: what every reader of ours does alike.

Where the first record is no longer there, because retention or an admin deleted it, a consumer goes on from somewhere
else by a setting of its own (`auto.offset.reset`; librdkafka's default is the end of the topic: everything is skipped,
and nobody is told). Here each use says what is right for it.
"""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, RecordsDeleted
from mainstem.client.topics import end_offsets


class CommittedReader:
    """Confluent's messages of a topic in lists; partitions are mixed, each is in order.

    Args:
        connection: the log.
        topic: it must exist.
        starts: partition to its first offset; partitions that are not named are left out.
        deleted: what to do where a record that comes next was deleted: go on from the `earliest` that is there, or
            raise an `error`.
        follow: go on for ever; otherwise stop at the ends of now, open transactions included once they are decided.
        decided: stop where the first transaction is open, instead of waiting for it.

    Raises:
        UnknownTopic: there is no such topic.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        starts: Mapping[int, int],
        *,
        deleted: Literal["earliest", "error"],
        follow: bool = False,
        decided: bool = False,
    ) -> None:
        ends = end_offsets(connection, topic, committed=decided)
        self._topic = topic
        self._follow = follow
        self.missing = {partition: ends[partition] for partition, start in starts.items() if start < ends[partition]}
        """Partition to its end, of those that are not read so far."""
        settings = connection.confluent(
            isolation_level="read_committed", enable_auto_commit=False, enable_partition_eof=True
        )
        settings |= {
            "auto.offset.reset": deleted,
            "fetch.wait.max.ms": 50 if follow else 20,
            "group.id": "mainstem.reader",
            "log_level": 2,
        }
        read = starts if follow else self.missing
        # An offset beyond the end is not there yet: its records are those that come.
        places = [ConfluentPartition(topic, each, min(starts[each], ends[each])) for each in read]
        self._consumer = Consumer(settings)
        self._consumer.assign(places)

    def __enter__(self) -> "CommittedReader":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def __iter__(self) -> Iterator[list[Any]]:
        """Lists of messages, and empty ones while nothing comes, so that the caller can look at the clock.

        Raises:
            RecordsDeleted: what comes next was deleted before it was read, and `deleted` is `error`.
            BrokerUnavailable: the broker refuses.
        """
        while self._follow or self.missing:
            records = []
            for message in arrived(self._consumer, 0.2):
                error = message.error()
                if error is None:
                    records.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._reached(message)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise RecordsDeleted(
                        f"topic {self._topic}, partition {message.partition()}: records were deleted before they were"
                        f" read: {error.str()}",
                        hint="read from the earliest that is there, or keep records longer (retention.ms)",
                    )
                else:
                    raise BrokerUnavailable(f"{self._topic}: {error.str()}")
            yield records

    def _reached(self, end: Any) -> None:
        if end.offset() >= self.missing.get(end.partition(), end.offset() + 1):
            del self.missing[end.partition()]


def arrived(consumer: Consumer, seconds: float, most: int = 1000) -> list[Any]:
    """What has come, errors included, after waiting `seconds` for the first. `consume` alone waits until there are so
    many, or for the whole time.
    """
    first = consumer.consume(1, seconds)
    return [*first, *consumer.consume(most, 0)] if first else []
