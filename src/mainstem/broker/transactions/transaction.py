"""The state of one transactional id: what may follow what. No I/O, no clock: time and new producer ids are passed in.

Every function takes the current `Transaction` and returns the next one, which the coordinator stores before anything
is answered; the same object back means that there is nothing to store.

Two protocols live side by side (KIP-890):

- version 1: partitions are added by AddPartitionsToTxn and AddOffsetsToTxn; the producer epoch stays as it is from one
  transaction to the next; EndTxn 0-4;
- version 2: partitions are added by the first produce (Produce 12+) or offset commit (TxnOffsetCommit 5+); EndTxn 5
  raises the producer epoch by one, so that nothing late can slip into the next transaction.

Markers are written with the epoch of the PREPARE_* state. Fencing (InitProducerId over an open transaction, or its
timeout) raises the epoch too, and the old producer can never raise its voice again.
"""

import enum
from collections.abc import Callable, Set
from typing import Final

import msgspec

from mainstem.broker.transactions.errors import (
    InvalidTransactionState,
    PartitionNotInTransaction,
    ProducerFenced,
    TransactionEnding,
    UnknownProducerMapping,
)
from mainstem.core import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 32766
"""The last epoch a producer may use: one more is kept, so that it can always be fenced."""


class TransactionState(enum.IntEnum):
    """Kafka's states with Kafka's numbers: they are stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7
    """Kafka's state between deciding to fence and storing it; never stored, and we need none such."""

    @property
    def label(self) -> str:
        """The name that DescribeTransactions and ListTransactions show."""
        return "".join(word.capitalize() for word in self.name.split("_"))


EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DEAD = TransactionState.DEAD

PREPARED: Final = frozenset((PREPARE_COMMIT, PREPARE_ABORT))
IDLE: Final = frozenset((EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT))

TRANSITIONS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    #                 initialize, add a partition, end or fence, markers written, id expired
    EMPTY: frozenset((EMPTY, ONGOING, PREPARE_ABORT, DEAD)),
    ONGOING: frozenset((ONGOING, PREPARE_COMMIT, PREPARE_ABORT)),
    PREPARE_COMMIT: frozenset((COMPLETE_COMMIT,)),
    PREPARE_ABORT: frozenset((COMPLETE_ABORT,)),
    COMPLETE_COMMIT: frozenset((EMPTY, ONGOING, PREPARE_ABORT, DEAD)),  # an abort of nothing raises the epoch (v2)
    COMPLETE_ABORT: frozenset((EMPTY, ONGOING, PREPARE_ABORT, DEAD)),
    DEAD: frozenset(),
}


class Producer(msgspec.Struct, frozen=True):
    """A producer's identity."""

    producer_id: int
    producer_epoch: int


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id: whose it is, and how far its transaction has come."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = -1
    started_ms: int = -1
    """When the transaction began, wall clock; -1 before the first."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after the end that is under way, if the epochs of this one are used up."""
    client_version: int = 0
    """2 if the client ended or began this transaction by version 2's rules."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch from which the current one was reached by the same producer: its retry is recognised. Not stored."""

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def epochs_used_up(self) -> bool:
        return self.producer_epoch >= LAST_EPOCH


def check_takeover(current: Transaction, expected: Producer | None) -> None:
    """May a producer that says who it was (`expected`, KIP-360) initialize the transactional id anew?

    Raises:
        ProducerFenced: somebody else did so in between.
    """
    if expected is None or expected == current.producer or _is_retry_of_initialize(current, expected):
        return
    raise ProducerFenced(
        current.transactional_id,
        f"the producer was {expected.producer_id} with epoch {expected.producer_epoch}, "
        f"it is {current.producer_id} with epoch {current.producer_epoch}",
    )


def _is_retry_of_initialize(current: Transaction, expected: Producer) -> bool:
    same = expected.producer_id == current.producer_id
    rotated = expected.producer_id == current.previous_producer_id and expected.producer_epoch >= LAST_EPOCH
    return (same or rotated) and NO_EPOCH != expected.producer_epoch == current.last_producer_epoch


