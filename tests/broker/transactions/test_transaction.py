import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.transactions import transaction as rules
from mainstem.broker.transactions.errors import (
    InvalidTransactionState,
    PartitionNotInTransaction,
    ProducerFenced,
    TransactionEnding,
    TransactionError,
    UnknownProducerMapping,
)
from mainstem.broker.transactions.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    LAST_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TRANSITIONS,
    Producer,
    Transaction,
    TransactionState,
)
from mainstem.core import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def new(**changes):
    fields = {"transactional_id": "t", "producer_id": 7, "producer_epoch": 3, "timeout_ms": 60} | changes
    return Transaction(**fields)


def no_id():
    raise AssertionError("no new producer id is needed")


def initialize(current, expected=None, *, new_id=no_id):
    return rules.initialize(current, "t", 50, expected, 1000, new_id)


def end(current, producer=None, *, commit=True, version=1, new_id=no_id):
    producer = producer or current.producer
    return rules.end(current, "t", producer, 1000, new_id, commit=commit, version=version)


def add(current, producer=None, partitions=(A,), *, implicit=False):
    return rules.add(current, "t", producer or current.producer, set(partitions), 1000, implicit=implicit)


def test_the_first_producer_gets_an_id_and_epoch_0():
    assert initialize(None, new_id=lambda: 9).producer == Producer(9, 0)


