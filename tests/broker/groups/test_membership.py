from mainstem.broker.groups.classic.group import ClassicGroup
from mainstem.broker.groups.config import ClassicGroupConfig, ConsumerGroupConfig
from mainstem.broker.groups.consumer.group import ConsumerGroup
from mainstem.broker.groups.records import GroupKey
from mainstem.core import ManualClock
from tests.support.topics import FakeTopics


def test_every_kind_of_group_says_what_it_is_and_how_it_is_forgotten():
    classic = ClassicGroup("g", ManualClock(), ClassicGroupConfig())
    consumer = ConsumerGroup("g", ManualClock(), FakeTopics(), ConsumerGroupConfig)
    assert [(group.kind, group.state_name, group.is_empty) for group in (classic, consumer)] == [
        ("classic", "Empty", True),
        ("consumer", "Empty", True),
    ]
    assert not classic.is_expected
    assert not consumer.is_expected
    assert classic.tombstones() == [], "nobody has ever joined: there is no record"
    classic.protocol_type = "consumer"
    assert classic.tombstones() == [(GroupKey("g"), None)]
    classic.check_fetch("anybody", 7)