def initialize(
    current: Transaction | None,
    transactional_id: str,
    timeout_ms: int,
    expected: Producer | None,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Transaction:
    """A producer takes the transactional id over: the epoch is raised, and whoever had it before is fenced.

    An open transaction is fenced and completed first, by the caller.

    Raises:
        ProducerFenced: see `check_takeover`.
        TransactionEnding: the last transaction is not complete yet.
    """
    if current is None:
        return Transaction(
            transactional_id=transactional_id,
            producer_id=new_producer_id(),
            producer_epoch=0,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
        )
    check_takeover(current, expected)
    if current.state not in IDLE:
        raise TransactionEnding(transactional_id, f"state {current.state.label}, expected a completed transaction")
    ready = _to(current, EMPTY, timeout_ms=timeout_ms, partitions=frozenset(), started_ms=-1, updated_ms=now_ms)
    if expected is not None and expected != current.producer:
        return ready  # a retry whose answer was lost: nobody else can have taken over, or it would be fenced
    last = NO_EPOCH if expected is None else current.producer_epoch
    if current.epochs_used_up:
        return msgspec.structs.replace(
            ready,
            producer_id=new_producer_id(),
            producer_epoch=0,
            previous_producer_id=current.producer_id,
            last_producer_epoch=last,
        )
    return msgspec.structs.replace(ready, producer_epoch=current.producer_epoch + 1, last_producer_epoch=last)


def check_producer(current: Transaction | None, transactional_id: str, producer: Producer) -> Transaction:
    """The transaction, if `producer` is who may work on it.

    Raises:
        UnknownProducerMapping: no such transactional id, or another producer id.
        ProducerFenced: the epoch is not the current one.
    """
    if current is None:
        raise UnknownProducerMapping(transactional_id, "not known; InitProducerId comes first")
    if current.producer_id != producer.producer_id:
        raise UnknownProducerMapping(
            transactional_id, f"its producer id is {current.producer_id}, found {producer.producer_id}"
        )
    if current.producer_epoch != producer.producer_epoch:
        raise ProducerFenced(
            transactional_id, f"its producer epoch is {current.producer_epoch}, found {producer.producer_epoch}"
        )
    return current


def add(
    current: Transaction | None,
    transactional_id: str,
    producer: Producer,
    partitions: Set[TopicPartition],
    now_ms: int,
    *,
    implicit: bool,
) -> Transaction:
    """`partitions` belong to the producer's transaction, which begins with the first of them.

    `implicit` is version 2's way, by a produce or an offset commit.

    Raises:
        UnknownProducerMapping, ProducerFenced: see `check_producer`.
        TransactionEnding: the last transaction is not complete yet.
    """
    current = check_producer(current, transactional_id, producer)
    if current.state in PREPARED:
        raise TransactionEnding(transactional_id, f"state {current.state.label}, expected a completed transaction")
    if current.state is ONGOING and current.partitions >= partitions:
        return current
    begins = current.state is not ONGOING
    return _to(
        current,
        ONGOING,
        partitions=frozenset(partitions) if begins else current.partitions | partitions,
        started_ms=now_ms if begins else current.started_ms,
        updated_ms=now_ms,
        client_version=2 if implicit else 0,
    )


def verify(current: Transaction | None, transactional_id: str, producer: Producer, partition: TopicPartition) -> None:
    """May the producer write to `partition` now, by version 1's rules (KIP-890)?

    Raises:
        UnknownProducerMapping, ProducerFenced: see `check_producer`.
        PartitionNotInTransaction: it was not added, or the transaction is ending already.
    """
    current = check_producer(current, transactional_id, producer)
    if current.state is not ONGOING or partition not in current.partitions:
        raise PartitionNotInTransaction(
            transactional_id, f"state {current.state.label}: {partition} was not added to the transaction"
        )


def end(
    current: Transaction | None,
    transactional_id: str,
    producer: Producer,
    now_ms: int,
    new_producer_id: Callable[[], int],
    *,
    commit: bool,
    version: int,
) -> Transaction:
    """The producer commits or aborts: the PREPARE_* state to store, or `current` itself if it had done so before.

    `version` is the client's transaction version, 1 or 2.

    Raises:
        UnknownProducerMapping, ProducerFenced: see `check_producer`.
        InvalidTransactionState: there is nothing to commit, or the outcome was the other one.
        TransactionEnding: the end is under way; its outcome is not known yet.
    """
    if version >= 2 and current is not None and _is_retry_of_end(current, producer):
        return _answer_retry(current, commit)
    current = check_producer(current, transactional_id, producer)
    if current.state in PREPARED:
        raise TransactionEnding(transactional_id, f"state {current.state.label}, expected a completed transaction")
    if current.state is not ONGOING:
        if version < 2 and current.state is not EMPTY:
            return _answer_retry(current, commit)  # version 1: the epoch does not tell a retry from a new request
        if version < 2 or commit:
            raise InvalidTransactionState(
                transactional_id, f"state {current.state.label}: no transaction to {'commit' if commit else 'abort'}"
            )
    changes: dict[str, object] = {"updated_ms": now_ms, "client_version": version if version >= 2 else 0}
    if current.state is not ONGOING:  # version 2: aborting nothing still raises the epoch
        changes |= {"started_ms": now_ms, "partitions": frozenset()}
    if version >= 2:
        changes |= {"producer_epoch": current.producer_epoch + 1, "last_producer_epoch": current.producer_epoch}
        if current.epochs_used_up:
            changes["next_producer_id"] = new_producer_id()
    return _to(current, PREPARE_COMMIT if commit else PREPARE_ABORT, **changes)


def _is_retry_of_end(current: Transaction, producer: Producer) -> bool:
    """Version 2: EndTxn has raised the epoch, and its answer did not arrive; or a timeout has done so."""
    if current.client_version < 2 or current.state in (EMPTY, ONGOING):
        return False
    if producer.producer_id == current.producer_id:
        return producer.producer_epoch == current.producer_epoch - 1
    return (
        producer.producer_id == current.previous_producer_id
        and producer.producer_epoch == LAST_EPOCH
        and current.producer_epoch == 0
    )


def _answer_retry(current: Transaction, commit: bool) -> Transaction:
    if current.state in PREPARED:
        raise TransactionEnding(
            current.transactional_id, f"state {current.state.label}, expected a completed transaction"
        )
    if current.state is not (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
        raise InvalidTransactionState(
            current.transactional_id,
            f"state {current.state.label}: the transaction can no longer be {'committed' if commit else 'aborted'}",
        )
    return current


def fence(current: Transaction, now_ms: int, new_producer_id: Callable[[], int]) -> Transaction:
    """Abort the open transaction with a raised epoch: its producer can neither add to it nor commit it any more.

    As long as nobody else takes the transactional id over, the old producer may find out by aborting (version 2) or
    initializing with its old epoch, and goes on with the raised one, or with a new id where that was the last epoch.
    """
    return _to(
        current,
        PREPARE_ABORT,
        producer_epoch=current.producer_epoch + 1,
        last_producer_epoch=current.producer_epoch,
        next_producer_id=new_producer_id() if current.epochs_used_up else NO_PRODUCER_ID,
        client_version=2,
        updated_ms=now_ms,
    )


def complete(current: Transaction, now_ms: int) -> Transaction:
    """The markers are written."""
    done = _to(
        current,
        COMPLETE_COMMIT if current.state is PREPARE_COMMIT else COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=now_ms,
    )
    if current.next_producer_id == NO_PRODUCER_ID:
        return done
    return msgspec.structs.replace(
        done,
        producer_id=current.next_producer_id,
        producer_epoch=0,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def following(current: Transaction) -> Producer | None:
    """Of a PREPARE_* state: who writes the transaction after it, if a batch tells by its epoch which of both it is of.

    Version 2 and a fence raise the epoch with the end. After an end by version 1's rules both have the same one.
    """
    if current.state not in PREPARED or current.client_version < 2:
        return None
    return complete(current, 0).producer


def needs_end_stored(current: Transaction) -> bool:
    """An implicit add waits until this state is durable: its batch could be taken for one of the last transaction."""
    return current.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and current.client_version < 2


def adopt(current: Transaction, partitions: Set[TopicPartition], now_ms: int) -> Transaction:
    """At start: add `partitions`, where the log holds open batches of the producer and no record says so.

    The implicit add and the batch are written in the same round; a crash may keep the batch alone. The producer was
    not answered, and its retry will be taken for a duplicate: so the partition belongs to its transaction.
    """
    return add(current, current.transactional_id, current.producer, partitions, now_ms, implicit=True)


def has_timed_out(current: Transaction, age_ms: int) -> bool:
    return current.state is ONGOING and current.timeout_ms < age_ms


def has_expired(current: Transaction, now_ms: int, expiration_ms: int) -> bool:
    """Nobody has used the transactional id for so long that it may be forgotten."""
    return current.state in IDLE and current.updated_ms + expiration_ms <= now_ms


def _to(current: Transaction, state: TransactionState, **changes: object) -> Transaction:
    assert state in TRANSITIONS[current.state], f"{current.state.label} -> {state.label}"
    return msgspec.structs.replace(current, state=state, **changes)
