"""AlterConfigs: all that is set for a topic is replaced."""

import uuid

import pytest

from mainstem.wire.errors import Code


def alter(raw, name, configs, *, kind=2, version=2, **fields):
    asked = {
        "resource_type": kind,
        "resource_name": name,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    return raw.call(33, version, resources=[asked], **fields).responses[0]


def settings(raw, topic):
    asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    found = raw.call(32, 4, resources=[asked]).results[0].configs
    return {each.name: each.value for each in found if each.config_source == 1}


@pytest.mark.parametrize("version", range(3))
def test_every_version_replaces(raw, topic, version):
    assert alter(raw, topic, {"retention.ms": "5", "segment.ms": "7"}, version=version).error_code is Code.none
    assert settings(raw, topic) == {"retention.ms": "5", "segment.ms": "7"}
    alter(raw, topic, {"segment.ms": "8"}, version=version)
    assert settings(raw, topic) == {"segment.ms": "8"}


def test_a_dry_run_checks_and_changes_nothing(raw, topic):
    assert alter(raw, topic, {"retention.ms": "5"}, validate_only=True).error_code is Code.none
    assert alter(raw, topic, {"retention.ms": "x"}, validate_only=True).error_code is Code.invalid_config
    assert settings(raw, topic) == {}


def test_what_is_refused(raw, topic):
    assert alter(raw, topic, {"no.such": "1"}).error_code is Code.invalid_config
    assert alter(raw, "no-such-topic", {}).error_code is Code.unknown_topic_or_partition
    assert alter(raw, "77", {}, kind=4).error_code is Code.invalid_request
    assert alter(raw, "1", {}, kind=8).error_code is Code.invalid_request


def test_a_setting_that_is_named_twice_is_refused(raw, topic):
    twice = [{"name": "retention.ms", "value": value} for value in ("5", "6")]
    (refused,) = raw.call(33, 2, resources=[{"resource_type": 2, "resource_name": topic, "configs": twice}]).responses
    assert refused.error_code is Code.invalid_request
    assert refused.error_message == "Error due to duplicate config keys: retention.ms"
    assert settings(raw, topic) == {}


def test_a_topic_that_is_named_twice_is_refused_and_others_are_not(raw, topic):
    raw.create_topic(other := uuid.uuid4().hex)
    asked = [
        {"resource_type": 2, "resource_name": name, "configs": [{"name": "retention.ms", "value": value}]}
        for name, value in ((topic, "5"), (other, "6"), (topic, "7"))
    ]
    answer = raw.call(33, 2, resources=asked)
    assert [each.error_code for each in answer.responses] == [Code.invalid_request, Code.none, Code.invalid_request]
    assert (settings(raw, topic), settings(raw, other)) == ({}, {"retention.ms": "6"})


def test_a_null_value_means_the_default(raw, topic):
    alter(raw, topic, {"retention.ms": "5"})
    assert alter(raw, topic, {"retention.ms": None, "segment.bytes": "1000"}).error_code is Code.none
    assert settings(raw, topic) == {"segment.bytes": "1000"}  # Kafka takes no less than a megabyte
