"""What all our readers do alike: committed records from given offsets to others, to the ends of now, or for ever.

Where the first record is no longer there, because retention or an admin deleted it, a consumer goes on from somewhere
else by a setting of its own (`auto.offset.reset`; librdkafka's default is the end of the topic: everything is skipped,
and nobody is told). Here each use says what is right for it.
"""

from collections.abc import Iterator, Mapping
from operator import methodcaller
from types import MappingProxyType, TracebackType
from typing import Any, Literal, TypeAlias

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, RecordsDeleted
from mainstem.client.topics import end_offsets
from mainstem.core.clock import Clock, SystemClock

Deleted: TypeAlias = Literal["earliest", "error"]
"""Where a record that comes next was deleted: go on from the `earliest` that is there, or raise an `error`."""

PATIENCE_SECONDS = 60.0
# `message.headers()` raises SystemError for a name that is not UTF-8, but not once Python has made the line that calls
# it faster: then nobody looks whether there was an error.
_headers = methodcaller("headers")


def committed_consumer(
    connection: Connection, name: str, *, deleted: Deleted, wait_ms: int = 500, reconnect_ms: int = 10_000
) -> Consumer:
    """A consumer of committed records that keeps no offsets in the log, and is told where a partition ends for now.

    Args:
        connection: the log.
        name: what the broker calls it.
        deleted: what to do where a record that comes next was deleted.
        wait_ms: how long the broker may keep a fetch waiting for records.
        reconnect_ms: the longest pause between two tries to connect.
    """
    settings = connection.confluent(
        isolation_level="read_committed", enable_auto_commit=False, enable_partition_eof=True, log_level=2
    )
    settings |= {"group.id": name, "auto.offset.reset": deleted, "fetch.wait.max.ms": wait_ms}
    settings |= {"reconnect.backoff.max.ms": reconnect_ms}
    return Consumer(settings)


def is_record(message: Any, topic: str) -> bool:
    """Whether the message is a record; otherwise it is the end of its partition, at its offset.

    Raises:
        RecordsDeleted: what comes next was deleted before it was read, and the consumer does not go on without.
        BrokerUnavailable: the broker refuses.
    """
    error = message.error()
    if error is None:
        return True
    if error.code() == KafkaError._PARTITION_EOF:
        return False
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise RecordsDeleted(
            f"topic {topic}, partition {message.partition()}: records were deleted before they were read: {error.str()}",
            hint="read from the earliest that is there, or keep records longer (retention.ms)",
        )
    raise BrokerUnavailable(f"{topic}: {error.str()}")


