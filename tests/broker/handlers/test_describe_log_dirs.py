"""DescribeLogDirs: the one directory and what each partition takes of it."""

import pytest

from mainstem.wire.errors import Code


@pytest.mark.parametrize("version", range(1, 6))
def test_every_version_tells_sizes(raw, topic, version, mainstem_log):
    raw.produce(topic, b"x" * 1000)
    (directory,) = raw.call(35, version, topics=[{"topic": topic, "partitions": [0, 7]}]).results
    assert (directory.error_code, directory.log_dir) == (Code.none, str(mainstem_log.data))
    ((partition,),) = [each.partitions for each in directory.topics]
    assert partition.partition_size > 1000
    if version >= 4:
        assert directory.total_bytes >= directory.usable_bytes > 0


def test_null_asks_for_all_topics(raw, topic):
    (directory,) = raw.call(35, 4, topics=None).results
    assert topic in [each.name for each in directory.topics]


def test_each_partition_is_told_once(raw, topic):
    asked = [{"topic": topic, "partitions": [0, 0, -1]}, {"topic": "no-such"}, {"topic": topic, "partitions": [0]}]
    (directory,) = raw.call(35, 4, topics=asked).results
    assert [(each.name, [p.partition_index for p in each.partitions]) for each in directory.topics] == [(topic, [0])]
