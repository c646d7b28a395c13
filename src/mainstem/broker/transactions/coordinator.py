"""The transaction coordinator: keeps transactional ids in `__transaction_state` and ends transactions everywhere alike.

The rules are in `transaction`, which does no I/O. This service changes its memory and queues the record in one turn of
the loop, so the log's order is the order of decisions; what others can see waits until the record is durable:

- an answer to a client;
- the markers: PREPARE_* is durable before the first of them, COMPLETE_* is written when all are durable.

EndTxn is answered when all markers are durable (Kafka: when PREPARE_* is). A consumer that hears of the commit finds
its records, and the producer's next transaction meets no CONCURRENT_TRANSACTIONS. Requests that arrive while a
transaction is being ended wait for it instead of being sent away.

An implicit add (transactions version 2) is queued together with the batch that caused it, one sync for both; the
COMPLETE_* record of the transaction before may share it, too. If a crash keeps the batch but not the add, or neither
record, the next start finds the open batch, tells by its epoch which transaction it is of, and adopts it
(`_reconcile`). After an end by version 1's rules the epoch does not tell, so an implicit add waits until COMPLETE_* is
durable.
"""

import asyncio
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from mainstem.broker.errors import UnknownTopicOrPartition
from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.broker.placement import Stored, Unread, place_of, put_in_place
from mainstem.broker.replay import replay, report_unreadable
from mainstem.broker.transactions import producer_ids, transaction
from mainstem.broker.transactions.errors import ProducerFenced, StaleProducerEpoch, TransactionError
from mainstem.broker.transactions.producer_ids import ProducerIds
from mainstem.broker.transactions.records import (
    KEY_VERSIONS,
    decode_key,
    decode_transaction,
    encode_key,
    encode_transaction,
)
from mainstem.broker.transactions.transaction import (
    IDLE,
    NO_PRODUCER_ID,
    ONGOING,
    PREPARE_COMMIT,
    PREPARED,
    Producer,
    Transaction,
)
from mainstem.core import CorruptData, MainstemError, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import AppendResult, PartitionLog
from mainstem.log.errors import StorageError
from mainstem.records import Marker, Record, build_batch
from mainstem.wire.errors import Code

if TYPE_CHECKING:
    from mainstem.broker.server import Broker

STATE_TOPIC: Final = "__transaction_state"
_STATE_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "4194304",  # all but the last are compacted, so this is what a start reads at most in vain
    "max.message.bytes": "16777216",  # a transaction's record names every partition of it
}

_ID_GAP: Final = 2**32  # more ids than any node hands out before one of them is used

log = get_logger()


class CoordinatorUnavailable(TransactionError):
    """The coordinator could not store what it was about to answer: its log is offline."""

    def __init__(self, transactional_id: str, reason: BaseException | str) -> None:
        super().__init__(Code.coordinator_not_available, transactional_id, f"not stored: {reason}")


class _Entry:
    """A transactional id, and what is under way for it."""

    __slots__ = ("ending", "following", "stored", "transaction", "unmarked")

    def __init__(self, current: Transaction) -> None:
        self.transaction = current
        self.ending: asyncio.Future[None] | None = None
        """Done when the transaction is complete, or its end has failed."""
        self.unmarked: frozenset[TopicPartition] = frozenset()
        """Of a PREPARE_* state: partitions whose marker is not durable yet."""
        self.following: frozenset[TopicPartition] = frozenset()
        """Of a PREPARE_* state found at the start: partitions that hold batches of the transaction after it already."""
        self.stored: asyncio.Future[None] | None = None
        """Done when the record queued last is durable, or could not be stored."""


class _Orphan(NamedTuple):
    """What is open in a partition and of no transactional id, and with which epochs it is aborted."""

    partition_log: PartitionLog
    producer: Producer
    producer_epoch: int
    coordinator_epoch: int


