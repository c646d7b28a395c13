"""A share partition by itself, and against a model that knows of single records only."""

from math import inf

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainstem.broker.groups.share.partition import (
    Acknowledged,
    AckType,
    Acquired,
    Fetched,
    Limits,
    SharePartition,
    check_acknowledged,
)
from mainstem.broker.groups.share.state import FINAL, Change, RecordState, ShareState, StateBatch
from mainstem.wire.errors import Code, RequestError

LIMITS = Limits(delivery_count=3, record_locks=20, lock_s=30.0)
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = RecordState


def batches(*ranges):
    return [Fetched(first, last) for first, last in ranges]


def acquire(partition, fetched, *, member="m", limits=LIMITS, now=0.0, most=500, **options):
    found, _ = partition.acquire(
        member, fetched, limits, now, fetch_offset=partition.fetch_offset(), most=most, **options
    )
    return [(each.first, each.last, each.delivery_count) for each in found]


def acknowledge(partition, *said, member="m", now=0.0):
    return partition.acknowledge(member, [Acknowledged(*each) for each in said], LIMITS, now)


def states(partition):
    return [(run.first, run.last, run.state, run.delivery_count) for run in partition.runs]


def test_what_is_acquired_is_not_acquired_again():
    partition = SharePartition(10)
    assert acquire(partition, batches((10, 14))) == [(10, 14, 1)]
    assert acquire(partition, batches((10, 14)), member="n") == []
    assert partition.fetch_offset() == 15


def test_the_start_follows_what_is_done():
    partition = SharePartition(0)
    acquire(partition, batches((0, 9)))
    assert acknowledge(partition, (5, 9, [AckType.ACCEPT])) == Change(0, 5, (StateBatch(5, 9, ACKNOWLEDGED, 1),))
    assert acknowledge(partition, (0, 4, [AckType.REJECT])) == Change(10, 0)
    assert (partition.start_offset, partition.end_offset) == (10, 10)


def test_a_batch_is_acknowledged_record_by_record():
    partition = SharePartition(0)
    acquire(partition, batches((0, 3)))
    kinds = [AckType.ACCEPT, AckType.RELEASE, AckType.GAP, AckType.REJECT]
    change = acknowledge(partition, (0, 3, kinds))
    assert change == Change(1, 2, (StateBatch(1, 1, AVAILABLE, 1), *[StateBatch(n, n, ARCHIVED, 1) for n in (2, 3)]))
    assert acquire(partition, batches((0, 3)), member="n") == [(1, 1, 2)]


def test_after_the_last_delivery_nothing_comes_again():
    partition = SharePartition(0)
    for count in (1, 2, 3):
        assert acquire(partition, batches((0, 0))) == [(0, 0, count)]
        acknowledge(partition, (0, 0, [AckType.RELEASE]))
    assert acquire(partition, batches((0, 0))) == []
    assert partition.start_offset == 1


def test_a_lock_ends():
    partition = SharePartition(0)
    acquire(partition, batches((0, 1)), now=5.0)
    acquire(partition, batches((2, 3)), now=6.0)
    assert partition.next_deadline() == 35.0
    assert partition.expire(LIMITS, 34.9) is None
    assert partition.expire(LIMITS, 35.0) == Change(0, 0, (StateBatch(0, 1, AVAILABLE, 1),))
    assert partition.next_deadline() == 36.0
    with pytest.raises(RequestError) as refused:
        acknowledge(partition, (0, 0, [AckType.ACCEPT]))
    assert refused.value.code is Code.invalid_record_state


def test_a_lock_is_renewed():
    partition = SharePartition(0)
    acquire(partition, batches((0, 1)))
    assert acknowledge(partition, (1, 1, [AckType.RENEW]), now=20.0) is None
    assert partition.expire(LIMITS, 30.0) == Change(0, 0, (StateBatch(0, 0, AVAILABLE, 1),))
    assert partition.next_deadline() == 50.0


def test_what_somebody_had_who_goes_is_for_others():
    partition = SharePartition(0)
    acquire(partition, batches((0, 4)))
    acquire(partition, batches((5, 9)), member="n")
    assert partition.release("m", LIMITS) == Change(0, 0, (StateBatch(0, 4, AVAILABLE, 1),))
    assert partition.release("m", LIMITS) is None
    assert acquire(partition, batches((0, 4)), member="n") == [(0, 4, 2)]


def test_a_record_that_ends_whoever_gets_it_is_given_up():
    partition = SharePartition(0)
    for _ in range(LIMITS.delivery_count):
        assert acquire(partition, batches((0, 0)))
        partition.release("m", LIMITS)
    assert (partition.start_offset, acquire(partition, batches((0, 0)))) == (1, [])


