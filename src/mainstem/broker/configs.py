"""Settings as DescribeConfigs tells them and the alter requests change them.

Topic settings are `log.TopicConfig`; what was set for a topic is kept with its metadata, everything else is the
default. The broker's own settings come from its start and cannot be altered while it runs.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from mainstem.broker.config import BrokerConfig
from mainstem.core.address import format_address
from mainstem.log import TopicConfig
from mainstem.wire.errors import Code, RequestError

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""Kinds of resources."""

FROM_TOPIC, FROM_BROKER, FROM_DEFAULT, FROM_GROUP = 1, 4, 5, 8
"""Where a value comes from (Kafka's ConfigSource)."""

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""Operations of IncrementalAlterConfigs."""

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
"""Types of settings (Kafka's ConfigType)."""

_LISTS: Final = (
    "cleanup.policy",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
)
_LONG_ENDINGS: Final = (".ms", ".messages", ".bytes")
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
    texts = {name.replace("_", "."): _text(value) for name, value in values.items()}
    texts["listeners"] = ",".join(
        f"{name.upper()}://{format_address(each.host, each.port)}" for name, each in config.all_listeners().items()
    )
    texts["default.replication.factor"] = "1"
    return texts


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _type_of(name: str, value: str) -> int:
    if name in _LISTS:
        return LIST
    if value in ("true", "false"):
        return BOOLEAN
    if name.endswith(".ratio"):
        return DOUBLE
    if not value.lstrip("-").isdigit():
        return STRING
    return LONG if name.endswith(_LONG_ENDINGS) and name not in _INTS else INT


def describe_topic_configs(settings: TopicConfig, overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every setting of a topic."""
    return [
        _entry(name, value, FROM_TOPIC if name in overrides else FROM_DEFAULT, _topic_defaults()[name])
        for name, value in sorted(settings.to_kafka().items())
    ]


def describe_broker_configs(config: BrokerConfig) -> list[dict[str, Any]]:
    """Every setting of the broker, all of them read-only."""
    return [
        _entry(
            name,
            value,
            FROM_DEFAULT if value == _broker_defaults()[name] else FROM_BROKER,
            _broker_defaults()[name],
            read_only=True,
        )
        for name, value in sorted(_as_kafka(config).items())
    ]


def describe_group_configs(defaults: Mapping[str, str], overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every setting of a group; the defaults are the broker's settings of those names below `group.`."""
    entries = []
    for name, default in sorted(defaults.items()):
        value = overrides.get(name)
        above = f"group.{name}"
        source = FROM_DEFAULT if default == _broker_defaults()[above] else FROM_BROKER
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
                "config_type": INT,
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
            present = [each for each in result.get(name, _topic_defaults()[name]).split(",") if each]
            given = [each.strip() for each in value.split(",") if each.strip()]
            if operation == APPEND:
                present += [each for each in given if each not in present]
            else:
                present = [each for each in present if each not in given]
            result[name] = ",".join(present)
        else:
            raise RequestError(Code.invalid_request, f"{name}: there is no operation {operation}")
    return result
