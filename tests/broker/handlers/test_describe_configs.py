"""DescribeConfigs: every setting, its value and where it comes from."""

import pytest

from mainstem.broker.dynamic_settings import TOPIC_DEFAULTS, WITHOUT_EFFECT
from mainstem.log import TopicConfig
from mainstem.wire.errors import Code
from tests.support.repository import ROOT

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


def describe(raw, kind, name, keys=None, *, version=4, **fields):
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return raw.call(32, version, resources=[asked], **fields).results[0]


@pytest.mark.parametrize("version", range(1, 5))
def test_g8_every_setting_of_a_topic_is_told_with_its_source(raw, topic, version):
    raw.call(44, 0, resources=[{"resource_type": TOPIC, "resource_name": topic, "configs": [
        {"name": "cleanup.policy", "config_operation": 0, "value": "compact"}]}])  # fmt: skip
    found = {each.name: each for each in describe(raw, TOPIC, topic, version=version).configs}
    assert found.keys() == TopicConfig().to_kafka().keys()
    assert (found["cleanup.policy"].value, found["cleanup.policy"].config_source) == ("compact", 1)
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("604800000", 5)
    if version >= 3:
        types = {
            name: found[name].config_type for name in ("cleanup.policy", "retention.ms", "segment.bytes", "preallocate")
        }
        assert types == {"cleanup.policy": 7, "retention.ms": 5, "segment.bytes": 3, "preallocate": 1}


def test_the_durability_of_a_topic_is_visible(raw, topic):
    (found,) = describe(raw, TOPIC, topic, ["flush.messages"]).configs
    assert found.value == "1"


def test_only_what_is_asked_for(raw, topic):
    assert [each.name for each in describe(raw, TOPIC, topic, ["retention.ms", "x"]).configs] == ["retention.ms"]
    assert describe(raw, TOPIC, topic, ["x"]).configs == ()
    everything = describe(raw, TOPIC, topic, None).configs
    assert describe(raw, TOPIC, topic, []).configs == everything  # @platformatic/kafka asks so


def test_synonyms_when_asked_for(raw, topic):
    (plain,) = describe(raw, TOPIC, topic, ["retention.bytes"]).configs
    assert plain.synonyms == ()
    (full,) = describe(raw, TOPIC, topic, ["retention.bytes"], include_synonyms=True).configs
    assert [(each.name, each.value, each.source) for each in full.synonyms] == [("log.retention.bytes", "-1", 5)]


def test_what_a_setting_is_for_is_told_in_the_words_of_the_page_of_settings(raw, topic):
    page = (ROOT / "docs" / "settings.md").read_text()
    found = describe(raw, TOPIC, topic, include_documentation=True).configs
    missing = [each.name for each in found if f"| {each.documentation} |" not in page]
    assert missing == []


def test_not_all_of_kafkas_names_are_told_of_the_broker(raw):
    found = {each.name for each in describe(raw, BROKER, "1").configs}
    assert {"node.id", "advertised.listeners", "num.partitions"} <= found
    assert not [name for name in found if name in ("log.dirs", "process.roles") or name.startswith("ssl.")]


def test_settings_of_streams_groups_are_these_and_none_names_an_assignor(raw):
    found = {each.name: each.value for each in describe(raw, GROUP, "g").configs if each.name.startswith("streams.")}
    assert found.keys() == {
        "streams.assignment.interval.ms",
        "streams.heartbeat.interval.ms",
        "streams.initial.rebalance.delay.ms",
        "streams.num.standby.replicas",
        "streams.session.timeout.ms",
    }
    assert (found["streams.initial.rebalance.delay.ms"], found["streams.assignment.interval.ms"]) == ("0", "0")


@pytest.mark.parametrize("version", [3, 4])
def test_what_a_setting_is_for_is_told_when_asked_for(raw, topic, version):
    """sarama's tests look for it."""
    assert {each.documentation for each in describe(raw, TOPIC, topic, version=version).configs} == {None}
    for kind, name in ((TOPIC, topic), (BROKER, "1")):
        found = describe(raw, kind, name, version=version, include_documentation=True).configs
        assert [each.name for each in found if not each.documentation] == []
    of_group = describe(raw, GROUP, "g", version=version, include_documentation=True).configs
    told = {each.name: each.documentation for each in of_group}
    assert told["share.record.lock.duration.ms"].startswith("how long a member of a share group")


def test_the_brokers_settings_are_read_only_but_for_those_that_can_be_changed(raw):
    found = {each.name: each for each in describe(raw, BROKER, "1").configs}
    assert found["auto.create.topics.enable"].value == "true"
    assert {name for name, each in found.items() if not each.read_only} == {*TOPIC_DEFAULTS, *WITHOUT_EFFECT}
    assert found["port"].config_source == 4


def test_other_resources(raw):
    kinds = {each.name.partition(".")[0] for each in describe(raw, GROUP, "g").configs}
    assert kinds == {"consumer", "share", "streams"}
    assert describe(raw, METRICS, "m").configs == ()
    assert (describe(raw, LOGGER, "1").error_code, describe(raw, LOGGER, "1").configs) == (Code.none, ())
    assert describe(raw, LOGGER, "2").error_code is Code.invalid_request
    assert describe(raw, LOGGER, "").error_code is Code.invalid_request
    assert describe(raw, BROKER, "77").error_code is Code.invalid_request
    assert describe(raw, TOPIC, "no-such-topic").error_code is Code.unknown_topic_or_partition


def test_g10_a_group_does_not_wait_for_its_first_rebalance(raw):
    (found,) = describe(raw, BROKER, "1", ["group.initial.rebalance.delay.ms"]).configs
    assert found.value == "0"


def test_what_is_asked_for_many_times_is_told_once(raw, topic):
    asked = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["retention.ms"]}
    (found,) = raw.call(32, 4, resources=[asked] * 3).results
    assert [each.name for each in found.configs] == ["retention.ms"]


def test_settings_of_groups_have_those_of_the_broker_above_them(raw):
    """Some have none, and are above themselves, as in Apache Kafka."""
    found = {each.name: each for each in describe(raw, GROUP, "g", include_synonyms=True).configs}
    above = {
        name: (each.value, each.config_type, [synonym.name for synonym in each.synonyms])
        for name, each in found.items()
    }
    assert above["share.record.lock.duration.ms"] == ("30000", 3, ["group.share.record.lock.duration.ms"])
    assert above["share.auto.offset.reset"] == ("latest", 2, ["share.auto.offset.reset"])
    assert above["share.renew.acknowledge.enable"] == ("true", 1, ["share.renew.acknowledge.enable"])
    assert {each.config_source for each in found.values()} == {5}