def test_acknowledgements_are_taken_all_or_none():
    partition = SharePartition(0)
    acquire(partition, batches((0, 1)))
    acquire(partition, batches((2, 3)), member="n")
    with pytest.raises(RequestError) as refused:
        acknowledge(partition, (0, 1, [AckType.ACCEPT]), (3, 3, [AckType.ACCEPT]))
    assert refused.value.code is Code.invalid_record_state
    assert [run.state for run in partition.runs] == [ACQUIRED, ACQUIRED]


def test_what_was_never_delivered_cannot_be_acknowledged():
    partition = SharePartition(0)
    acquire(partition, batches((0, 1)))
    with pytest.raises(RequestError) as refused:
        acknowledge(partition, (1, 2, [AckType.ACCEPT]))
    assert refused.value.code is Code.invalid_request


def test_what_is_done_may_be_acknowledged_again_below_the_start():
    partition = SharePartition(0)
    acquire(partition, batches((0, 1)))
    acknowledge(partition, (0, 0, [AckType.ACCEPT]))
    assert acknowledge(partition, (0, 1, [AckType.ACCEPT])) == Change(2, 0)


def test_a_batch_is_taken_whole_unless_the_limit_is_strict():
    assert acquire(SharePartition(0), batches((0, 4), (5, 9)), most=3) == [(0, 4, 1)]
    partition = SharePartition(0)
    assert acquire(partition, batches((0, 4), (5, 9)), most=3, strict=True) == [(0, 2, 1)]
    assert partition.fetch_offset() == 3
    assert acquire(partition, batches((0, 4), (5, 9)), most=3, strict=True) == [(3, 5, 1)]


def test_what_is_given_is_cut_where_record_batches_end():
    found = acquire(SharePartition(0), batches((0, 4), (5, 9), (10, 14), (15, 16)), batch_size=8)
    assert found == [(0, 9, 1), (10, 16, 1)]


def test_no_more_than_the_limit_is_tracked():
    partition = SharePartition(0)
    assert acquire(partition, batches((0, 14), (15, 29), (30, 44))) == [(0, 29, 1)]
    assert not partition.may_acquire(LIMITS)
    assert acquire(partition, batches((30, 44))) == []
    acknowledge(partition, (20, 20, [AckType.RELEASE]))
    assert partition.may_acquire(LIMITS)
    assert acquire(partition, batches((15, 29), (30, 44))) == [(20, 20, 2)]


def test_what_compaction_has_taken_is_never_waited_for():
    partition = SharePartition(0)
    acquire(partition, batches((0, 3), (4, 9)))
    acknowledge(partition, (0, 9, [AckType.RELEASE]))
    found, change = partition.acquire("m", batches((2, 3), (6, 7), (12, 12)), LIMITS, 0.0, fetch_offset=0, most=500)
    assert found == [Acquired(2, 3, 2), Acquired(6, 7, 2), Acquired(12, 12, 1)]
    archived = (StateBatch(4, 5, ARCHIVED, 1), StateBatch(8, 9, ARCHIVED, 1), StateBatch(10, 11, ARCHIVED, 0))
    assert change == Change(2, 6, archived)


def test_what_compaction_has_taken_makes_room_where_no_more_may_be_tracked():
    """Nothing was delivered ever after."""
    partition, limits = SharePartition(0), Limits(delivery_count=5, record_locks=5, lock_s=30.0)
    assert acquire(partition, batches((0, 4)), limits=limits) == [(0, 4, 1)]
    partition.release("m", limits)
    acquire(partition, batches((7, 9)), limits=limits)
    assert acquire(partition, batches((7, 9)), limits=limits) == [(7, 9, 1)]
    assert partition.start_offset == 7


def test_aborted_records_are_never_delivered():
    partition = SharePartition(0)
    fetched = [Fetched(0, 4, deliverable=False), Fetched(5, 9), Fetched(10, 14, deliverable=False)]
    found, change = partition.acquire("m", fetched, LIMITS, 0.0, fetch_offset=0, most=500)
    assert found == [Acquired(5, 9, 1)]
    assert change == Change(5, 5, (StateBatch(10, 14, ARCHIVED, 0),))


def test_the_log_start_moves():
    partition = SharePartition(0)
    acquire(partition, batches((0, 9)))
    assert not partition.move_start(0)
    assert partition.move_start(5)
    assert acknowledge(partition, (0, 9, [AckType.ACCEPT])) == Change(10, 0)
    assert partition.move_start(20)
    assert (partition.start_offset, partition.end_offset, partition.fetch_offset()) == (20, 20, 20)


def test_it_comes_back_from_what_was_kept():
    kept = [StateBatch(3, 4, ACKNOWLEDGED, 1), StateBatch(7, 8, AVAILABLE, 2)]
    partition = SharePartition(2, kept)
    assert states(partition) == [
        (2, 2, AVAILABLE, 0),
        (3, 4, ACKNOWLEDGED, 1),
        (5, 6, AVAILABLE, 0),
        (7, 8, AVAILABLE, 2),
    ]
    assert acquire(partition, batches((0, 9))) == [(2, 2, 1), (5, 6, 1)]
    assert acquire(partition, batches((0, 9))) == [(7, 7, 3)]


