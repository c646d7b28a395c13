"""The broker's settings: safe defaults, and no unknown names."""

import asyncio

import psutil
import pytest

from mainstem.broker.config import BrokerConfig, ListenerConfig
from mainstem.core import SystemClock
from mainstem.core.config import BadSetting, convert
from tests.support.broker import running


def test_unless_told_otherwise_nobody_else_on_the_network_can_connect(tmp_path):
    async def check() -> None:
        async with running(tmp_path, SystemClock(), BrokerConfig(port=0)) as broker:
            listening = [each.laddr for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
            assert [ip for ip, port in listening if port == broker.port] == ["127.0.0.1"]

    asyncio.run(check())


def test_g10_groups_do_not_wait_for_their_first_rebalance():
    """Kafka's default makes every first consumer wait for 3 s."""
    assert BrokerConfig().group_initial_rebalance_delay_ms == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"prot": 1},
        {"port": 65_536},
        {"port": -1},
        {"num_partitions": 0},
        {"num_partitions": 10_001},
        {"node_id": 2**31},
        {"socket_request_max_bytes": 0},
        {"queued_max_requests": 0},
        {"queued_max_request_bytes": 0},
        {"host": "a b"},
        {"advertised_host": "a b"},
        {"group_min_session_timeout_ms": 1_800_001},
        {"listeners": {"out": {"port": 9092}}},
        {"listeners": {"out": {"port": 9092, "host": "0.0.0.0"}}},
        {"listeners": {"out": {"port": 9092, "host": "localhost"}}},
        {"listeners": {"out": {"port": 9092, "host": "::1"}}, "host": "localhost"},
        {"listeners": {"out": {"port": 9092, "host": "192.0.2.1"}}, "host": ""},
        {"listeners": {"out": {"port": 9092, "host": "::"}}, "host": "::1"},
    ],
    ids=str,
)
def test_a_setting_that_is_unknown_or_out_of_range_is_named(wrong):
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        convert(wrong, BrokerConfig, where="mainstem.toml")


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("log.retention.ms", '[broker.topic_defaults] has it for all topics, as "retention.ms"'),
        ("log_retention_ms", '[broker.topic_defaults] has it for all topics, as "retention.ms"'),
        ("retention_ms", '[broker.topic_defaults] has it for all topics, as "retention.ms"'),
        ("message.max.bytes", '[broker.topic_defaults] has it for all topics, as "max.message.bytes"'),
        ("num.partitions", "did you mean num_partitions?"),
    ],
)
def test_what_kafkas_brokers_have_elsewhere_is_told_where_it_is_here(setting, hint):
    with pytest.raises(BadSetting) as caught:
        convert({setting: 1}, BrokerConfig, where="mainstem.toml")
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("retention.mss", "1", "Unknown topic config name: retention.mss; did you mean retention.ms?"),
        ("retention.ms", "x", "Invalid value x for configuration retention.ms: expected `int`"),
        ("min.insync.replicas", "2", "min.insync.replicas is set for all topics while the log runs"),
        ("remote.storage.enable", "false", "remote.storage.enable is each topic's own"),
    ],
)
def test_a_default_of_topics_is_checked_when_the_settings_are_read(name, value, message):
    with pytest.raises(BadSetting) as caught:
        convert({"topic_defaults": {name: value}}, BrokerConfig, where="mainstem.toml")
    assert f"mainstem.toml: topic_defaults: {message}" in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_share_delivery_count_limit": 11},
        {"group_share_max_record_lock_duration_ms": 1_000},
        {"group_share_record_lock_duration_ms": 60_001},
        {"group_share_assignment_interval_ms": 15_001},
        {"group_share_session_timeout_ms": 44_999},
        {"group_share_session_timeout_ms": 9, "group_share_min_session_timeout_ms": 1},
        {"group_share_max_size": 1_001},
        {"group_streams_session_timeout_ms": 44_999},
        {"group_streams_heartbeat_interval_ms": 15_001},
        {"group_streams_num_standby_replicas": 3},
        {"group_streams_session_timeout_ms": 9, "group_streams_min_session_timeout_ms": 1},
    ],
    ids=str,
)
def test_share_groups_and_streams_groups_have_kafkas_bounds(wrong):
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        convert(wrong, BrokerConfig, where="mainstem.toml")


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_consumer_session_timeout_ms": 15_000},
        {"group_consumer_heartbeat_interval_ms": 1_000},
        {"group_consumer_assignment_interval_ms": 15_001},
        {"group_consumer_session_timeout_ms": 5_000, "group_consumer_min_session_timeout_ms": 1},
    ],
    ids=str,
)
def test_a_setting_beyond_its_own_bounds_is_refused_and_not_another_one_taken(wrong):
    """Every group would have the bound: members that are gone would be waited for three times as long as was set."""
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        convert(wrong, BrokerConfig, where="mainstem.toml")


