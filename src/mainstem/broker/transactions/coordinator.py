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
from typing import TYPE_CHECKING, Any, Final

from mainstem.broker.errors import UnknownTopicOrPartition
from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.broker.transactions import transaction
from mainstem.broker.transactions.errors import (
    CoordinatorUnavailable,
    ProducerFenced,
    StaleProducerEpoch,
    TransactionError,
)
from mainstem.broker.transactions.markers import accepted_epoch, append_marker, open_producers
from mainstem.broker.transactions.orphans import Orphan, Orphans
from mainstem.broker.transactions.producer_ids import ProducerIds
from mainstem.broker.transactions.storage import STATE_CONFIG, STATE_TOPIC, TransactionStorage
from mainstem.broker.transactions.transaction import (
    IDLE,
    NO_PRODUCER_ID,
    ONGOING,
    PREPARE_COMMIT,
    PREPARED,
    Producer,
    Transaction,
)
from mainstem.core import MainstemError, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import AppendResult, PartitionLog
from mainstem.log.errors import StorageError
from mainstem.records import Marker
from mainstem.wire.errors import Code

if TYPE_CHECKING:
    from mainstem.broker.server import Broker

_ID_GAP: Final = 2**32  # more ids than any node hands out before one of them is used

log = get_logger()


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
        self.stored: asyncio.Future[int] | None = None
        """Done when the record queued last is durable, or could not be stored."""


