"""OffsetDelete: offsets go, one by one."""

import uuid

from mainstem.wire.errors import Code


def test_offsets_of_a_group_without_members(raw, topic):
    group = uuid.uuid4().hex
    entry = {"partition_index": 0, "committed_offset": 5}
    raw.call(8, 8, group_id=group, topics=[{"name": topic, "partitions": [entry]}])
    asked = [
        {"name": topic, "partitions": [{"partition_index": 0}]},
        {"name": "nowhere", "partitions": [{"partition_index": 0}]},
    ]
    answer = raw.call(47, 0, group_id=group, topics=asked)
    assert answer.error_code is Code.none
    codes = {each.name: [one.error_code for one in each.partitions] for each in answer.topics}
    assert codes == {topic: [Code.none], "nowhere": [Code.unknown_topic_or_partition]}
    assert raw.committed(group, topic) == (-1, Code.none)


def test_a_group_that_is_not_there(raw, topic):
    answer = raw.call(47, 0, group_id="nowhere", topics=[])
    assert answer.error_code is Code.group_id_not_found
    assert raw.call(47, 0, group_id="", topics=[]).error_code is Code.invalid_group_id
