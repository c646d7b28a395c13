"""Settings as DescribeConfigs tells them and the alter requests change them.

Topic settings are `log.TopicConfig`; what was set for a topic is kept with its metadata, everything else is the
default, which may have been set for the broker (`broker.dynamic_settings`). The broker's other settings come from its
start and cannot be altered while it runs.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from mainstem.broker.config import BrokerConfig
from mainstem.broker.dynamic_settings import (
    ALL_BROKERS,
    BROKERS_NAMES,
    FROM_ALL_BROKERS,
    FROM_START,
    TOPIC_DEFAULTS,
    WITHOUT_EFFECT,
    DynamicSettings,
    default_of,
)
from mainstem.core.address import format_address
from mainstem.core.documented import documented
from mainstem.log import TopicConfig
from mainstem.wire.errors import Code, RequestError

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""Kinds of resources."""

FROM_TOPIC, FROM_DEFAULT, FROM_GROUP = 1, 5, 8
"""Where a value comes from (Kafka's ConfigSource)."""

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""Operations of IncrementalAlterConfigs."""

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
"""Types of settings (Kafka's ConfigType)."""

_LISTS: Final = (
    "cleanup.policy",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "log.cleanup.policy",
)
_TOLD_WITHOUT_DEFAULT: Final = ("log.flush.interval.ms", "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms")
"""In Kafka they have none: there the default is that of a setting in hours, or nothing."""

_LONG_ENDINGS: Final = (".ms", ".messages", ".bytes")
_FIXED: Final = {
    "default.replication.factor": "1",
    "delete.topic.enable": "true",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""What tools for Kafka ask for, and cannot be set here."""

_DOCUMENTED: Final = {
    "advertised.listeners": "what clients of each listener are told to connect to.",
    "broker.id": "the number that clients know it by; that of `node.id`.",
    **dict.fromkeys(_FIXED, "told to tools for Kafka; it cannot be set here."),
    **dict.fromkeys(WITHOUT_EFFECT, "kept and shown; it means nothing here."),
}

_ALWAYS_SET: Final = ("advertised.listeners", "broker.id", "listeners", "node.id")
"""By the start, as in Kafka, also where they are as they would be anyway."""

_INTS: Final = ("segment.bytes", "segment.index.bytes", "index.interval.bytes", "max.message.bytes")


@cache
def _topic_defaults() -> Mapping[str, str]:
    return TopicConfig().to_kafka()


@cache
def _broker_defaults() -> Mapping[str, str]:
    return _as_kafka(BrokerConfig())


def _as_kafka(config: BrokerConfig) -> dict[str, str]:
    values = msgspec.structs.asdict(config)
    del values["users"]  # passwords
    del values["topic_defaults"]  # each has a name of its own in Kafka
    texts = {name.replace("_", "."): _text(value) for name, value in values.items()}
    texts["listeners"] = ",".join(
        f"{name.upper()}://{format_address(each.host, each.port)}" for name, each in config.all_listeners().items()
    )
    texts["advertised.listeners"] = ",".join(
        f"{name.upper()}://{format_address(each.advertised_host or each.host, each.advertised_port or each.port)}"
        for name, each in config.all_listeners().items()
    )
    texts["broker.id"] = str(config.node_id)
    return texts | _FIXED


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _type_of(name: str, value: str) -> int:
    name = TOPIC_DEFAULTS.get(name, name)
    if name in _LISTS:
        return LIST
    if value in ("true", "false"):
        return BOOLEAN
    if name.endswith(".ratio") or (name in WITHOUT_EFFECT and not value.isdigit()):
        return DOUBLE
    if not value.lstrip("-").isdigit():
        return STRING
    return LONG if name.endswith(_LONG_ENDINGS) and name not in _INTS else INT


def describe_topic_configs(
    settings: TopicConfig, overrides: Mapping[str, str], dynamic: DynamicSettings | None = None
) -> list[dict[str, Any]]:
    """Every setting of a topic; `dynamic` is what the broker has in place of the defaults."""
    entries = []
    for name, value in sorted(settings.to_kafka().items()):
        entry = _entry(name, value, FROM_TOPIC if name in overrides else FROM_DEFAULT, _topic_defaults()[name])
        above = BROKERS_NAMES.get(name)
        if above is not None and dynamic is not None:
            _lay_between(entry, dynamic.synonyms(above))
        if above is None or above in _TOLD_WITHOUT_DEFAULT:
            del entry["synonyms"][-1]
        else:
            entry["synonyms"][-1]["name"] = above
        entries.append(entry)
    return entries


def describe_broker_configs(config: BrokerConfig, dynamic: DynamicSettings) -> list[dict[str, Any]]:
    """Every setting of the broker; those of its start are read-only."""
    entries = [
        _entry(
            name,
            value,
            FROM_START if name in _ALWAYS_SET or value != _broker_defaults()[name] else FROM_DEFAULT,
            _broker_defaults()[name],
            read_only=True,
        )
        for name, value in _as_kafka(config).items()
    ]
    for name in (*TOPIC_DEFAULTS, *WITHOUT_EFFECT):
        entry = _entry(name, default_of(name), FROM_DEFAULT, default_of(name))
        _lay_between(entry, dynamic.synonyms(name))
        entries.append(entry)
    return sorted(entries, key=lambda entry: str(entry["name"]))


def describe_all_brokers(dynamic: DynamicSettings) -> list[dict[str, Any]]:
    """What is set for all brokers, and nothing else: there is no broker that it could be read of."""
    entries = []
    for name, value in sorted(dynamic.of(ALL_BROKERS).items()):
        entry = _entry(name, value, FROM_ALL_BROKERS, default_of(name))
        entry["synonyms"] = entry["synonyms"][:1]
        entries.append(entry)
    return entries


def documentation(name: str) -> str | None:
    """What a setting of a topic, of the broker or of a group is for; None where nobody has said it."""
    if name in TOPIC_DEFAULTS and name != TOPIC_DEFAULTS[name]:
        return f"Where a topic does not say otherwise: {documentation(TOPIC_DEFAULTS[name])}"
    field = name.replace(".", "_")
    meanings = (documented(TopicConfig)[1], documented(BrokerConfig)[1])
    texts = (each.get(one) for each in meanings for one in (field, f"group_{field}"))
    return _DOCUMENTED.get(name) or next(filter(None, texts), None)


def _lay_between(entry: dict[str, Any], synonyms: list[dict[str, Any]]) -> None:
    """Put what is set for the broker before the default, which comes last."""
    if synonyms and entry["config_source"] == FROM_DEFAULT:
        entry["value"], entry["config_source"] = synonyms[0]["value"], synonyms[0]["source"]
    entry["synonyms"][-1:-1] = synonyms


def describe_group_configs(defaults: Mapping[str, str], overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every setting of a group; most have the broker's settings of those names below `group.` for defaults."""
    entries = []
    for name, default in sorted(defaults.items()):
        value = overrides.get(name)
        above = f"group.{name}"
        if above not in _broker_defaults():
            above = name
        source = FROM_DEFAULT if default == _broker_defaults().get(above, default) else FROM_START
        synonyms = [{"name": above, "value": default, "source": source}]
        if value is not None:
            source = FROM_GROUP
            synonyms.insert(0, {"name": name, "value": value, "source": source})
        entries.append(
            {
                "name": name,
                "value": default if value is None else value,
                "read_only": False,
                "config_source": source,
                "is_sensitive": False,
                "synonyms": synonyms,
                "config_type": _type_of(name, default) if above == name else INT,
            }
        )
    return entries


def _entry(name: str, value: str, source: int, default: str, *, read_only: bool = False) -> dict[str, Any]:
    synonyms = [] if source == FROM_DEFAULT else [{"name": name, "value": value, "source": source}]
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [*synonyms, {"name": name, "value": default, "source": FROM_DEFAULT}],
        "config_type": _type_of(name, default),
    }


def apply_operations(current: Mapping[str, str], changes: Iterable[tuple[str, int, str | None]]) -> dict[str, str]:
    """What is set for a topic after (name, operation, value) were applied in order.

    Raises:
        RequestError: an operation that does not exist, lacks its value or does not fit the setting.
        InvalidTopicConfig: by the caller's check of the result.
    """
    result, seen = dict(current), set()
    for name, operation, value in changes:
        if name in seen:
            raise RequestError(Code.invalid_request, f"{name} is altered twice")
        seen.add(name)
        if operation == DELETE:
            result.pop(name, None)
            continue
        if value is None:
            raise RequestError(Code.invalid_request, f"{name}: a value is missing")
        if operation == SET:
            result[name] = value
        elif operation in (APPEND, SUBTRACT):
            if name not in _LISTS:
                raise RequestError(Code.invalid_config, f"{name} is no list: set it")
            default = _topic_defaults()[TOPIC_DEFAULTS.get(name, name)]
            present = [each for each in result.get(name, default).split(",") if each]
            given = [each.strip() for each in value.split(",") if each.strip()]
            if operation == APPEND:
                present += [each for each in given if each not in present]
            else:
                present = [each for each in present if each not in given]
            result[name] = ",".join(present)
        else:
            raise RequestError(Code.invalid_request, f"{name}: there is no operation {operation}")
    return result