def test_the_names_are_kafkas():
    assert [state.label for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_initialize_raises_the_epoch(state):
    after = initialize(new(state=state, started_ms=5))
    assert (after.state, after.producer, after.timeout_ms, after.started_ms) == (EMPTY, Producer(7, 4), 50, -1)
    with pytest.raises(ProducerFenced):
        initialize(after, Producer(7, 3))


@pytest.mark.parametrize("state", [ONGOING, PREPARE_COMMIT, PREPARE_ABORT])
def test_initialize_waits_for_the_end_of_the_transaction(state):
    with pytest.raises(TransactionEnding):
        initialize(new(state=state))


def test_a_producer_that_says_who_it_was_can_repeat_it():
    first = initialize(new(), Producer(7, 3))
    assert first.producer == Producer(7, 4)
    assert initialize(first, Producer(7, 3)).producer == Producer(7, 4)
    assert initialize(first, Producer(7, 4)).producer == Producer(7, 5)
    for stranger in (Producer(7, 2), Producer(8, 3), Producer(7, -1)):
        with pytest.raises(ProducerFenced):
            initialize(first, stranger)


def test_used_up_epochs_give_a_new_producer_id():
    last = new(producer_epoch=LAST_EPOCH)
    rotated = initialize(last, last.producer, new_id=lambda: 9)
    assert (rotated.producer, rotated.previous_producer_id) == (Producer(9, 0), 7)
    assert initialize(rotated, last.producer).producer == Producer(9, 0), "a retry"
    assert initialize(last, new_id=lambda: 9).producer == Producer(9, 0)


def test_a_fence_with_the_last_epoch_gives_a_new_producer_id():
    """The old one went on with an epoch that nothing could raise any more."""
    old = Producer(7, LAST_EPOCH)
    prepared = rules.fence(new(producer_epoch=LAST_EPOCH, state=ONGOING), 5, lambda: 9)
    assert prepared.producer_epoch == LAST_EPOCH + 1, "the one epoch that is kept for fencing"
    assert rules.following(prepared) == Producer(9, 0)
    fenced = rules.complete(prepared, 6)
    assert (fenced.producer, fenced.previous_producer_id) == (Producer(9, 0), 7)
    assert end(fenced, old, commit=False, version=2) is fenced, "the old producer finds out"
    assert initialize(fenced, old).producer == Producer(9, 0), "in either way"
    taken = initialize(fenced)
    assert taken.producer == Producer(9, 1)
    with pytest.raises(ProducerFenced):
        initialize(taken, old)
    with pytest.raises(UnknownProducerMapping):
        end(taken, old, commit=False, version=2)


def test_a_transaction_begins_with_its_first_partition():
    begun = add(new(state=COMPLETE_COMMIT, started_ms=1))
    assert (begun.state, begun.partitions, begun.started_ms) == (ONGOING, {A}, 1000)
    more = rules.add(begun, "t", begun.producer, {A, B}, 2000, implicit=True)
    assert (more.partitions, more.started_ms, more.updated_ms) == ({A, B}, 1000, 2000)
    assert add(more, partitions=(B,)) is more, "nothing to store"


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_nothing_is_added_while_a_transaction_ends(state):
    with pytest.raises(TransactionEnding):
        add(new(state=state))


def test_only_the_current_producer_may_work_on_it():
    current = new(state=ONGOING, partitions=frozenset({A}))
    for ask in (
        lambda who: add(current, who),
        lambda who: end(current, who),
        lambda who: end(current, who, version=2),
        lambda who: rules.verify(current, "t", who, A),
    ):
        with pytest.raises(UnknownProducerMapping):
            ask(Producer(8, 3))
        for epoch in (2, 4):
            with pytest.raises(ProducerFenced):
                ask(Producer(7, epoch))
    with pytest.raises(UnknownProducerMapping):
        add(None, Producer(7, 3))


def test_verify_lets_only_added_partitions_pass():
    current = new(state=ONGOING, partitions=frozenset({A}))
    rules.verify(current, "t", current.producer, A)
    with pytest.raises(PartitionNotInTransaction):
        rules.verify(current, "t", current.producer, B)
    for state in (EMPTY, PREPARE_COMMIT, COMPLETE_COMMIT):
        with pytest.raises(PartitionNotInTransaction):
            rules.verify(new(state=state, partitions=frozenset({A})), "t", Producer(7, 3), A)


@pytest.mark.parametrize("commit", [True, False])
def test_version_1_keeps_the_epoch(commit):
    prepared = end(new(state=ONGOING, partitions=frozenset({A})), commit=commit)
    assert (prepared.state, prepared.producer_epoch) == (PREPARE_COMMIT if commit else PREPARE_ABORT, 3)
    done = rules.complete(prepared, 2000)
    assert (done.state, done.partitions) == (COMPLETE_COMMIT if commit else COMPLETE_ABORT, frozenset())
    assert end(done, commit=commit) is done, "a retry"
    with pytest.raises(InvalidTransactionState):
        end(done, commit=not commit)
    with pytest.raises(TransactionEnding):
        end(prepared, commit=commit)


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_raises_the_epoch_and_knows_a_retry_by_it(commit):
    begun = new(state=ONGOING, partitions=frozenset({A}))
    prepared = end(begun, commit=commit, version=2)
    assert prepared.producer_epoch == 4
    with pytest.raises(TransactionEnding):
        end(prepared, begun.producer, commit=commit, version=2)
    done = rules.complete(prepared, 2000)
    assert end(done, begun.producer, commit=commit, version=2) is done
    with pytest.raises(InvalidTransactionState):
        end(done, begun.producer, commit=not commit, version=2)
    with pytest.raises(ProducerFenced):
        end(done, begun.producer, commit=commit, version=1)
    with pytest.raises(ProducerFenced):
        end(add(done), begun.producer, commit=commit, version=2)


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_version_2_may_abort_nothing(state):
    aborted = end(new(state=state, client_version=2), commit=False, version=2)
    assert (aborted.state, aborted.producer_epoch, aborted.partitions) == (PREPARE_ABORT, 4, frozenset())
    with pytest.raises(InvalidTransactionState):
        end(new(state=state, client_version=2), commit=True, version=2)


def test_version_1_may_not_end_nothing():
    for commit in (True, False):
        with pytest.raises(InvalidTransactionState):
            end(new(), commit=commit)


def test_version_2_uses_up_its_epochs():
    prepared = end(new(state=ONGOING, producer_epoch=LAST_EPOCH), version=2, new_id=lambda: 9)
    assert (prepared.producer, prepared.next_producer_id) == (Producer(7, LAST_EPOCH + 1), 9)
    done = rules.complete(prepared, 5)
    assert (done.producer, done.previous_producer_id, done.next_producer_id) == (Producer(9, 0), 7, -1)
    assert end(done, Producer(7, LAST_EPOCH), version=2) is done, "a retry"


def test_a_fenced_producer_may_recover_as_long_as_nobody_took_over():
    begun = new(state=ONGOING, partitions=frozenset({A}))
    aborted = rules.complete(rules.fence(begun, 5, no_id), 6)
    assert aborted.producer == Producer(7, 4)
    with pytest.raises(ProducerFenced):
        rules.verify(aborted, "t", begun.producer, A)
    with pytest.raises(InvalidTransactionState):
        end(aborted, begun.producer, commit=True, version=2)
    assert end(aborted, begun.producer, commit=False, version=2) is aborted
    assert initialize(aborted, begun.producer).producer == Producer(7, 4)
    taken = initialize(aborted)
    assert taken.producer == Producer(7, 5)
    for version in (1, 2):
        with pytest.raises(ProducerFenced):
            end(taken, begun.producer, commit=False, version=version)
    with pytest.raises(ProducerFenced):
        initialize(taken, begun.producer)


def test_adopting_is_adding():
    adopted = rules.adopt(new(), {A}, 5)
    assert (adopted.state, adopted.partitions) == (ONGOING, {A})


def test_timeouts_and_expiration_by_the_clock():
    assert not rules.has_timed_out(new(state=ONGOING), 60)
    assert rules.has_timed_out(new(state=ONGOING), 61)
    assert not rules.has_timed_out(new(), 10_000)
    assert rules.has_expired(new(updated_ms=100), 200, 100)
    assert not rules.has_expired(new(updated_ms=100), 199, 100)
    assert not rules.has_expired(new(state=ONGOING, updated_ms=100), 10_000, 100)


def test_every_state_but_dead_leads_somewhere():
    assert set(TRANSITIONS) == set(TransactionState) - {TransactionState.PREPARE_EPOCH_FENCE}
    assert not TRANSITIONS[DEAD]
    assert all(TRANSITIONS[state] for state in TRANSITIONS if state is not DEAD)


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["initialize", "recover", "add", "implicit", "commit", "abort", "commit2", "abort2", "fence", "complete"]
        ),
        st.integers(0, 4),
    ),
    max_size=60,
)