class TransactionCoordinator:
    """All transactional ids of the broker."""

    def __init__(self, broker: "Broker", logs: Sequence[PartitionLog]) -> None:
        self.storage = TransactionStorage(logs, broker.clock)
        self._broker = broker
        self._config = broker.config
        self._clock = broker.clock
        self._loop = asyncio.get_running_loop()
        self._entries: dict[str, _Entry] = {}
        # Ids that are not idle, for their timeouts and unfinished ends: when the transaction began, by the clock that
        # never jumps. By the wall clock, one that is set forward would abort all that is open, and a client whose own
        # clock says that there was time left takes that for a rival.
        self._watched: dict[str, float] = {}
        self._ids = ProducerIds(0, self.storage.reserve_ids)
        self._timer: asyncio.TimerHandle | None = None
        self._expires_at = self._clock.monotonic()  # when ids that nobody uses are looked for again
        self._closed = False
        self._orphans = Orphans()

    @classmethod
    async def open(cls, broker: "Broker") -> "TransactionCoordinator":
        """Read what is stored, end what was being ended, and start the clock."""
        count = broker.config.transaction_state_log_num_partitions
        coordinator = cls(broker, await broker.ensure_internal_topic(STATE_TOPIC, count, STATE_CONFIG))
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
        await self._settle(transactional_id)
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise TransactionError(
                Code.invalid_transaction_timeout,
                transactional_id,
                f"timeout {timeout_ms} ms, expected 1 to {self._config.transaction_max_timeout_ms}"
                " (transaction.max.timeout.ms)",
            )
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
        beside: Set[TopicPartition] = frozenset(),
    ) -> "asyncio.Future[Any] | None":
        """May the producer write to the partition in the same turn of the loop (KIP-890)?

        None says yes: the partition belongs to its transaction, with `implicit_add` from now on, and so do those
        `beside` it, which are asked about next: one record for all of them. A future says that the last transaction is
        being ended, or that its end is not durable yet: ask again when it is done.

        Raises:
            PartitionNotInTransaction: the partition was not added (version 1): nothing may be written there.
            TransactionError: see `check_writer` and `transaction.add`.
        """
        producer = Producer(producer_id, producer_epoch)
        self.check_writer(transactional_id, producer, topic_partition)
        entry = self._entries[transactional_id]
        current = entry.transaction
        if not implicit_add:
            transaction.verify(current, transactional_id, producer, topic_partition)
            return None
        if entry.ending is not None:
            return asyncio.shield(entry.ending)
        added = current.state is ONGOING and topic_partition in current.partitions
        partitions = {topic_partition} if added else {topic_partition, *beside}
        after = transaction.add(current, transactional_id, producer, partitions, self._clock.now_ms(), implicit=True)
        if transaction.needs_end_stored(current) and entry.stored is not None and not entry.stored.done():
            return asyncio.shield(entry.stored)
        if after is not current:
            self._change(after).add_done_callback(_note_failure)
        return None

    def check_writer(self, transactional_id: str, producer: Producer, topic_partition: TopicPartition) -> None:
        """May the producer write to the partition, if that belongs to its transaction?

        Raises:
            StaleProducerEpoch: the producer is fenced.
            UnknownProducerMapping: no such transactional id, or another producer id.
            CoordinatorUnavailable: what an earlier epoch left open there is not aborted yet, and would be committed; or
                what is stored of the id could not be read.
        """
        self.storage.check_read(transactional_id)
        if self._orphans and self._orphans.has(topic_partition, producer.producer_id):
            raise CoordinatorUnavailable(transactional_id, f"{topic_partition} has a transaction to be aborted")
        try:
            transaction.check_producer(self._current(transactional_id), transactional_id, producer)
        except ProducerFenced as error:
            raise StaleProducerEpoch(transactional_id, str(error)) from error

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
        self.storage.check_read(transactional_id)
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
            TransactionError: there is no such id.
            CoordinatorUnavailable: what is stored of it could not be read.
        """
        if not transactional_id:
            raise TransactionError(Code.invalid_request, transactional_id, "a transactional id is not empty")
        self.storage.check_read(transactional_id)
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
        self, entry: _Entry, stored: "asyncio.Future[int] | None", ending: "asyncio.Future[None]"
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
                self._change(after).add_done_callback(_note_failure)
                entry.following = frozenset()
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
                    queued.append((partition, marker, append_marker(partition_log, marker)))
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
        coordinator_epoch = accepted_epoch(
            self.storage.coordinator_epoch(prepared.transactional_id), partition_log, prepared.producer_id
        )
        return Marker(prepared.producer_id, epoch, commit, coordinator_epoch)

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
            self._broker.spawn(self._orphans.abort(self._broker.groups), name="abort orphan transactions")
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
            self.storage.forget(current.transactional_id).add_done_callback(_note_failure)
            del self._entries[current.transactional_id]
            log.info("transactional_id_expired", transactional_id=current.transactional_id)

    # --- the state ----------------------------------------------------------------------------------------------------

    def _current(self, transactional_id: str) -> Transaction | None:
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.transaction

    def _change(self, after: Transaction) -> "asyncio.Future[int]":
        """Make `after` the state and queue its record; the future is done when it is durable."""
        stored = self.storage.store(after)
        entry = self._entries.get(after.transactional_id)
        begins = after.state is ONGOING and (entry is None or entry.transaction.state is not ONGOING)
        if entry is None:
            entry = self._entries[after.transactional_id] = _Entry(after)
        entry.transaction = after
        entry.stored = stored
        if begins:
            self._watched[after.transactional_id] = self._clock.monotonic()
        return stored

    # --- the start ----------------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Read every transactional id, and the first producer id that is free."""
        found, reserved = await self.storage.find()
        for transactional_id, current in found.items():
            entry = self._entries[transactional_id] = _Entry(current)
            entry.unmarked = current.partitions if current.state in PREPARED else frozenset()
            if current.state not in IDLE:
                age_ms = max(0, self._clock.now_ms() - current.started_ms)  # the life before has left nothing better
                self._watched[transactional_id] = self._clock.monotonic() - age_ms / 1000
        self._ids = ProducerIds(self._first_free_id(reserved), self.storage.reserve_ids)
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
        adopted: list[asyncio.Future[int]] = []
        for partition, partition_log in list(self._broker.log.partitions.items()):
            producers = open_producers(partition_log)
            if producers and partition_log.error is not None:
                log.warning("open_transactions_left", partition=str(partition), reason=str(partition_log.error))
                continue
            for producer in producers:
                entry = owners.get(producer.producer_id)
                current = None if entry is None else entry.transaction
                if not self.storage.knows_all and entry is None:
                    log.warning("open_transactions_left", partition=str(partition), producer_id=producer.producer_id)
                elif entry is None or current is None:
                    self._orphans.add(self._orphan(partition_log, producer, None))
                elif producer == transaction.following(current):
                    entry.following |= {partition}
                    entry.unmarked -= {partition}
                elif current.state in PREPARED and producer.producer_id == current.producer_id:
                    entry.unmarked |= {partition}
                elif producer != current.producer:
                    self._orphans.add(self._orphan(partition_log, producer, current))
                elif current.state is not ONGOING or partition not in current.partitions:
                    log.info("transaction_adopted", transactional_id=current.transactional_id, partition=str(partition))
                    adopted.append(self._change(transaction.adopt(current, {partition}, self._clock.now_ms())))
        await self._orphans.abort(self._broker.groups)
        for stored in adopted:
            await stored

    def _orphan(self, partition_log: PartitionLog, producer: Producer, current: Transaction | None) -> Orphan:
        epoch = producer.producer_epoch
        coordinator_epoch = self.storage.highest_epoch
        if current is not None:
            if current.producer_id == producer.producer_id:
                epoch = max(epoch, current.producer_epoch)
            coordinator_epoch = self.storage.coordinator_epoch(current.transactional_id)
        return Orphan(partition_log, producer, epoch, coordinator_epoch)


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


def _retrieve(future: "asyncio.Future[None]") -> None:
    """Whoever waits gets the error; if nobody does, it was logged already."""
    if not future.cancelled():
        future.exception()


def _note_failure(future: "asyncio.Future[int]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("transaction_not_stored", reason=str(error))
