"""Settings of topics as they are told and changed."""

import pytest

from mainstem.broker import configs
from mainstem.broker.config import BrokerConfig, ListenerConfig
from mainstem.broker.configs import APPEND, DELETE, SET, SUBTRACT, apply_operations
from mainstem.log import TopicConfig
from mainstem.wire.errors import RequestError


def test_operations_are_applied_in_order_to_what_is_set():
    before = {"retention.ms": "5", "segment.ms": "6"}
    after = apply_operations(before, [("retention.ms", SET, "7"), ("segment.ms", DELETE, None)])
    assert after == {"retention.ms": "7"}
    assert before == {"retention.ms": "5", "segment.ms": "6"}


@pytest.mark.parametrize(
    ("present", "operation", "value", "result"),
    [
        (None, APPEND, "compact", "delete,compact"),
        ("compact", APPEND, "compact", "compact"),
        ("compact,delete", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "compact", ""),
    ],
)
def test_lists(present, operation, value, result):
    before = {} if present is None else {"cleanup.policy": present}
    assert apply_operations(before, [("cleanup.policy", operation, value)]) == {"cleanup.policy": result}


@pytest.mark.parametrize(
    "change", [("retention.ms", APPEND, "1"), ("retention.ms", SET, None), ("retention.ms", 7, "1")]
)
def test_what_cannot_be_applied(change):
    with pytest.raises(RequestError):
        apply_operations({}, [change])


def test_a_setting_may_be_altered_once():
    with pytest.raises(RequestError):
        apply_operations({}, [("a", SET, "1"), ("a", SET, "2")])


def test_sources_of_a_topics_settings():
    overrides = {"retention.ms": "5"}
    told = {each["name"]: each for each in configs.describe_topic_configs(TopicConfig.from_kafka(overrides), overrides)}
    assert told["retention.ms"]["config_source"] == configs.FROM_TOPIC
    assert told["segment.ms"]["config_source"] == configs.FROM_DEFAULT
    synonyms = {name: [(each["name"], each["value"]) for each in one["synonyms"]] for name, one in told.items()}
    assert synonyms["retention.bytes"] == [("log.retention.bytes", "-1")]  # a default is the broker's
    # Kafka's default is `log.retention.hours`: kafkajs's tests look for none. Nor have those that are of topics alone.
    assert synonyms["retention.ms"] == [("retention.ms", "5")]
    without = {name for name, each in synonyms.items() if not each}
    assert without == {
        "flush.ms",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "segment.jitter.ms",
        "segment.ms",
    }


class NothingSet:
    def synonyms(self, _: str) -> list:
        return []


def test_the_brokers_settings_have_kafkas_names():
    described = configs.describe_broker_configs(BrokerConfig(num_partitions=3), NothingSet())
    told = {each["name"]: each["value"] for each in described}
    assert told["num.partitions"] == "3"
    assert told["auto.create.topics.enable"] == "true"
    assert not any("_" in name for name in told)


def test_what_tools_for_kafka_ask_of_a_broker():
    listener = ListenerConfig(host="127.0.0.1", port=9093, advertised_host="log.example", advertised_port=443)
    config = BrokerConfig(node_id=7, port=9092, listeners={"outside": listener})
    told = {each["name"]: each for each in configs.describe_broker_configs(config, NothingSet())}
    assert told["broker.id"]["value"] == told["node.id"]["value"] == "7"
    assert told["advertised.listeners"]["value"] == "BROKER://127.0.0.1:9092,OUTSIDE://log.example:443"
    assert told["advertised.listeners"]["config_source"] == configs.FROM_START
    assert told["advertised.listeners"]["read_only"]
    assert told["delete.topic.enable"]["value"] == "true"
    assert told["transaction.state.log.replication.factor"]["value"] == "1"
