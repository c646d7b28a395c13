import pytest

from mainstem.broker.topic_settings import check_taken
from mainstem.log import InvalidTopicConfig, TopicConfig


def check(config: dict[str, str]) -> None:
    check_taken(config, TopicConfig.from_kafka(config))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"compression.gzip.level": "-1"},
        {"compression.gzip.level": "9"},
        {"leader.replication.throttled.replicas": "*"},
        {"leader.replication.throttled.replicas": ""},
        {"follower.replication.throttled.replicas": "0:1, 12:3"},
        {"remote.storage.enable": "false", "remote.log.copy.disable": "true"},
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"},
    ],
)
def test_what_kafka_takes_is_taken(config):
    check(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"compression.gzip.level": "0"}, "^Invalid value 0 for configuration compression.gzip.level: "),
        ({"leader.replication.throttled.replicas": "foo"}, "^Invalid value foo for configuration leader.replication"),
        ({"follower.replication.throttled.replicas": "0:1,*"}, r"^Invalid value 0:1,\* for configuration follower"),
        ({"remote.storage.enable": "true"}, "^Tiered Storage functionality is disabled"),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            r"^conflict topic config setting min.compaction.lag.ms \(10\) > max.compaction.lag.ms \(5\)$",
        ),
    ],
)
def test_what_kafka_refuses_is_refused(config, message):
    """It was taken, and the topic could not have moved."""
    with pytest.raises(InvalidTopicConfig, match=message):
        check(config)


@pytest.mark.parametrize(
    "config",
    [
        {"retention.ms": "1e3"},
        {"segment.bytes": "2.0e6"},
        {"retention.ms": "1_000"},
        {"preallocate": "1"},
        {"unclean.leader.election.enable": "yes"},
        {"min.insync.replicas": "9223372036854775808"},
    ],
)
def test_numbers_and_booleans_are_written_as_kafka_reads_them(config):
    with pytest.raises(InvalidTopicConfig, match=r"^Invalid value "):
        check(config)


def test_what_was_taken_before_is_not_asked_how_it_is_written():
    before = {"retention.ms": "1e3", "min.insync.replicas": "9223372036854775807"}
    after = before | {"retention.bytes": "5", "preallocate": "TRUE", "segment.ms": " 7 "}
    check_taken(after, TopicConfig.from_kafka(after), before=before)