@given(steps, st.sampled_from([0, LAST_EPOCH - 2]))
def test_no_order_of_requests_breaks_the_rules(history, first_epoch):
    """Epochs never fall or leave their range, states follow the table, and a refusal leaves everything as it was."""
    ids = iter(range(100, 10_000))
    current = initialize(None, new_id=lambda: next(ids))
    current = msgspec.structs.replace(current, producer_epoch=first_epoch)
    known = [current.producer]
    for step, which in history:
        producer = known[-1 - which % len(known)]
        before = current
        try:
            current = one_step(step, current, producer, ids)
        except TransactionError:
            continue
        assert current is before or current.state in TRANSITIONS[before.state]
        if current.producer_id == before.producer_id:
            assert current.producer_epoch >= before.producer_epoch
        else:
            assert current.producer_epoch == 0
        assert current.producer_epoch <= LAST_EPOCH + (current.state in rules.PREPARED)
        if current.producer not in known:
            known.append(current.producer)
        if producer != before.producer and step in ("add", "implicit"):
            raise AssertionError("a stranger changed the transaction")


def one_step(step, current, producer, ids):
    def new_id():
        return next(ids)

    if step == "initialize":
        return initialize(current, new_id=new_id)
    if step == "recover":
        return initialize(current, producer, new_id=new_id)
    if step in ("add", "implicit"):
        return add(current, producer, implicit=step == "implicit")
    if step == "fence":
        return rules.fence(current, 1, new_id) if current.state is ONGOING else current
    if step == "complete":
        return rules.complete(current, 1) if current.state in rules.PREPARED else current
    return end(current, producer, commit="commit" in step, version=2 if "2" in step else 1, new_id=new_id)
