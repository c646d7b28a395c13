import pytest

from mainstem.client import UnknownTopic
from mainstem.client.append import append
from mainstem.client.partitioner import partition_for
from mainstem.client.topics import end_offsets


def test_keys_choose_their_partition_and_the_ends_come_back(connection, topic):
    keys = [b"key-%d" % number for number in range(20)]
    ends = append(connection, topic, [(key, b"value") for key in keys])
    expected = [partition_for(key, 3) for key in keys]
    assert ends == {partition: expected.count(partition) for partition in set(expected)}
    assert ends.items() <= end_offsets(connection, topic).items()


def test_a_missing_topic_is_named(connection, name):
    with pytest.raises(UnknownTopic, match=name):
        append(connection, name, [(None, b"value")])
