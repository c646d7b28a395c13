"""The writer of a source: rows and the source's position in one Kafka transaction.

Neither is ever without the other. On restart the source goes on from the position that the log holds.
"""

import contextlib
import time
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from mainstem.client.basis import furthest
from mainstem.client.compacted import decode_state, read_compacted
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, Fenced, RecordRefused, TransactionFailed
from mainstem.client.internal import SOURCES, source_transactional_id
from mainstem.client.partitioner import partition_for
from mainstem.client.progress import NextOffsets, Written, add_written
from mainstem.client.topics import alter_command, describe, describe_config
from mainstem.core.clock import since_boot
from mainstem.records.fingerprint import MODULUS, fingerprint

LARGEST_RECORD_BYTES = 99_000_000
"""Below it the topic's `max.message.bytes` decides. Above it a request is more than brokers take unless told otherwise
(`socket.request.max.bytes`), and the answer to a fetch more than librdkafka's readers do (`receive.message.max.bytes`).
"""
ABORT_SECONDS = 5.0
"""Of a writer that leaves: within what a process has to stop."""
_BATCH_BYTES = 262_144  # of several records; one that is larger is a batch of its own
_FENCING = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


class SourceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a source in `__mainstem.sources`: where it is, and all that it has written so far.

    `ends`: the next offset after its last record of each partition. What it had read up to `position` lies below.
    """

    position: dict[str, Any]
    written: dict[str, dict[int, Written]] = {}
    ends: NextOffsets = {}


def read_source(connection: Connection, source: str, *, linearizable: bool = False) -> SourceState | None:
    """The last committed state of a source; None before its first commit. `linearizable`: see `read_compacted`."""
    value = read_compacted(connection, SOURCES, linearizable=linearizable).get(source.encode())
    return None if value is None else decode_state(SOURCES, source.encode(), value, SourceState)


class TransactionalWriter:
    """Writes for one source; blocking. One thread uses it.

        writer = TransactionalWriter(connection, "shop")
        state = writer.open()                     # fences any older writer, then reads where the source was
        writer.begin()
        writer.send("shop.orders", None, key, value)
        basis = writer.commit({"lsn": 42})        # rows and position become visible together

    After `TransactionFailed` the writer has aborted: read the source again from `writer.state.position`, with a new
    writer if `begin` raises it again (the broker had aborted the transaction for its age). After `Fenced` a newer
    writer of the source is at work: stop.
    """

    def __init__(self, connection: Connection, source: str, *, transaction_timeout_ms: int = 60_000) -> None:
        self.source = source
        self.state: SourceState | None = None
        self._connection = connection
        self._partitions: dict[str, int] = {}
        self._turn = 0  # of records without key
        self._pending: dict[tuple[str, int], list[int]] = {}  # count and sum of fingerprints
        self._ends: NextOffsets = {}
        self._open = False  # a transaction is
        self._failure: str = ""
        self._too_large: tuple[int, str] | None = None  # size and topic of the largest record that was refused for it
        self._timeout_seconds = transaction_timeout_ms / 1000
        self._sent_at = 0.0  # when the transaction's first record was sent: the broker counts from a moment later
        settings = connection.confluent(linger_ms=5, log_level=2, compression_type="none", batch_size=_BATCH_BYTES)
        settings |= {
            "transactional.id": source_transactional_id(source),
            "transaction.timeout.ms": transaction_timeout_ms,
        }
        settings |= {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 131_072}
        settings |= {"message.max.bytes": LARGEST_RECORD_BYTES}
        self._producer = Producer(settings)

    def open(self) -> SourceState | None:
        """1. fence older writers and end what they left open, 2. read the state of the source.

        In this order: after the fence nothing older can still commit.
        """
        self._guard(self._producer.init_transactions, self._timeout_seconds)
        self.state = read_source(self._connection, self.source, linearizable=True)
        return self.state

    def forget(self, topics: Collection[str]) -> None:
        """Topics that are gone: what was written to others of their names counts no longer. The next commit says so."""
        if self.state is not None:
            written = {topic: each for topic, each in self.state.written.items() if topic not in topics}
            ends = {topic: each for topic, each in self.state.ends.items() if topic not in topics}
            self.state = msgspec.structs.replace(self.state, written=written, ends=ends)

    def begin(self) -> None:
        """Open a transaction: what `send` takes belongs to it until `commit` or `abort`.

        Raises:
            Fenced, TransactionFailed, BrokerUnavailable: as `commit` does.
        """
        self._pending, self._ends, self._failure, self._too_large = {}, {}, "", None
        self._guard(self._producer.begin_transaction)
        self._sent_at, self._open = 0.0, True

    def send(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Queue one record. Without a partition its key chooses as in Kafka, and a record without key takes turns.

        Raises:
            Fenced, TransactionFailed, RecordRefused, BrokerUnavailable:
                as `commit` does, for this or an earlier record.
        """
        if partition is None:
            partition = self._choose(topic, key)
        self._produce(topic, partition, key, value, list(headers))
        sums = self._pending.setdefault((topic, partition), [0, 0])
        sums[0] += 1
        sums[1] += fingerprint(key, value)

    def commit(self, position: dict[str, Any]) -> NextOffsets:
        """Write the position, then commit; on return all of it is durable and visible.

        Returns:
            The basis of this write: topic -> partition -> next offset.

        Raises:
            Fenced: a newer writer of this source took over; nothing of this transaction is visible.
            TransactionFailed: aborted, nothing of it is visible.
            RecordRefused: one of the records is too large for its topic; aborted, and it would be so at every try.
            BrokerUnavailable: whether it is committed is unknown: `open()` tells.
        """
        # Last: an open transaction holds back all readers of this topic, so it joins for milliseconds only.
        self._flush()
        ends = furthest(self.state.ends if self.state else {}, self._ends)
        state = SourceState(position, self._written(), ends)
        self._produce(SOURCES, 0, self.source.encode(), msgspec.json.encode(state), [])
        self._flush()
        if self._failure:
            self._give_up(f"a record was refused: {self._failure}")
        self._guard(self._producer.commit_transaction, self._timeout_seconds)
        self.state, self._open = state, False
        return self._ends

    def abort(self) -> None:
        """Give up what was sent since `begin`; nothing of it is ever visible."""
        self._guard(self._producer.abort_transaction, self._timeout_seconds)
        self._pending, self._open = {}, False

    def close(self) -> None:
        """Leave; what is uncommitted is aborted, since it holds back all readers of its topics.

        Where the broker does not answer, the next `open` does that, or the broker when its timeout has passed.
        """
        with contextlib.suppress(KafkaException, SystemError):  # of a fenced one: told when it last wrote
            if self._open:
                self._producer.abort_transaction(ABORT_SECONDS)
        with contextlib.suppress(KafkaException, SystemError):
            self._producer.purge()
            self._producer.flush(1.0)

    def _written(self) -> dict[str, dict[int, Written]]:
        batch: dict[str, dict[int, Written]] = {}
        for (topic, partition), (count, total) in self._pending.items():
            batch.setdefault(topic, {})[partition] = Written(count, total % MODULUS)
        return add_written(self.state.written if self.state else {}, batch)

    def _flush(self) -> None:
        try:
            left = self._producer.flush(self._timeout_seconds)
        except (KafkaException, SystemError) as error:
            self._raise(error)
        if left and not self._failure:
            self._failure = f"{left} records not acknowledged in {self._timeout_seconds:.0f} s"

    def _choose(self, topic: str, key: bytes | None) -> int:
        partitions = self._partitions.get(topic)
        if partitions is None:
            partitions = self._partitions[topic] = describe(self._connection, topic).partitions
        if key is not None:
            return partition_for(key, partitions)
        self._turn += 1
        return self._turn % partitions

    def _produce(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: list[Any]) -> None:
        self._sent_at = self._sent_at or since_boot()
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers, on_delivery=self._delivered)
                break
            except BufferError:  # the local queue is full: the broker sets the pace
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(f"{topic}: the queue did not drain in {self._timeout_seconds} s") from None
                self._producer.poll(0.1)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.MSG_SIZE_TOO_LARGE:
                    self._too_large = (_size(key, value), topic)
                if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._STATE):  # an earlier record has failed
                    self._give_up(error.args[0].str(), error)
                self._raise(error)
        try:
            self._producer.poll(0)
        except (KafkaException, SystemError) as error:
            self._raise(error)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failure = self._failure or error.str()
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                refused = (_size(message.key(), message.value()), message.topic())
                self._too_large = max(self._too_large or refused, refused)
        if error is not None or message.topic() == SOURCES:
            return
        ends = self._ends.setdefault(message.topic(), {})
        ends[message.partition()] = max(ends.get(message.partition(), 0), message.offset() + 1)

    def _guard(self, call: Any, *arguments: Any) -> None:
        """Call librdkafka; its errors carry what to do: try again, abort, or stop."""
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            try:
                call(*arguments)
            except KafkaException as error:
                if not (error.args[0].retriable() and time.monotonic() < deadline):
                    self._raise(error)
            else:
                return

    def _raise(self, error: Exception) -> NoReturn:
        # confluent-kafka sets a fatal error while our delivery callback runs: Python wraps it into a SystemError.
        origin: BaseException | None = error
        while origin is not None and not isinstance(origin, KafkaException):
            origin = origin.__cause__
        if origin is None:  # or loses it (seen once): an abort is refused with the error, if it was a fatal one
            self._give_up(str(error), error)
        cause = origin.args[0]
        where = f"source {self.source}: {cause.str()}"
        if cause.code() in _FENCING:
            self._raise_if_timed_out(error)
            raise Fenced(where, hint="another writer of this source is running; keep one of them") from error
        if cause.txn_requires_abort():
            self._give_up(cause.str(), error)
        raise BrokerUnavailable(where) from error

    def _raise_if_timed_out(self, error: Exception) -> None:
        """A broker that aborted a transaction for its age has changed the epoch: it looks like a newer writer."""
        elapsed = since_boot() - self._sent_at if self._sent_at else 0.0
        if elapsed >= self._timeout_seconds:
            raise TransactionFailed(
                f"source {self.source}: its transaction took {elapsed:.0f} s, more than its timeout of"
                f" {self._timeout_seconds:.0f} s: aborted",
                hint="the machine slept, or there was too much for one transaction; a new writer tries again",
            ) from error

    def _give_up(self, reason: str, error: Exception | None = None) -> NoReturn:
        self.abort()  # raises Fenced if that is why; the answers to all records are here after it
        if self._too_large is None:
            raise TransactionFailed(f"source {self.source}: {reason}; transaction aborted") from error
        size, topic = self._too_large
        limit = int(describe_config(self._connection, topic)["max.message.bytes"])
        limited = f"{limit} bytes (max.message.bytes)"
        hint = f"`{alter_command(self._connection, topic, 'max.message.bytes', str(size + _BATCH_BYTES))}` raises it"
        if size > LARGEST_RECORD_BYTES:
            limited, hint = f"{LARGEST_RECORD_BYTES} bytes", "no setting allows more: make it smaller"
        batch = f" in a batch of up to {_BATCH_BYTES}" if size < _BATCH_BYTES else ""
        raise RecordRefused(
            f"source {self.source}: topic {topic}: expected batches of at most {limited}, found a record of {size}{batch}",
            hint=hint,
        ) from error


def _size(key: bytes | None, value: bytes | None) -> int:
    return len(key or b"") + len(value or b"")