def test_what_was_delivered_often_comes_in_ever_smaller_parts():
    """So one record that no member can bear does not take its whole batch with it."""
    limits = Limits(delivery_count=6)
    partition = SharePartition(0, [StateBatch(0, 7, AVAILABLE, 2)])
    sizes = []
    while partition.start_offset < 8:
        (found,) = acquire(partition, batches((0, 7)), limits=limits)
        sizes.append((found[2], found[1] - found[0] + 1))
        partition.expire(limits, 30.0)
    assert sizes[:8] == [(3, 8), (4, 4), (5, 2), (6, 1), (6, 1), (5, 2), (6, 1), (6, 1)]
    assert sizes.count((6, 1)) == 8


@pytest.mark.parametrize(
    "said",
    [
        [(3, 2, [1])],
        [(0, 2, [1]), (1, 4, [1])],
        [(4, 5, [1]), (0, 1, [1])],
        [(0, 2, [1, 1])],
        [(0, 2, [])],
        [(-2, 2, [1])],
    ],
)
def test_acknowledgements_that_cannot_be(said):
    with pytest.raises(RequestError) as refused:
        check_acknowledged([Acknowledged(*each) for each in said])
    assert refused.value.code is Code.invalid_request


def test_a_record_cannot_be_acknowledged_twice_at_once():
    with pytest.raises(RequestError) as refused:
        check_acknowledged([Acknowledged(0, 2, [AckType.ACCEPT]), Acknowledged(2, 4, [AckType.ACCEPT])])
    assert refused.value.code is Code.invalid_record_state


# --- against a model --------------------------------------------------------------------------------------------------


class Record(msgspec.Struct):
    """All that the model knows of a record."""

    state: RecordState = AVAILABLE
    count: int = 0
    member: str = ""
    deadline: float = inf


MEMBERS = st.sampled_from(("a", "b", "c"))