class TransactionCoordinator:
    """All transactional ids of the broker."""

    def __init__(self, broker: "Broker", logs: Sequence[PartitionLog]) -> None:
        self._broker = broker
        self._config = broker.config
        self._clock = broker.clock
        self._loop = asyncio.get_running_loop()
        self._logs = list(logs)
        self._entries: dict[str, _Entry] = {}
        # Ids that are not idle, for their timeouts and unfinished ends: when the transaction began, by the clock that
        # never jumps. By the wall clock, one that is set forward would abort all that is open, and a client whose own
        # clock says that there was time left takes that for a rival.
        self._watched: dict[str, float] = {}
        self._ids = ProducerIds(0, self._reserve_ids)
        self._timer: asyncio.TimerHandle | None = None
        self._expires_at = self._clock.monotonic()  # when ids that nobody uses are looked for again
        self._closed = False
        self._unread = Unread(len(self._logs))
        """Partitions of `__transaction_state` that the start found damaged: what their ids have is not known."""
        self._orphans: list[_Orphan] = []
        """What is still to be aborted."""

    @classmethod
    async def open(cls, broker: "Broker") -> "TransactionCoordinator":
        """Read what is stored, end what was being ended, and start the clock."""
        count = broker.config.transaction_state_log_num_partitions
        coordinator = cls(broker, await broker.ensure_internal_topic(STATE_TOPIC, count, _STATE_CONFIG))
        await coordinator._recover()
        await coordinator._reconcile()
        for entry in list(coordinator._entries.values()):
            if entry.transaction.state in PREPARED:
                coordinator._finish(entry, None)
        coordinator._tick_later()
        return coordinator

    async def close(self) -> None:
        """Stop the clock. What is being ended goes on at the next start."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def partition_for(self, transactional_id: str) -> TopicPartition:
        """The partition of `__transaction_state` that keeps the transactional id."""
        return TopicPartition(STATE_TOPIC, self._number(transactional_id))

    def _number(self, transactional_id: str) -> int:
        return place_of(transactional_id, len(self._logs))

    @property
    def knows_all(self) -> bool:
        """False where transactional ids may be missing: what is stored of some could not be read."""
        return not self._unread

    def check_read(self, transactional_id: str) -> None:
        """Raise where what is stored of the transactional id could not be read.

        Raises:
            CoordinatorUnavailable: its partition of `__transaction_state` is damaged. It waits for the repair, and the
                start after that; ids of other partitions do not.
        """
        if (error := self._unread.reason(transactional_id)) is not None:
            raise CoordinatorUnavailable(transactional_id, error)

    # --- what producers ask -------------------------------------------------------------------------------------------

    async def new_producer_id(self) -> int:
        """An id for an idempotent producer without transactions."""
        await self._ids.ready()
        return self._ids.take()

    async def initialize(self, transactional_id: str, timeout_ms: int, expected: Producer | None = None) -> Producer:
        """Take the transactional id over: whoever had it is fenced, an open transaction of its is aborted first.

        Raises:
            TransactionError: see `transaction.initialize`; nothing has changed.
        """
        if not transactional_id:
            raise TransactionError(Code.invalid_request, transactional_id, "a transactional id is not empty")
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise TransactionError(
                Code.invalid_transaction_timeout,
                transactional_id,
                f"timeout {timeout_ms} ms, expected 1 to {self._config.transaction_max_timeout_ms}"
                " (transaction.max.timeout.ms)",
            )
        await self._settle(transactional_id)
        await self._ids.ready()
        entry = self._entries.get(transactional_id)
        if entry is not None and entry.transaction.state is ONGOING:
            transaction.check_takeover(entry.transaction, expected)
            fenced = transaction.fence(entry.transaction, self._clock.now_ms(), self._ids.take)
            log.info("transaction_fenced", transactional_id=transactional_id, producer_epoch=fenced.producer_epoch)
            await asyncio.shield(self._finish(entry, fenced))
            await self._ids.ready()
        current = self._current(transactional_id)
        after = transaction.initialize(
            current, transactional_id, timeout_ms, expected, self._clock.now_ms(), self._ids.take
        )
        await self._change(after)
        return after.producer

    async def add_partitions(self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition]) -> None:
        """Add partitions to the producer's transaction (version 1); durable on return.

        Raises:
            TransactionError: see `transaction.add`; nothing has changed.
        """
        await self._settle(transactional_id)
        current = self._current(transactional_id)
        after = transaction.add(current, transactional_id, producer, partitions, self._clock.now_ms(), implicit=False)
        if after is not current:
            await self._change(after)
        elif (stored := self._entries[transactional_id].stored) is not None:
            await asyncio.shield(stored)  # a repeated request promises no less than the first

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic_partition: TopicPartition,
        *,
        implicit_add: bool,
    ) -> "asyncio.Future[None] | None":
        """May the producer write to the partition in the same turn of the loop (KIP-890)?

        None says yes: the partition belongs to its transaction, with `implicit_add` from now on. A future says that
        the last transaction is being ended, or that its end is not durable yet: ask again when it is done.

        Raises:
            StaleProducerEpoch: the producer is fenced.
            PartitionNotInTransaction: the partition was not added (version 1): nothing may be written there.
            CoordinatorUnavailable: what an earlier epoch left open there is not aborted yet, and would be committed.
            TransactionError: see `transaction.add`.
        """
        self.check_read(transactional_id)
        for orphan in self._orphans:
            if orphan.partition_log.topic_partition == topic_partition and orphan.producer.producer_id == producer_id:
                raise CoordinatorUnavailable(transactional_id, f"{topic_partition} has a transaction to be aborted")
        producer = Producer(producer_id, producer_epoch)
        entry = self._entries.get(transactional_id)
        current = None if entry is None else entry.transaction
        try:
            if not implicit_add:
                transaction.verify(current, transactional_id, producer, topic_partition)
                return None
            if entry is not None and entry.ending is not None:
                transaction.check_producer(current, transactional_id, producer)
                return asyncio.shield(entry.ending)
            after = transaction.add(
                current, transactional_id, producer, {topic_partition}, self._clock.now_ms(), implicit=True
            )
            waits = entry is not None and transaction.needs_end_stored(entry.transaction)
            if waits and entry is not None and entry.stored is not None and not entry.stored.done():
                return asyncio.shield(entry.stored)
        except ProducerFenced as error:
            raise StaleProducerEpoch(transactional_id, str(error)) from error
        if after is not current:
            self._change(after).add_done_callback(_note_failure)
        return None

    async def end(self, transactional_id: str, producer: Producer, *, commit: bool, version: int) -> Producer:
        """Commit or abort the producer's transaction; on return every reader sees the outcome, also after a crash.

        Returns the identity to go on with: version 2 raises the epoch with every transaction.

        Raises:
            TransactionError: see `transaction.end`; nothing has changed.
        """
        await self._settle(transactional_id)
        current = self._current(transactional_id)
        if current is not None and current.epochs_used_up:
            await self._ids.ready()
            current = self._current(transactional_id)
        after = transaction.end(
            current,
            transactional_id,
            producer,
            self._clock.now_ms(),
            self._ids.take,
            commit=commit,
            version=version,
        )
        if after is current:
            return after.producer
        await asyncio.shield(self._finish(self._entries[transactional_id], after))
        return transaction.complete(after, 0).producer

    # --- what admins ask ----------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction:
        """How far the transaction has come.

        Raises:
            TransactionError: the transactional id is not known, or what is stored of it could not be read.
        """
        self.check_read(transactional_id)
        current = self._current(transactional_id)
        if current is None:
            raise TransactionError(Code.transactional_id_not_found, transactional_id, "not known")
        return current

    def all_transactions(self) -> list[Transaction]:
        """Every transactional id."""
        return [entry.transaction for entry in self._entries.values()]

    async def write_marker(
        self, producer: Producer, partition: TopicPartition, *, commit: bool, coordinator_epoch: int
    ) -> None:
        """End a producer's batches in one partition by hand: for a transaction that hangs (`kafka-transactions abort`).

        Raises:
            UnknownTopicOrPartition, InvalidProducerEpoch, CoordinatorFenced, StorageError: nothing was written.
        """
        await self._broker.partition(partition).append_marker(
            producer.producer_id, producer.producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch
        )
        if partition.topic == OFFSETS_TOPIC:
            self._broker.groups.end_transaction(partition.partition, producer.producer_id, commit=commit)

    # --- the end of a transaction -------------------------------------------------------------------------------------

    async def _settle(self, transactional_id: str) -> None:
        """Wait until the transaction that is being ended, if any, is complete.

        Raises:
            CoordinatorUnavailable: what is stored of it could not be read.
        """
        self.check_read(transactional_id)
        while (entry := self._entries.get(transactional_id)) is not None and entry.ending is not None:
            await asyncio.shield(entry.ending)

    def _finish(self, entry: _Entry, prepared: Transaction | None) -> "asyncio.Future[None]":
        """End the transaction as `prepared` says, or as was stored before; the future is done when it is complete."""
        assert entry.ending is None
        stored = None
        if prepared is not None:
            stored = self._change(prepared)
            entry.unmarked = prepared.partitions
        entry.ending = self._loop.create_future()
        entry.ending.add_done_callback(_retrieve)
        self._watched.setdefault(entry.transaction.transactional_id, self._clock.monotonic())
        self._broker.spawn(self._complete(entry, stored, entry.ending), name="end transaction")
        return entry.ending

    async def _complete(
        self, entry: _Entry, stored: "asyncio.Future[None] | None", ending: "asyncio.Future[None]"
    ) -> None:
        """1. PREPARE_* is durable, 2. the markers are durable, 3. COMPLETE_* is queued.

        Whatever happens, `ending` is settled: every request of the transactional id waits for it. What was not ended
        is tried again by the clock.
        """
        prepared = entry.transaction
        failure: BaseException | None = None
        try:
            if stored is not None:
                await stored
            await self._write_markers(entry)
            completed = transaction.complete(prepared, self._clock.now_ms())
            self._change(completed).add_done_callback(_note_failure)
            if entry.following:
                log.info("transaction_adopted", transactional_id=prepared.transactional_id)
                after = transaction.adopt(completed, entry.following, self._clock.now_ms())
                entry.following = frozenset()
                self._change(after).add_done_callback(_note_failure)
        except MainstemError as error:
            log.warning("transaction_not_ended", transactional_id=prepared.transactional_id, reason=str(error))
            failure = error
        except BaseException as error:  # a bug, or the broker stops
            failure = error
            raise
        finally:
            entry.ending = None
            if failure is None:
                ending.set_result(None)
            else:
                ending.set_exception(CoordinatorUnavailable(prepared.transactional_id, repr(failure)))

    async def _write_markers(self, entry: _Entry) -> None:
        """A marker for every partition that has none yet; those that fail stay for another try."""
        prepared = entry.transaction
        queued: list[tuple[TopicPartition, Marker, asyncio.Future[AppendResult]]] = []
        failure: MainstemError | None = None
        for partition in sorted(entry.unmarked):
            try:
                partition_log = self._broker.partition(partition)
                partition_log.check_appendable()  # what is known of one that is damaged may be old
                marker = self._marker(partition_log, prepared)
                if marker is None:
                    entry.unmarked -= {partition}
                else:
                    queued.append((partition, marker, _append(partition_log, marker)))
            except UnknownTopicOrPartition:
                entry.unmarked -= {partition}  # the topic was deleted, and with it what was written there
            except StorageError as error:
                failure = error
        for partition, marker, written in queued:
            try:
                await written
            except StorageError as error:
                failure = error
                continue
            entry.unmarked -= {partition}
            if partition.topic == OFFSETS_TOPIC:
                self._broker.groups.end_transaction(partition.partition, marker.producer_id, commit=marker.commit)
        if failure is not None:
            raise failure

    def _marker(self, partition_log: PartitionLog, prepared: Transaction) -> Marker | None:
        """What ends the transaction in the partition. Kafka's coordinator stops for ever where a partition refuses it.

        None where a later epoch was there, and has nothing open: what was of this one is ended. If that epoch has
        something open, then what is stored of the transactional id is older (it was repaired, say), and nobody could
        end it: it is aborted.
        """
        commit, epoch = prepared.state is PREPARE_COMMIT, prepared.producer_epoch
        found = partition_log.producer(prepared.producer_id)
        if found is not None and found.producer_epoch > epoch:
            is_open = found.transaction_first_offset >= 0
            facts = {"partition": str(partition_log.topic_partition), "transactional_id": prepared.transactional_id}
            log.warning("marker_too_late", **facts, epoch=epoch, found=found.producer_epoch, aborted=is_open)
            if not is_open:
                return None
            commit, epoch = False, found.producer_epoch
        coordinator_epoch = _accepted(self._coordinator_epoch(prepared), partition_log, prepared.producer_id)
        return Marker(prepared.producer_id, epoch, commit, coordinator_epoch)

    def _coordinator_epoch(self, current: Transaction) -> int:
        return self._logs[self._number(current.transactional_id)].leader_epoch

    # --- the clock ----------------------------------------------------------------------------------------------------

    def _tick_later(self) -> None:
        interval = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000
        if not self._closed:
            self._timer = self._loop.call_later(interval, self._tick)

    def _tick(self) -> None:
        try:
            self.expire()
        finally:
            self._tick_later()

    def expire(self) -> None:
        """Abort transactions that took too long, try again what could not be ended, forget ids nobody uses."""
        now = self._clock.now_ms()
        if self._orphans:
            self._broker.spawn(self._abort_orphans(), name="abort orphan transactions")
        for transactional_id in list(self._watched):
            with _failing_alone("transaction_not_ended", transactional_id):
                self._look_after(transactional_id, now)
        if self._expires_at <= self._clock.monotonic():
            self._expires_at = self._clock.monotonic() + _EXPIRATION_CHECK_SECONDS
            for transactional_id, entry in list(self._entries.items()):
                with _failing_alone("transactional_id_not_expired", transactional_id):
                    self._expire_id(entry, now)

    def _look_after(self, transactional_id: str, now_ms: int) -> None:
        entry = self._entries.get(transactional_id)
        if entry is None or entry.transaction.state in IDLE:
            self._watched.pop(transactional_id, None)
        elif entry.ending is not None:
            return
        elif entry.transaction.state in PREPARED:
            self._finish(entry, None)
        elif transaction.has_timed_out(entry.transaction, self._age_ms(transactional_id)):
            if entry.transaction.epochs_used_up and not self._ids.left:  # the next turn of the clock finds some
                self._broker.spawn(self._ids.ready(), name="reserve producer ids")
                return
            log.info("transaction_timed_out", transactional_id=transactional_id)
            self._finish(entry, transaction.fence(entry.transaction, now_ms, self._ids.take))

    def _age_ms(self, transactional_id: str) -> int:
        return round((self._clock.monotonic() - self._watched[transactional_id]) * 1000)

    def _expire_id(self, entry: _Entry, now_ms: int) -> None:
        current = entry.transaction
        if transaction.has_expired(current, now_ms, self._config.transactional_id_expiration_ms):
            stored = self._append(current.transactional_id, encode_key(current.transactional_id), None)
            stored.add_done_callback(_note_failure)
            del self._entries[current.transactional_id]
            log.info("transactional_id_expired", transactional_id=current.transactional_id)

    # --- the log ------------------------------------------------------------------------------------------------------

    def _current(self, transactional_id: str) -> Transaction | None:
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.transaction

    def _change(self, after: Transaction) -> "asyncio.Future[None]":
        """Make `after` the state and queue its record; the future is done when it is durable."""
        stored = self._append(after.transactional_id, encode_key(after.transactional_id), encode_transaction(after))
        entry = self._entries.get(after.transactional_id)
        begins = after.state is ONGOING and (entry is None or entry.transaction.state is not ONGOING)
        if entry is None:
            entry = self._entries[after.transactional_id] = _Entry(after)
        entry.transaction = after
        entry.stored = stored
        if begins:
            self._watched[after.transactional_id] = self._clock.monotonic()
        return stored

    def _append(self, transactional_id: str, key: bytes, value: bytes | None) -> "asyncio.Future[None]":
        """Queue a record.

        Raises:
            CoordinatorUnavailable: the log takes nothing.
        """
        record = Record(0, self._clock.now_ms(), key, value)
        number = 0 if key == producer_ids.KEY else self._number(transactional_id)
        try:
            appended = self._logs[number].append(build_batch([record]))
        except StorageError as error:
            raise CoordinatorUnavailable(transactional_id, error) from error
        done: asyncio.Future[None] = self._loop.create_future()

        def durable(future: "asyncio.Future[AppendResult]") -> None:
            if done.done():
                return
            if future.cancelled():
                done.cancel()
            elif (error := future.exception()) is not None:
                done.set_exception(CoordinatorUnavailable(transactional_id, error))
            else:
                done.set_result(None)

        appended.add_done_callback(durable)
        done.add_done_callback(_retrieve)
        return done

    def _reserve_ids(self, end: int) -> "asyncio.Future[None]":
        return self._append("", producer_ids.KEY, producer_ids.encode_reserved(end))

    # --- the start ----------------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Read every transactional id, and the first producer id that is free."""
        read: dict[int, dict[bytes, Stored]] = {}
        for number, partition_log in enumerate(self._logs):
            try:
                read[number] = await _read(partition_log)
            except StorageError as error:
                if partition_log.error is None:  # no damage: the machine is short of something
                    raise
                self._unread.errors[number] = error
                facts = {"partition": str(partition_log.topic_partition), "hint": error.hint}
                log.error("transactions_not_read", **facts, error=str(error))  # noqa: TRY400 - damage is told in one line
        latest = await put_in_place(self._logs, read, self._unread, KEY_VERSIONS, self._clock.now_ms())
        reserved = 0
        found: dict[str, Transaction] = {}
        for key, (value, offset, partition) in latest.items():
            if value is None:
                continue
            try:
                if key == producer_ids.KEY:
                    reserved = producer_ids.decode_reserved(value)
                elif (transactional_id := decode_key(key)) is not None:
                    found[transactional_id] = decode_transaction(transactional_id, value)
            except CorruptData as error:
                if key == producer_ids.KEY:
                    reserved = -1
                hint = "a transactional id is not known: what it had open is aborted"
                report_unreadable(partition, offset, error, hint=hint)
        for transactional_id, current in found.items():
            entry = self._entries[transactional_id] = _Entry(current)
            entry.unmarked = current.partitions if current.state in PREPARED else frozenset()
            if current.state not in IDLE:
                age_ms = max(0, self._clock.now_ms() - current.started_ms)  # the life before has left nothing better
                self._watched[transactional_id] = self._clock.monotonic() - age_ms / 1000
        self._ids = ProducerIds(self._first_free_id(reserved), self._reserve_ids)
        log.info("transactions_recovered", transactional_ids=len(found))

    def _first_free_id(self, reserved: int) -> int:
        """What was reserved, as it was read (-1: it could not be), or an id that nobody can have, where that is lost.

        It is lost where anybody has an id beyond it: a repair has cut it off. Then it is far above every id that is
        known, since some are not used yet.
        """
        entries = [entry.transaction for entry in self._entries.values()]
        known = [max(current.producer_id, current.next_producer_id) for current in entries]
        logs = self._broker.log.partitions.values()
        last = max((*known, *(each.producer_id for log in logs for each in log.producers())), default=-1)
        return reserved if reserved > last else _ID_GAP + max(0, last)

    async def _reconcile(self) -> None:
        """Every open batch in the log belongs to a transaction, or is ended: nothing may hold readers back for ever.

        - of the current producer of a transactional id: its add was not durable when the machine went down, so the
          partition is adopted;
        - of a transaction that is being ended: it is ended there too;
        - of the transaction after one that is being ended: that one has its markers already, only COMPLETE_* was not
          durable; the partition is adopted when it is complete. A marker now would end the wrong transaction;
        - of anybody else: aborted. Nobody could end it any more. What finds no room is tried again by the clock. Where
          some transactional ids could not be read it may be one of theirs, and committed: it is left as it is.

        A partition that is offline takes no marker, and what is known of it may be old: it waits for the start after
        its repair.
        """
        owners = {entry.transaction.producer_id: entry for entry in self._entries.values()}
        owners |= {entry.transaction.next_producer_id: entry for entry in self._entries.values()}
        owners.pop(NO_PRODUCER_ID, None)
        adopted: list[asyncio.Future[None]] = []
        for partition, partition_log in list(self._broker.log.partitions.items()):
            open_producers = _open_producers(partition_log)
            if open_producers and partition_log.error is not None:
                log.warning("open_transactions_left", partition=str(partition), reason=str(partition_log.error))
                continue
            for producer in open_producers:
                entry = owners.get(producer.producer_id)
                current = None if entry is None else entry.transaction
                if self._unread and entry is None:
                    log.warning("open_transactions_left", partition=str(partition), producer_id=producer.producer_id)
                elif entry is None or current is None:
                    self._orphans.append(self._orphan(partition_log, producer, None))
                elif producer == transaction.following(current):
                    entry.following |= {partition}
                    entry.unmarked -= {partition}
                elif current.state in PREPARED and producer.producer_id == current.producer_id:
                    entry.unmarked |= {partition}
                elif producer != current.producer:
                    self._orphans.append(self._orphan(partition_log, producer, current))
                elif current.state is not ONGOING or partition not in current.partitions:
                    log.info("transaction_adopted", transactional_id=current.transactional_id, partition=str(partition))
                    adopted.append(self._change(transaction.adopt(current, {partition}, self._clock.now_ms())))
        await self._abort_orphans()
        for stored in adopted:
            await stored

    def _orphan(self, partition_log: PartitionLog, producer: Producer, current: Transaction | None) -> _Orphan:
        epoch = producer.producer_epoch
        coordinator_epoch = max(each.leader_epoch for each in self._logs)
        if current is not None:
            if current.producer_id == producer.producer_id:
                epoch = max(epoch, current.producer_epoch)
            coordinator_epoch = self._coordinator_epoch(current)
        return _Orphan(partition_log, producer, epoch, coordinator_epoch)

    async def _abort_orphans(self) -> None:
        """A marker for each; those that find no room stay for another try, and hold up nobody else's start."""
        orphans, self._orphans = self._orphans, []
        queued: list[tuple[_Orphan, asyncio.Future[AppendResult]]] = []
        for orphan in orphans:
            partition_log, producer, epoch, coordinator_epoch = orphan
            if partition_log.error is not None or producer not in _open_producers(partition_log):
                continue  # it was deleted, or ended by hand
            partition = partition_log.topic_partition
            try:
                coordinator_epoch = _accepted(coordinator_epoch, partition_log, producer.producer_id)
                marker = _append(partition_log, Marker(producer.producer_id, epoch, False, coordinator_epoch))
            except StorageError as error:
                self._left(orphan, error)
                continue
            log.warning("orphan_transaction_aborted", partition=str(partition), producer_id=producer.producer_id)
            if partition.topic == OFFSETS_TOPIC:
                self._broker.groups.end_transaction(partition.partition, producer.producer_id, commit=False)
            queued.append((orphan, marker))
        for orphan, marker in queued:
            try:
                await marker
            except StorageError as error:
                self._left(orphan, error)

    def _left(self, orphan: _Orphan, error: StorageError) -> None:
        self._orphans.append(orphan)
        facts = {"partition": str(orphan.partition_log.topic_partition), "producer_id": orphan.producer.producer_id}
        log.warning("open_transactions_left", **facts, reason=str(error))


