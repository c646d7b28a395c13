from mainstem.broker.config import BrokerConfig
from mainstem.broker.groups.config import ClassicGroupConfig, ConsumerGroupConfig


def test_the_defaults_are_those_of_the_broker():
    broker, classic, consumer = BrokerConfig(), ClassicGroupConfig(), ConsumerGroupConfig()
    assert classic.initial_rebalance_delay_ms == broker.group_initial_rebalance_delay_ms
    assert (classic.min_session_timeout_ms, classic.max_session_timeout_ms) == (
        broker.group_min_session_timeout_ms,
        broker.group_max_session_timeout_ms,
    )
    assert consumer.session_timeout_ms == broker.group_consumer_session_timeout_ms
    assert consumer.heartbeat_interval_ms == broker.group_consumer_heartbeat_interval_ms
    assert consumer.assignment_interval_ms == broker.group_consumer_assignment_interval_ms