class Machine(RuleBasedStateMachine):
    """Members come, acknowledge, are slow and go; now and then the program is killed."""

    @initialize(
        deliveries=st.sampled_from((2, 3, 5)),
        sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.booleans()), min_size=4, max_size=20),
    )
    def log(self, deliveries, sizes):
        """Record batches with gaps between them, some of aborted transactions."""
        self.limits = Limits(delivery_count=deliveries, record_locks=20, lock_s=30.0)
        self.log, offset = [], 0
        for gap, size, deliverable in sizes:
            self.log.append(Fetched(offset + gap, offset + gap + size - 1, deliverable or size > 3))
            offset += gap + size
        self.real = {n: batch.deliverable for batch in self.log for n in range(batch.first, batch.last + 1)}
        self.end, self.log_start, self.now = offset, 0, 0.0
        self.partition, self.state = SharePartition(0), ShareState(start_offset=0)
        self.model = {n: Record() for n in range(offset)}
        self.accepted = set()

    def kept(self, change):
        if change is not None:
            assert all(batch.first >= change.start_offset for batch in change.batches)
            self.state = self.state.updated(change)

    @rule(member=MEMBERS, most=st.integers(1, 8), strict=st.booleans(), count=st.integers(1, 5))
    def acquire(self, member, most, strict, count):
        offset = self.partition.fetch_offset()
        may = self.partition.may_acquire(self.limits)
        fetched = [batch for batch in self.log if batch.last >= max(offset, self.log_start)][:count]
        found, change = self.partition.acquire(
            member, fetched, self.limits, self.now, fetch_offset=offset, most=most, strict=strict
        )
        given = [n for each in found for n in range(each.first, each.last + 1)]
        assert given == sorted(given)
        assert self.partition.fetch_offset() > offset or not (may and fetched)  # a gap is not read again and again
        assert not given or may
        assert len(given) <= most or not strict
        for each in found:
            for n in range(each.first, each.last + 1):
                record = self.model[n]
                assert self.real[n]  # neither a gap nor aborted
                assert record.state is AVAILABLE, (n, record)
                assert n not in self.accepted
                self.model[n] = Record(ACQUIRED, record.count + 1, member, self.now + self.limits.lock_s)
                assert self.model[n].count == each.delivery_count <= self.limits.delivery_count
        if given and not strict:  # whole batches: nothing that was to be had before the last one is left out
            assert all(self.model[n].state is not AVAILABLE for n in range(offset, given[-1]) if self.real.get(n))
        for n in range(offset, self.partition.end_offset):  # what is not in the log, or aborted, may be done now
            done = n < self.partition.start_offset or self.seen(n).state is ARCHIVED
            if not self.real.get(n) and done and self.model[n].state is AVAILABLE:
                self.model[n].state = ARCHIVED
        self.kept(change)

    @rule(data=st.data(), honest=st.booleans(), other=MEMBERS)
    def acknowledge(self, data, honest, other):
        acquired = [n for n, record in self.model.items() if record.state is ACQUIRED]
        if not acquired:
            return
        first = data.draw(st.sampled_from(acquired))
        member = self.model[first].member if honest else other
        mine = [n for n in acquired if self.model[n].member == member]
        last = data.draw(st.integers(first, min(first + 6, self.partition.end_offset - 1)))
        kinds = data.draw(
            st.lists(st.sampled_from(AckType), min_size=1, max_size=1)
            | st.lists(st.sampled_from(AckType), min_size=last - first + 1, max_size=last - first + 1)
        )
        said = [Acknowledged(first, last, kinds)]
        allowed = all(n in mine or n < self.partition.start_offset for n in range(first, last + 1))
        try:
            self.kept(self.partition.acknowledge(member, said, self.limits, self.now))
        except RequestError:
            assert not allowed
            return
        assert allowed
        for n in range(first, last + 1):
            if n in mine:
                self.apply(n, kinds[0] if len(kinds) == 1 else kinds[n - first])

    def apply(self, n, kind):
        record = self.model[n]
        match kind:
            case AckType.ACCEPT:
                self.model[n] = Record(ACKNOWLEDGED, record.count)
                self.accepted.add(n)
            case AckType.REJECT | AckType.GAP:
                self.model[n] = Record(ARCHIVED, record.count)
            case AckType.RELEASE:
                self.give_back(n)
            case AckType.RENEW:
                record.deadline = self.now + self.limits.lock_s

    def give_back(self, n):
        count = self.model[n].count
        self.model[n] = Record(AVAILABLE if count < self.limits.delivery_count else ARCHIVED, count)

    @rule(member=MEMBERS)
    def leave(self, member):
        self.kept(self.partition.release(member, self.limits))
        for n, record in self.model.items():
            if record.member == member:
                self.give_back(n)

    @rule(seconds=st.sampled_from((1.0, 10.0, 31.0)))
    def wait(self, seconds):
        self.now += seconds
        self.kept(self.partition.expire(self.limits, self.now))
        for n, record in self.model.items():
            if record.deadline <= self.now:
                self.give_back(n)

    @rule(member=MEMBERS, times=st.integers(1, 5))
    def nobody_gets_it_done(self, member, times):
        """The same records are delivered again and again, until they are given up."""
        for _ in range(times):
            self.acquire(member, 8, strict=False, count=2)
            self.wait(31.0)

    @rule(more=st.integers(1, 5))
    def records_are_deleted(self, more):
        self.log_start = min(self.log_start + more, self.end)
        moved = self.partition.start_offset < self.log_start
        assert self.partition.move_start(self.log_start) == moved
        for n in range(self.log_start):
            if self.model[n].state not in FINAL:
                self.model[n] = Record(ARCHIVED)

    @rule()
    def killed(self):
        """What was acknowledged never comes again; what was acquired is to be had at once, its count not above."""
        state = self.state
        self.partition = SharePartition(state.start_offset, state.batches)
        self.partition.move_start(self.log_start)
        for n, record in self.model.items():
            if n >= self.partition.start_offset:
                found = self.seen(n)
                assert found.state is (AVAILABLE if record.state is ACQUIRED else record.state)
                assert found.count <= record.count
                self.model[n] = found

    def seen(self, n):
        """What the partition says of a record."""
        for run in self.partition.runs:
            if run.first <= n <= run.last:
                return Record(run.state, run.delivery_count, run.member_id, run.deadline)
        return Record()

    @invariant()
    def the_same(self):
        partition = self.partition
        place = partition.start_offset
        for run in partition.runs:
            assert run.first == place <= run.last
            place = run.last + 1
        assert place == partition.end_offset
        for n, record in self.model.items():
            if n < partition.start_offset:
                assert record.state in FINAL, n
            elif n >= partition.end_offset:
                assert record == Record(), n
            else:
                assert self.seen(n) == record, n
        assert partition.complete == sum(
            record.state in FINAL for n, record in self.model.items() if n >= partition.start_offset
        )

    @invariant()
    def a_snapshot_says_the_same(self):
        again = SharePartition(self.partition.start_offset, self.partition.kept())
        assert (again.start_offset, again.end_offset) == (self.partition.start_offset, self.partition.end_offset)

    @invariant()
    def nobody_waits_for_ever(self):
        """What is tracked and not done, somebody has or can have."""
        least = min((record.deadline for record in self.model.values()), default=inf)
        assert self.partition.next_deadline() == (None if least == inf else least)


TestAgainstTheModel = Machine.TestCase
