"""AddPartitionsToTxn: all partitions or none."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.support.raw import RawClient, codes_of, producer_of


def fields(name, producer, topic, *partitions):
    return {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": producer[0],
        "v3_and_below_producer_epoch": producer[1],
        "v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}],
    }


@pytest.mark.parametrize("version", range(4))
def test_every_version(raw, topic, version):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    assert codes_of(raw.call(24, version, **fields(name, producer, topic, 0))) == set()
    (state,) = raw.call(65, 0, transactional_ids=[name]).transaction_states
    assert [(each.topic, each.partitions) for each in state.topics] == [(topic, (0,))]
    fenced = codes_of(raw.call(24, version, **fields(name, (producer[0], 9), topic, 0)))
    assert fenced == {Code.producer_fenced if version >= 2 else Code.invalid_producer_epoch}


def test_an_id_is_not_empty(raw, topic):
    assert codes_of(raw.call(24, 3, **fields("", producer_of(raw.init(None)), topic, 0))) == {Code.invalid_request}


def test_one_that_does_not_exist_spoils_all(raw, topic):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    answer = raw.call(24, 3, **fields(name, producer, topic, 0, 5))
    (found,) = answer.results_by_topic_v3_and_below
    codes = {each.partition_index: each.partition_error_code for each in found.results_by_partition}
    assert codes == {0: Code.operation_not_attempted, 5: Code.unknown_topic_or_partition}
    (state,) = raw.call(65, 0, transactional_ids=[name + "x"]).transaction_states
    assert state.error_code is Code.transactional_id_not_found


def test_the_versions_that_brokers_ask_each_other_in_end_the_connection(mainstem_log):
    for version in (4, 5):
        with RawClient(mainstem_log.bootstrap) as raw, pytest.raises(ConnectionError):
            raw.unknown_version(24, version, answer_version=3)


def test_nobody_writes_to_the_topics_of_the_coordinators(raw, topic):
    """Each transaction left a marker there."""
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    asked = fields(name, producer, topic, 0)
    asked["v3_and_below_topics"].append({"name": "__transaction_state", "partitions": [0]})
    answer = raw.call(24, 3, **asked)
    codes = {each.name: codes_of(each.results_by_partition) for each in answer.results_by_topic_v3_and_below}
    assert codes == {topic: {Code.operation_not_attempted}, "__transaction_state": {Code.topic_authorization_failed}}
    (state,) = raw.call(65, 0, transactional_ids=[name]).transaction_states
    assert state.topics == ()
