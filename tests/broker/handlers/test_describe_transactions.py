"""DescribeTransactions: how far a transaction has come."""

import uuid

from mainstem.wire.errors import Code
from tests.support.raw import producer_of


def test_an_ongoing_transaction(raw, topic):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name, timeout_ms=5000))
    raw.add(name, producer, topic, 0)
    (found,) = raw.call(65, 0, transactional_ids=[name]).transaction_states
    assert (found.transactional_id, found.transaction_state, found.error_code) == (name, "Ongoing", Code.none)
    assert (found.producer_id, found.producer_epoch) == producer
    assert found.transaction_timeout.total_seconds() == 5
    assert [(each.topic, each.partitions) for each in found.topics] == [(topic, (0,))]


def test_ids_that_nobody_has(raw):
    found = raw.call(65, 0, transactional_ids=["", "nobody"]).transaction_states
    assert [each.error_code for each in found] == [Code.invalid_request, Code.transactional_id_not_found]


def test_what_is_asked_for_many_times_is_told_once(raw):
    found = raw.call(65, 0, transactional_ids=["nobody", "nothing", "nobody"]).transaction_states
    assert [each.transactional_id for each in found] == ["nobody", "nothing"]