_EXPIRATION_CHECK_SECONDS: Final = 3_600


@contextmanager
def _failing_alone(event: str, transactional_id: str) -> Iterator[None]:
    """What goes wrong with one transactional id is said, and takes nothing from the others."""
    try:
        yield
    except MainstemError as error:  # its log is offline; the others' are not
        log.warning(event, transactional_id=transactional_id, reason=str(error))
    except Exception:  # a bug
        log.exception(event, transactional_id=transactional_id)


async def _read(partition_log: PartitionLog) -> dict[bytes, Stored]:
    """The last record of each key.

    Raises:
        StorageError: the partition is damaged, or the machine is short of something.
    """
    latest: dict[bytes, Stored] = {}
    async for _, _, records in replay(partition_log):
        for record in records:
            latest[record.key or b""] = (record.value, record.offset, partition_log.topic_partition)
    return latest


def _accepted(coordinator_epoch: int, partition_log: PartitionLog, producer_id: int) -> int:
    """The coordinator epoch of a marker that the partition takes: what it remembers of the producer, if that is higher.

    It fences a coordinator that was replaced by another, and here there is one. A higher one is left by a marker by
    hand, and where the transactional id was kept in a partition of `__transaction_state` that a repair has cut.
    """
    before = partition_log.producer(producer_id)
    return coordinator_epoch if before is None else max(coordinator_epoch, before.coordinator_epoch)


def _append(partition_log: PartitionLog, marker: Marker) -> "asyncio.Future[AppendResult]":
    return partition_log.append_marker(
        marker.producer_id,
        marker.producer_epoch,
        commit=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
    )


def _open_producers(partition_log: PartitionLog) -> list[Producer]:
    """Each that has a transaction open in the partition."""
    if not partition_log.open_transactions:
        return []
    return [
        Producer(producer.producer_id, producer.producer_epoch)
        for producer in partition_log.producers()
        if producer.transaction_first_offset >= 0
    ]


def _retrieve(future: "asyncio.Future[None]") -> None:
    """Whoever waits gets the error; if nobody does, it was logged already."""
    if not future.cancelled():
        future.exception()


def _note_failure(future: "asyncio.Future[None]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("transaction_not_stored", reason=str(error))
