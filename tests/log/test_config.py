import pytest

from mainstem.core.config import BadSetting, convert
from mainstem.log import InvalidTopicConfig, LogConfig, TopicConfig
from mainstem.log.config import DAY_MS


def test_kafkas_names_and_texts():
    config = TopicConfig.from_kafka(
        {"cleanup.policy": "compact, delete", "retention.ms": "-1", "segment.bytes": "1000"}
    )
    assert (config.compacts, config.deletes) == (True, True)
    assert (config.retention_ms, config.segment_bytes) == (-1, 1000)
    assert config.to_kafka()["cleanup.policy"] == "compact,delete"
    assert config.to_kafka()["unclean.leader.election.enable"] == "false"


def test_what_to_kafka_says_from_kafka_takes():
    config = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.25, preallocate=True)
    assert TopicConfig.from_kafka(config.to_kafka()) == config


def test_settings_are_laid_over_a_base():
    base = TopicConfig(retention_ms=5)
    assert TopicConfig.from_kafka({"segment.ms": "7"}, base=base) == TopicConfig(retention_ms=5, segment_ms=7)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("segmnt.bytes", "1", "Unknown topic config name: segmnt.bytes"),
        ("segment_bytes", "1", "Unknown topic config name: segment_bytes"),
        ("segment.bytes", "many", "Invalid value many for configuration segment.bytes: expected `int`$"),
        ("segment.bytes", "1", "Invalid value 1 for configuration segment.bytes: expected `int` >= 14$"),
        (
            "cleanup.policy",
            "compress",
            "Invalid value compress for configuration cleanup.policy: expected delete, compact, or compact,delete$",
        ),
        ("compression.type", "zip", "for configuration compression.type: expected one of producer, .*, lz4, zstd$"),
        ("message.timestamp.type", "createtime", "message.timestamp.type: expected one of CreateTime, LogAppendTime$"),
        ("min.cleanable.dirty.ratio", "1.5", "min.cleanable.dirty.ratio: expected `float` <= 1.0$"),
    ],
)
def test_a_wrong_setting_is_named(name, value, message):
    with pytest.raises(InvalidTopicConfig, match=message):
        TopicConfig.from_kafka({name: value})


def test_an_unknown_setting_is_told_with_what_there_is():
    """The hint named a file of the repository, which a user of the wheel does not have."""
    with pytest.raises(InvalidTopicConfig) as near:
        TopicConfig.from_kafka({"retention_ms": "1"})
    assert near.value.hint == "did you mean retention.ms?"
    with pytest.raises(InvalidTopicConfig) as far:
        TopicConfig.from_kafka({"xyz": "1"})
    assert "cleanup.policy, " in far.value.hint
    assert "segment.bytes, " in far.value.hint


def test_an_append_is_synced_unless_the_topic_says_otherwise():
    assert TopicConfig().syncs_every_append
    assert TopicConfig(flush_messages=100, flush_ms=0).syncs_every_append
    assert not TopicConfig(flush_messages=100).syncs_every_append
    assert not TopicConfig(flush_messages=100, flush_ms=1_000).syncs_every_append


def test_defaults_are_kafkas_but_for_the_flush():
    config = TopicConfig()
    assert (config.retention_ms, config.segment_bytes, config.max_message_bytes) == (7 * DAY_MS, 2**30, 1_048_588)
    assert config.flush_messages == 1


def test_a_directory_setting_is_checked():
    assert convert({"read_threads": "8"}, LogConfig, where="mainstem.toml: [log]").read_threads == 8
    with pytest.raises(BadSetting, match=r"mainstem.toml: \[log\]: .*read_thread"):
        convert({"read_thread": 8}, LogConfig, where="mainstem.toml: [log]")


def test_a_setting_of_topics_is_told_as_that():
    with pytest.raises(BadSetting) as caught:
        convert({"retention_ms": 1}, LogConfig, where="mainstem.toml")
    assert caught.value.hint == "it is a topic's: [broker.topic_defaults] says what they have by default"
