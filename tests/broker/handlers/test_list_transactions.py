"""ListTransactions: transactional ids that pass the filters."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.support.raw import producer_of


@pytest.mark.parametrize("version", range(3))
def test_every_version(raw, topic, version):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    raw.add(name, producer, topic, 0)
    answer = raw.call(66, version, state_filters=["Ongoing", "Sleeping"], producer_id_filters=[producer[0]])
    assert (answer.error_code, answer.unknown_state_filters) == (Code.none, ("Sleeping",))
    assert [(each.transactional_id, each.transaction_state) for each in answer.transaction_states] == [
        (name, "Ongoing")
    ]


def test_a_pattern_that_is_none(raw):
    assert raw.call(66, 2, transactional_id_pattern="(").error_code is Code.invalid_regular_expression