def headers_of(message: Any) -> dict[str, bytes | None]:
    """The headers of a record by name, the last of each; none where a name is not UTF-8: any client may write that.

    Ask once for each message: confluent-kafka leaves a hole in place of such a name, and Python dies of looking at it.
    """
    try:
        return dict(_headers(message) or ())
    except SystemError:
        return {}


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
        at_least: partition to an end that is known to be there, whatever the log says.
        patience_seconds: of silence, then the log is asked whether it is still there.

    Raises:
        UnknownTopic: there is no such topic.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        starts: Mapping[int, int],
        *,
        deleted: Deleted,
        follow: bool = False,
        decided: bool = False,
        at_least: Mapping[int, int] = MappingProxyType({}),
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        ends = highest = {p: max(end, at_least.get(p, 0)) for p, end in end_offsets(connection, topic).items()}
        if decided:  # asked after the others: what comes in between is not taken for undecided
            ends = end_offsets(connection, topic, committed=True)
        self._connection, self._topic = connection, topic
        self._follow, self._decided = follow, decided
        self._patience_seconds, self._clock = patience_seconds, SystemClock()
        self.missing = {partition: ends[partition] for partition, start in starts.items() if start < ends[partition]}
        """Partition to its end, of those that are not read so far."""
        self.undecided = {p: ends[p] for p, start in starts.items() if max(start, ends[p]) < highest[p]}
        """Partition to the first offset of an open transaction that a `decided` reader stops at."""
        read = starts if follow else self.missing
        # An offset beyond the end is not there yet: its records are those that come.
        places = [ConfluentPartition(topic, each, min(starts[each], ends[each])) for each in read]
        self._consumer = committed_consumer(
            connection, "mainstem.reader", deleted=deleted, wait_ms=50 if follow else 20
        )
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
            BrokerUnavailable: the broker refuses, or nothing came for too long and it does not answer.
            UnknownTopic: nothing came for too long, and there is no such topic any more.
        """
        heard = self._clock.monotonic()
        while self._follow or self.missing:
            messages = arrived(self._consumer, 0.2)
            records = []
            for message in messages:
                if is_record(message, self._topic):
                    records.append(message)
                else:
                    self._reached(message)
            yield records
            if not messages:
                if self._clock.monotonic() <= heard + self._patience_seconds:
                    continue
                self._ask_after_silence()
            heard = self._clock.monotonic()

    def _ask_after_silence(self) -> None:
        """The consumer connects again for ever and says nothing of it: of a log that is gone nobody was told."""
        end_offsets(self._connection, self._topic)
        if self._decided and not self._follow:
            raise BrokerUnavailable(
                f"{self._topic}: nothing came for {self._patience_seconds:.0f} s before the ends {self.missing} "
                "(partition: offset)"
            )

    def _reached(self, end: Any) -> None:
        if end.offset() >= self.missing.get(end.partition(), end.offset() + 1):
            del self.missing[end.partition()]


class RangeReader:
    """Reads ranges of one topic; keeps its connection between reads.

    Args:
        connection: the log.
        topic: it must exist.
        deleted: what to do where a record between the start of a range and its end was deleted.
        name: what the broker calls it.
        patience_seconds: for the next records of a range.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        deleted: Deleted,
        name: str = "mainstem.ranges",
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._connection, self._topic, self._deleted, self._name = connection, topic, deleted, name
        self._patience_seconds = patience_seconds
        self._clock = clock or SystemClock()
        self._consumer: Consumer | None = None

    def ends(self) -> dict[int, int]:
        """The last stable offset of every partition: nothing below it is undecided, nothing above it committed.

        Raises:
            UnknownTopic: there is no such topic any more.
            BrokerUnavailable: no answer.
        """
        return end_offsets(self._connection, self._topic, committed=True)

    def read(self, start: Mapping[int, int], end: Mapping[int, int]) -> Iterator[Any]:
        """Confluent's messages from `start` (included) to `end` (not), per partition in order.

        A partition that `start` does not name is read from what is its first record now.

        Raises:
            RecordsDeleted: not all that follows `start` is there, and `deleted` is `error`.
            BrokerUnavailable: the broker refuses, or nothing came for too long.
        """
        consumer = self._connected()
        left = {partition for partition, offset in end.items() if offset > start.get(partition, 0)}
        consumer.assign([ConfluentPartition(self._topic, each, start.get(each, OFFSET_BEGINNING)) for each in left])
        deadline = self._clock.monotonic() + self._patience_seconds
        while left:
            if self._clock.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"{self._topic}: partitions {sorted(left)}: nothing came for {self._patience_seconds:.0f} s before "
                    f"the ends {dict(end)}"
                )
            messages = arrived(consumer, 0.2, 10_000)
            for message in messages:
                found, partition, offset = is_record(message, self._topic), message.partition(), message.offset()
                if found and offset < end[partition]:
                    yield message
                # Past the end: its last offsets may be markers or compacted records, which nobody is given.
                if offset >= end[partition] - found:
                    left.discard(partition)
            if messages:
                deadline = self._clock.monotonic() + self._patience_seconds
        consumer.unassign()

    def _connected(self) -> Consumer:
        self._consumer = self._consumer or committed_consumer(
            self._connection, self._name, deleted=self._deleted, wait_ms=20
        )
        return self._consumer

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def arrived(consumer: Consumer, seconds: float, most: int = 1000) -> list[Any]:
    """What has come, errors included, after waiting `seconds` for the first.

    `consume` alone waits until there are so many, or for the whole time.
    """
    first = consumer.consume(1, seconds)
    return [*first, *consumer.consume(most, 0)] if first else []
