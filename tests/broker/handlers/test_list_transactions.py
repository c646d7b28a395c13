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
    answer = raw.call(66, version, state_filters=["Ongoing", "Sleeping", "Dead"], producer_id_filters=[producer[0]])
    assert (answer.error_code, answer.unknown_state_filters) == (Code.none, ("Sleeping",))
    assert [(each.transactional_id, each.transaction_state) for each in answer.transaction_states] == [
        (name, "Ongoing")
    ]


def test_by_duration_those_that_began_before_and_as_in_kafka_those_that_never_did(raw, topic):
    idle, open_now, ended = names = [uuid.uuid4().hex for _ in range(3)]
    raw.init(idle)
    for name in (open_now, ended):
        producer = producer_of(raw.init(name))
        raw.add(name, producer, topic, 0)
    raw.end(ended, producer, commit=True)
    for duration, expected in ((-1, set(names)), (3_600_000, {idle})):
        found = raw.call(66, 1, duration_filter=duration).transaction_states
        assert {each.transactional_id for each in found} & set(names) == expected


def test_a_pattern_that_is_none(raw):
    for pattern in ("(", r"(a)\1"):  # RE2 has no references to what was matched
        assert raw.call(66, 2, transactional_id_pattern=pattern).error_code is Code.invalid_regular_expression


def test_a_pattern_takes_time_that_grows_with_the_text_alone(raw):
    """Python's `re` doubled its time with each letter: 40 of them stopped the log for good."""
    name = "a" * 40 + "!"
    raw.init(name)
    answer = raw.call(66, 2, transactional_id_pattern="(a+)+")
    assert (answer.error_code, answer.transaction_states) == (Code.none, ())
    answer = raw.call(66, 2, transactional_id_pattern="(a+)+!")
    assert [each.transactional_id for each in answer.transaction_states] == [name]


def test_a_pattern_is_for_the_whole_id_and_beside_the_other_filters(raw):
    one, other = (f"{uuid.uuid4().hex}-{place}" for place in ("berlin", "bern"))
    producer = producer_of(raw.init(one))
    raw.init(other)
    for filters, expected in (({}, {one, other}), ({"producer_id_filters": [producer[0]]}, {one})):
        answer = raw.call(66, 2, transactional_id_pattern=".*-ber.+", **filters)
        assert {each.transactional_id for each in answer.transaction_states} == expected
    assert raw.call(66, 2, transactional_id_pattern="-ber").transaction_states == ()
