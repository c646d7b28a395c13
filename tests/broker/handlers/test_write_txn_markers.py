"""WriteTxnMarkers: a transaction that hangs is ended by hand."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.support.raw import producer_of


def open_transaction_starts(raw, topic):
    (found,) = raw.call(61, 0, topics=[{"name": topic, "partition_indexes": [0]}]).topics
    return [each.current_txn_start_offset for each in found.partitions[0].active_producers]


@pytest.mark.parametrize("version", [1, 2])
def test_every_version(raw, topic, version):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    raw.produce(topic, b"v", transactional_id=name, producer=producer, sequence=0, version=12)
    assert open_transaction_starts(raw, topic) == [0]
    marker = {
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "transaction_result": False,
        "coordinator_epoch": 0,
        "topics": [{"name": topic, "partition_indexes": [0, 7]}],
    }
    (answer,) = raw.call(27, version, markers=[marker]).markers
    assert answer.producer_id == producer[0]
    codes = {each.partition_index: each.error_code for each in answer.topics[0].partitions}
    assert codes == {0: Code.none, 7: Code.unknown_topic_or_partition}
    assert open_transaction_starts(raw, topic) == [-1]