def test_with_its_bounds_a_session_may_be_short():
    assert (
        BrokerConfig(
            group_consumer_session_timeout_ms=6_000, group_consumer_min_session_timeout_ms=6_000
        ).group_consumer_session_timeout_ms
        == 6_000
    )


def test_rights_are_not_enforced_where_nobody_could_give_any():
    """Where everybody may do what no entry names, everybody may make the first entry: Kafka's compose files do so."""
    with pytest.raises(BadSetting, match="nobody could give anybody a right"):
        convert({"authorizer_enable": True}, BrokerConfig, where="mainstem.toml")
    for more in ({"super_users": ["User:root"]}, {"allow_everyone_if_no_acl_found": True}):
        assert convert({"authorizer_enable": True, **more}, BrokerConfig, where="mainstem.toml").authorizer_enable


_TLS = {"protocol": "SSL", "certificate_file": "c", "key_file": "k"}


@pytest.mark.parametrize(
    ("setting", "needs"),
    [
        ({"certificate_file": "c"}, "SSL or SASL_SSL"),
        ({"key_file": "k"}, "SSL or SASL_SSL"),
        ({"client_ca_file": "c"}, "SSL or SASL_SSL"),
        ({"client_auth": "required"}, "SSL or SASL_SSL"),
        ({"sasl_enabled_mechanisms": ["PLAIN"]}, "SASL_SSL or SASL_PLAINTEXT"),
    ],
    ids=str,
)
def test_what_would_protect_nothing_is_refused(setting, needs):
    """It was taken without a word, and everybody could connect."""
    (name,) = setting
    for tree, where in ((setting, ""), ({"listeners": {"x": {"port": 1, **setting}}}, "listeners.x: ")):
        with pytest.raises(BadSetting, match=f"{where}{name} has no effect with protocol PLAINTEXT: set .*{needs}"):
            convert(tree, BrokerConfig, where="mainstem.toml")


def test_what_only_another_listener_needs_is_taken():
    users = {"users": {"alice": "a"}, "sasl_enabled_mechanisms": ["PLAIN"]}
    files = {name: _TLS[name] for name in ("certificate_file", "key_file")}
    for tree in (
        {**_TLS, "listeners": {"plain": {"port": 1}}},
        {**files, "listeners": {"safe": {"port": 1, "protocol": "SSL"}}},
        {**users, "listeners": {"known": {"port": 1, "protocol": "SASL_PLAINTEXT"}}},
        {"client_auth": "none"},
    ):
        convert(tree, BrokerConfig, where="mainstem.toml")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"users": {"alice": "hidden"}}, "users has no effect with protocol PLAINTEXT"),
        ({"users_file": "f"}, "users_file has no effect with protocol PLAINTEXT"),
        ({"users": {"alice": "hidden", "": "hidden"}, "protocol": "SASL_PLAINTEXT"}, "a name and a password each"),
        ({"users": {"alice": ""}, "protocol": "SASL_PLAINTEXT"}, "expected a password for alice"),
    ],
)
def test_users_that_nobody_could_be_are_refused(settings, message):
    with pytest.raises(BadSetting, match=message) as refused:
        convert(settings, BrokerConfig, where="mainstem.toml")
    assert "hidden" not in str(refused.value)


def test_listeners_may_have_one_port_on_different_addresses():
    out, six = (ListenerConfig(host=host, port=9092) for host in ("192.0.2.1", "::1"))
    listeners = {"out": out, "six": six, "any": ListenerConfig(port=0)}
    assert set(BrokerConfig(listeners=listeners, host="127.0.0.1").all_listeners()) == {"broker", "out", "six", "any"}
