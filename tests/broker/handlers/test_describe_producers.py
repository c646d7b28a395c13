"""DescribeProducers: what a partition remembers."""

import uuid

from mainstem.wire.errors import Code
from tests.support.raw import producer_of


def test_where_an_open_transaction_begins(raw, topic):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    raw.produce(topic, b"v", transactional_id=name, producer=producer, sequence=0, version=12)
    (found,) = raw.call(61, 0, topics=[{"name": topic, "partition_indexes": [0, 4]}]).topics
    here, missing = found.partitions
    (one,) = here.active_producers
    assert (one.producer_id, one.producer_epoch, one.last_sequence, one.current_txn_start_offset) == (*producer, 0, 0)
    assert missing.error_code is Code.unknown_topic_or_partition


def test_what_is_asked_for_many_times_is_told_once(raw, topic):
    asked = [{"name": topic, "partition_indexes": [0, 0]}, {"name": topic, "partition_indexes": [4, 0]}]
    (found,) = raw.call(61, 0, topics=asked).topics
    assert [each.partition_index for each in found.partitions] == [0, 4]
