"""OffsetForLeaderEpoch: where an epoch ended."""

import pytest

from mainstem.wire.errors import Code


def ask(raw, topic, epoch, *, version=4, current=-1, partition=0):
    asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    answer = raw.call(23, version, replica_id=-1, topics=[{"topic": topic, "partitions": [asked]}])
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_current_epoch_ends_at_the_log_end(raw, topic, version):
    for _ in range(3):
        raw.produce(topic, b"x")
    epoch = raw.call(3, 9, topics=[{"name": topic}]).topics[0].partitions[0].leader_epoch
    found = ask(raw, topic, epoch, version=version)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (Code.none, epoch, 3)


def test_the_first_epoch_is_known_before_anything_is_appended(raw, topic):
    found = ask(raw, topic, 0, current=0)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (Code.none, 0, 0)


def test_errors(raw, topic):
    raw.produce(topic, b"x")
    assert ask(raw, topic, 0, current=99).error_code is Code.unknown_leader_epoch
    assert ask(raw, topic, 0, current=-2).error_code is Code.fenced_leader_epoch
    assert ask(raw, topic, 0, partition=9).error_code is Code.unknown_topic_or_partition
    for epoch, found in ((99, (-1, -1)), (-1, (-1, -1)), (-2, (-2, 0))):
        answer = ask(raw, topic, epoch)
        assert (answer.leader_epoch, answer.end_offset) == found
