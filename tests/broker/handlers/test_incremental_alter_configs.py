"""IncrementalAlterConfigs: set, delete, append, subtract."""

import uuid

import pytest

from mainstem.broker.groups.settings import SETTINGS
from mainstem.wire.errors import Code

SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(raw, name, *changes, kind=2, version=1, **fields):
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    asked = {"resource_type": kind, "resource_name": name, "configs": configs}
    return raw.call(44, version, resources=[asked], **fields).responses[0]


@pytest.fixture
def name():
    return f"group-{uuid.uuid4().hex[:12]}"


def setting(raw, topic, name):
    asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": [name]}
    return raw.call(32, 4, resources=[asked]).results[0].configs[0].value


@pytest.mark.parametrize("version", range(2))
def test_every_version_sets_and_deletes(raw, topic, version):
    assert alter(raw, topic, ("retention.ms", SET, "5"), version=version).error_code is Code.none
    assert setting(raw, topic, "retention.ms") == "5"
    alter(raw, topic, ("retention.ms", DELETE, None), version=version)
    assert setting(raw, topic, "retention.ms") == "604800000"


def test_g8_append_and_subtract_change_lists(raw, topic):
    alter(raw, topic, ("cleanup.policy", APPEND, "compact"))
    assert setting(raw, topic, "cleanup.policy") == "delete,compact"
    alter(raw, topic, ("cleanup.policy", APPEND, "compact"))
    assert setting(raw, topic, "cleanup.policy") == "delete,compact"
    alter(raw, topic, ("cleanup.policy", SUBTRACT, "delete"))
    assert setting(raw, topic, "cleanup.policy") == "compact"


def test_what_is_refused(raw, topic):
    assert alter(raw, topic, ("retention.ms", APPEND, "5")).error_code is Code.invalid_config
    assert alter(raw, topic, ("retention.ms", SET, None)).error_code is Code.invalid_request
    assert alter(raw, topic, ("retention.ms", 9, "5")).error_code is Code.invalid_request
    twice = (("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
    assert alter(raw, topic, *twice).error_code is Code.invalid_request
    assert alter(raw, topic, ("retention.ms", SET, "x")).error_code is Code.invalid_config
    assert alter(raw, "1", ("x", SET, "1"), kind=4).error_code is Code.invalid_request
    assert setting(raw, topic, "retention.ms") == "604800000"


@pytest.mark.parametrize(("kind", "name"), [(8, "1"), (16, "subscription")])
def test_loggers_and_metrics_of_clients_have_nothing_to_set(raw, kind, name):
    for only in (True, False):
        refused = alter(raw, name, ("interval.ms", SET, "5"), kind=kind, validate_only=only)
        assert refused.error_code is Code.invalid_request


WITHOUT_EFFECT = {
    "unclean.leader.election.enable": "true",
    "remote.storage.enable": "false",
    "remote.log.copy.disable": "true",
    "remote.log.delete.on.disable": "true",
    "local.retention.bytes": "5",
    "local.retention.ms": "5",
    "leader.replication.throttled.replicas": "0:1",
    "follower.replication.throttled.replicas": "0:1",
    "preallocate": "true",
    "compression.gzip.level": "1",
    "compression.lz4.level": "1",
    "compression.zstd.level": "1",
    "file.delete.delay.ms": "5",
    "segment.jitter.ms": "5",
    "segment.index.bytes": "2048",
}


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_has_no_effect_on_a_topic_is_kept_and_shown(raw, topic, name):
    assert alter(raw, topic, (name, SET, WITHOUT_EFFECT[name])).error_code is Code.none
    assert setting(raw, topic, name) == WITHOUT_EFFECT[name]
    assert raw.produce(topic, b"v") is Code.none


def test_a_dry_run_changes_nothing(raw, topic):
    assert alter(raw, topic, ("retention.ms", SET, "5"), validate_only=True).error_code is Code.none
    assert setting(raw, topic, "retention.ms") == "604800000"


def group_settings(raw, group):
    found = raw.call(
        32,
        4,
        resources=[{"resource_type": 32, "resource_name": group, "configuration_keys": None}],
        include_synonyms=True,
    )
    return found.results[0].error_code, {each.name: each for each in found.results[0].configs}


def test_settings_of_a_group(raw, name):
    """A group need not be there: its settings wait for it."""
    session = "consumer.session.timeout.ms"
    code, before = group_settings(raw, name)
    assert (code, sorted(before)) == (Code.none, sorted(SETTINGS))
    assert (before[session].value, before[session].config_source) == ("45000", 5)
    assert alter(raw, name, (session, SET, "50000"), kind=32).error_code is Code.none
    found = group_settings(raw, name)[1][session]
    assert (found.value, found.config_source, found.config_type) == ("50000", 8, 3)
    assert [(each.name, each.value, each.source) for each in found.synonyms] == [
        (session, "50000", 8),
        (f"group.{session}", "45000", 5),
    ]
    assert alter(raw, name, (session, DELETE, None), kind=32).error_code is Code.none
    assert group_settings(raw, name)[1][session].value == "45000"


def test_settings_of_a_group_that_are_refused(raw, name):
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    refused = [(session, SET, "1"), (session, SET, "x"), ("consumer.nothing", SET, "1"), (heartbeat, SET, "5")]
    refused.append((heartbeat, APPEND, "9000"))
    for change in refused:
        assert alter(raw, name, change, kind=32).error_code is Code.invalid_config
    assert alter(raw, "", (heartbeat, SET, "9000"), kind=32).error_code is Code.invalid_request
    assert group_settings(raw, "")[0] is Code.invalid_request
    assert alter(raw, name, (heartbeat, SET, "9000"), kind=32, validate_only=True).error_code is Code.none
    assert group_settings(raw, name)[1][heartbeat].config_source == 5
