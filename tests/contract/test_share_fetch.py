"""ShareFetch and ShareAcknowledge (KIP-932), request by request: our answers and Apache Kafka's are the same.

Every expectation here was met by Apache Kafka 4.3.0 (`pytest --kafka`).
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from uuid import UUID

import pytest

from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code
from tests.contract.clients import Log
from tests.contract.test_share_groups import Group as Membership
from tests.support.raw import producer_of
from tests.support.routed import RoutedClient
from tests.support.sharing import ACCEPT, GAP, REJECT, RELEASE, RENEW, ShareMember, records_of

OK = Code.none


@pytest.fixture
def raw(log: Log) -> Iterator[RoutedClient]:
    with RoutedClient(log.bootstrap) as client:
        client.find_coordinators("any")
        yield client


class Group(Membership):
    """A group that begins at the start of a topic with one partition, whose only heartbeat has been sent."""

    partitions = 1

    def __init__(self, raw, name, stack, **settings):
        super().__init__(raw, name)
        self._stack = stack
        for key, value in {"auto.offset.reset": "earliest", **settings}.items():
            self.set(f"share.{key.replace('_', '.')}", value)
        self.joined("starter", 4)

    def member(self, member_id=None):
        leader = self.raw.call(3, 12, topics=[{"topic_id": None, "name": self.name}]).topics[0].partitions[0].leader_id
        client = self._stack.enter_context(self.raw.brokers[leader].another())
        return ShareMember(client, self.name, self.topic_id, member_id)

    def produce(self, *values, partition=0, batch=None):
        """In batches of `batch` records; all in one without."""
        records = [Record(0, int(time.time() * 1000), b"k", value) for value in values]
        for first in range(0, len(records), batch or len(records)):
            data = build_batch(records[first : first + (batch or len(records))])
            topic = {"name": self.name, "partition_data": [{"index": partition, "records": data}]}
            answer = self.raw.settled(0, 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=[topic])
            assert answer.responses[0].partition_responses[0].error_code == OK


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def group(raw, name, stack):
    return Group(raw, name, stack)


# --- fetching ---------------------------------------------------------------------------------------------------------


def test_a_member_gets_records_once(group):
    group.produce(b"a", b"b", b"c")
    first, second = group.member(), group.member()
    assert first.acquired(0, until=3) == [(0, 2, 1)]
    assert second.fetch(0, wait=200) in ({}, {0: (OK, [], [])})
    assert first.acknowledge((0, 2, ACCEPT)) == [OK]
    assert first.last.acquisition_lock_timeout.total_seconds() == 30
    group.produce(b"d")
    assert second.acquired(until=1) == [(3, 3, 1)]
    assert second.last.acquisition_lock_timeout.total_seconds() == 30


def test_what_a_member_says_of_itsrecords_of(group):
    group.produce(*(b"%d" % n for n in range(8)))
    first, second = group.member(), group.member()
    assert first.acquired(0, until=8) == [(0, 7, 1)]
    assert first.acknowledge((0, 0, ACCEPT), (1, 3, RELEASE, REJECT, GAP)) == [OK]
    assert second.acquired(0) == [(1, 1, 2)]
    assert first.acknowledge((4, 7, RELEASE)) == [OK]
    assert second.acquired() == [(4, 7, 2)]
    assert second.acknowledge((1, 1, ACCEPT), (4, 7, ACCEPT)) == [OK]
    group.produce(b"more")
    assert first.acquired() == [(8, 8, 1)]


def test_acknowledgements_that_make_no_sense(group):
    group.produce(*(b"%d" % n for n in range(8)))
    first, second = group.member(), group.member()
    first.acquired(0, until=8)
    second.fetch(0)
    for wrong in (
        [(3, 2, ACCEPT)],
        [(4, 5, ACCEPT), (0, 1, ACCEPT)],
        [(0, 3, ACCEPT, ACCEPT)],
        [(0, 3)],
        [(0, 0, 5)],
        [(0, 0, -1)],
        [(0, 0, RENEW)],
        [(0, 3, ACCEPT), (2, 4, ACCEPT)],
    ):
        assert first.acknowledge(*wrong) == [Code.invalid_request], wrong
    assert first.acknowledge((0, 2, ACCEPT), (2, 4, ACCEPT)) == [Code.invalid_record_state]
    assert first.acknowledge((0, 8, ACCEPT)) == [Code.invalid_request]
    assert first.acknowledge((100, 100, ACCEPT)) == [Code.invalid_request]
    assert second.acknowledge((0, 0, ACCEPT)) == [Code.invalid_record_state]
    assert first.acknowledge((0, 3, ACCEPT)) == [OK]
    assert first.acknowledge((5, 5, RELEASE)) == [OK]
    assert first.acknowledge((4, 6, ACCEPT)) == [Code.invalid_record_state]
    assert first.acknowledge((4, 4, ACCEPT), (6, 7, REJECT)) == [OK]
    assert first.acknowledge((0, 3, ACCEPT)) == [OK], "what is below the start is done"
    assert second.acquired() == [(5, 5, 2)]


def test_acknowledgements_come_with_a_fetch(group, log):
    group.produce(b"a", b"b")
    member = group.member()
    assert member.fetch(0, acks={0: [(0, 0, ACCEPT)]}) is Code.invalid_request
    member.acquired(0, until=2)
    group.produce(b"c")
    got = member.fetch(acks={0: [(0, 0, ACCEPT), (1, 1, RELEASE)]}, wait=3_000)[0][1]
    assert member.acknowledged_on_fetch() == {0: OK}
    if log.name == "kafka":  # it lets go when that is stored, which may be after the fetch
        got += [] if len(got) == 2 else member.acquired()
    assert sorted(got) == [(1, 1, 2), (2, 2, 1)]
    found = member.fetch(acks={0: [(0, 1, ACCEPT), (7, 7, ACCEPT)]})
    assert (found[0], member.acknowledged_on_fetch()) == ((OK, [], []), {0: Code.invalid_request})
    assert member.fetch(epoch=-1, acks={0: [(1, 2, ACCEPT)]})[0] == (OK, [], [])
    assert member.acknowledged_on_fetch() == {0: OK}


def test_a_batch_is_taken_whole_or_no_more_than_asked_for(group):
    group.produce(*(b"%d" % n for n in range(10)), batch=5)
    whole, strict = group.member(), group.member()
    assert whole.acquired(0, records=2, until=2) == [(0, 4, 1)]
    assert strict.acquired(0, records=2, until=2, share_acquire_mode=1) == [(5, 6, 1)]
    assert strict.acquired(records=2, until=2, share_acquire_mode=1) == [(7, 8, 1)]
    assert whole.acquired(records=2) == [(9, 9, 1)]


def test_batches_of_acquiredrecords_of(group):
    group.produce(*(b"%d" % n for n in range(12)), batch=3)
    member = group.member()
    assert member.acquired(0, until=12, batch=4) == [(0, 5, 1), (6, 11, 1)]


def test_versions_without_the_later_fields(group):
    group.produce(b"a", b"b")
    member = group.member()
    assert member.acquired(0, until=2, version=1) == [(0, 1, 1)]
    assert member.acknowledge((0, 0, RENEW), version=1) == [Code.invalid_request]
    assert member.acknowledge((0, 1, ACCEPT), version=1) == [OK]


def test_a_fetch_waits_for_records(group):
    member = group.member()
    member.fetch(0)
    started = time.monotonic()
    assert member.fetch(wait=500) == {}
    assert 0.4 < time.monotonic() - started < 5
    request = {"max_wait": 20_000, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
    member.client.send(
        78, 2, group_id=member.group, member_id=member.member_id, share_session_epoch=member.epoch, **request
    )
    time.sleep(0.3)
    started = time.monotonic()
    group.produce(b"a")
    found = member.client.receive(78, 2).responses[0].partitions[0]
    assert time.monotonic() - started < 10
    assert [record.value for record in records_of(found.records)] == [b"a"]


def test_a_fetch_gets_what_another_member_lets_go_meanwhile(group, log):
    group.produce(b"a", b"b")
    first, second = group.member(), group.member()
    first.acquired(0, until=2)
    second.fetch(0)
    wait = 2_000 if log.name == "kafka" else 20_000  # Kafka 4.3.0 looks again when the time is up
    request = {"max_wait": wait, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
    for let_go in (lambda: first.acknowledge((1, 1, RELEASE)), lambda: first.acknowledge(epoch=-1)):
        second.client.send(
            78, 2, group_id=second.group, member_id=second.member_id, share_session_epoch=second.epoch, **request
        )
        second.epoch += 1
        time.sleep(0.2)
        started = time.monotonic()
        let_go()
        acquired = second.client.receive(78, 2).responses[0].partitions[0].acquired_records
        assert time.monotonic() - started < 10
        assert len(acquired) == 1


def test_more_time_for_records(group):
    group.produce(b"a", b"b")
    member = group.member()
    assert member.acquired(0, until=2) == [(0, 1, 1)]
    assert member.acknowledge((0, 0, RENEW), is_renew_ack=True) == [OK]
    assert member.fetch(acks={0: [(0, 0, RENEW)]}, is_renew_ack=True) is Code.invalid_request
    nothing = {"records": 0, "max_bytes": 0, "min_bytes": 0, "wait": 0}
    found = member.fetch(acks={0: [(0, 0, RENEW), (1, 1, RELEASE)]}, is_renew_ack=True, **nothing)
    assert (found, member.acknowledged_on_fetch()) == ({0: (OK, [], [])}, {0: OK})
    assert member.acquired() == [(1, 1, 2)]
    group.set("share.renew.acknowledge.enable", "false")
    assert member.acknowledge((0, 0, RENEW), is_renew_ack=True) == [Code.invalid_record_state]
    assert member.acknowledge((0, 1, ACCEPT)) == [OK]


def test_records_are_given_up_after_so_many_deliveries(group):
    group.set("share.delivery.count.limit", "2")
    group.produce(b"a", b"b", batch=1)
    member = group.member()
    assert member.acquired(0, until=2) == [(0, 1, 1)]
    assert member.acknowledge((0, 1, RELEASE)) == [OK]
    assert member.acquired(until=2) == [(0, 1, 2)]
    assert member.acknowledge((0, 0, RELEASE), (1, 1, RELEASE)) == [OK]
    assert member.fetch(wait=300) == {}
    group.produce(b"c")
    assert member.acquired() == [(2, 2, 1)]


def test_where_a_group_begins(raw, name, stack):
    group = Group(raw, name, stack, auto_offset_reset="latest")
    group.produce(b"before")
    member = group.member()
    assert member.fetch(0) in ({}, {0: (OK, [], [])})
    group.produce(b"after")
    assert member.acquired() == [(1, 1, 1)]
    by_duration = Group(raw, f"{name}d", stack, auto_offset_reset="by_duration:PT1H")
    by_duration.produce(b"now")
    assert by_duration.member().acquired(0) == [(0, 0, 1)]


def test_records_of_transactions(raw, name, stack):
    group = Group(raw, name, stack, isolation_level="read_committed")
    producer = producer_of(raw.init(name, version=5))
    raw.produce(name, b"aborted", transactional_id=name, producer=producer, sequence=0, version=12)
    member = group.member()
    assert member.fetch(0, wait=300) in ({}, {0: (OK, [], [])})
    producer = producer_of(raw.end(name, producer, commit=False, version=5))
    raw.produce(name, b"committed", transactional_id=name, producer=producer, sequence=0, version=12)
    producer = producer_of(raw.end(name, producer, commit=True, version=5))
    got = member.acquired(until=3)
    assert [offset for first, last, _ in got for offset in range(first, last + 1)] == [1, 2, 3], "markers are delivered"
    assert member.acknowledge((1, 1, GAP), (2, 2, ACCEPT), (3, 3, GAP)) == [OK]
    all_of_it = Group(raw, f"{name}u", stack)
    producer = producer_of(raw.init(name, version=5))
    raw.produce(f"{name}u", b"open", transactional_id=name, producer=producer, sequence=0, version=12)
    assert all_of_it.member().acquired(0) == [(0, 0, 1)]
    raw.end(name, producer, commit=False, version=5)


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_epochs_of_a_session(group):
    group.produce(b"a")
    member = group.member()
    assert member.fetch(0, epoch=1) is Code.share_session_not_found
    assert member.fetch(epoch=-1) is Code.share_session_not_found
    assert member.acknowledge((0, 0, ACCEPT), epoch=1) is Code.share_session_not_found
    assert member.acknowledge((0, 0, ACCEPT), epoch=0) is Code.invalid_share_session_epoch
    member.acquired(0)
    epoch = member.epoch
    assert member.fetch(epoch=epoch + 1) is Code.invalid_share_session_epoch
    assert member.fetch(epoch=epoch + 7) is Code.invalid_share_session_epoch
    assert member.acknowledge((0, 0, ACCEPT), epoch=0) is Code.invalid_share_session_epoch
    assert member.acknowledge((0, 0, ACCEPT), epoch=epoch) == [OK]
    assert member.fetch(epoch=epoch) is Code.invalid_share_session_epoch
    assert isinstance(member.fetch(epoch=epoch + 1), dict)
    assert isinstance(member.fetch(0, epoch=0), dict), "a new session"
    assert member.acknowledge(epoch=-1) == []
    assert member.acknowledge(epoch=-1) is Code.share_session_not_found


@pytest.mark.parametrize("how", ["fetch", "acknowledge", "disconnect"])
def test_the_end_of_a_session_lets_go_what_its_member_has(group, how):
    group.produce(*(b"%d" % n for n in range(4)), batch=1)
    first, second = group.member(), group.member()
    first.acquired(0, until=4)
    if how == "fetch":
        assert first.fetch(acks={0: [(0, 1, ACCEPT)]}, epoch=-1)[0] == (OK, [], [])
    elif how == "acknowledge":
        assert first.acknowledge((0, 1, ACCEPT), epoch=-1) == [OK]
    else:
        assert first.acknowledge((0, 1, ACCEPT)) == [OK]
        first.client.close()
    assert second.acquired(0, until=2) in ([(2, 2, 2), (3, 3, 2)], [(2, 3, 2)])


def test_partitions_are_added_to_a_session_and_forgotten(group):
    group.produce(b"a", partition=0)
    group.produce(b"b", partition=1)
    member = group.member()
    assert member.acquired(0) == [(0, 0, 1)]
    found = member.fetch(1, wait=5_000)
    assert found[1] == (OK, [(0, 0, 1)], [b"b"])
    group.produce(b"c", partition=0)
    assert member.fetch(forget=[0], wait=500) == {}
    assert member.fetch(0, wait=5_000)[0] == (OK, [(1, 1, 1)], [b"c"])


# --- what is not there ------------------------------------------------------------------------------------------------


def test_what_is_not_there(group, log):
    member = group.member()
    if log.name == "mainstem":  # Kafka 4.3.0: UNKNOWN_SERVER_ERROR for the whole request
        assert member.fetch(0, topic_id=UUID(int=7)) == {0: (Code.unknown_topic_id, [], [])}
    assert member.fetch(9, epoch=0)[9][0] is Code.unknown_topic_or_partition
    assert member.acknowledge((0, 0, ACCEPT), topic_id=UUID(int=7)) == [Code.unknown_topic_id]
    assert member.acknowledge((0, 0, ACCEPT), partition=9) == [Code.unknown_topic_or_partition]
    other = group.member()
    found = other.fetch(0, group_id=f"{group.name}-other", wait=300)
    assert found in ({}, {0: (Code.unknown_server_error, [], [])})
    member.member_id = ""
    assert member.fetch(0, epoch=0) is Code.invalid_request
    member.member_id = "m" * 37
    assert member.fetch(0, epoch=0) is Code.invalid_request
    assert member.acknowledge((0, 0, ACCEPT), epoch=1) is Code.invalid_request
