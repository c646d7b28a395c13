"""What the broker refuses has a code that clients know."""

import pytest

from mainstem.broker import errors
from mainstem.wire.errors import Code, code_of


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UnknownTopicOrPartition, Code.unknown_topic_or_partition),
        (errors.UnknownTopicId, Code.unknown_topic_id),
        (errors.TopicAlreadyExists, Code.topic_already_exists),
        (errors.InvalidTopicName, Code.invalid_topic_exception),
        (errors.InternalTopic, Code.invalid_topic_exception),
        (errors.InvalidPartitions, Code.invalid_partitions),
    ],
)
def test_codes(kind, code):
    assert code_of(kind("x")) is code
