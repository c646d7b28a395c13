"""Which settings of a topic are taken: what Apache Kafka refuses is refused, or the topic could not move there.

These are asked of what a client sets. What is stored already is not refused: a start would fail because of it.
"""

import re
from collections.abc import Mapping
from typing import Final

from mainstem.log import InvalidTopicConfig, TopicConfig

_THROTTLED: Final = ("follower.replication.throttled.replicas", "leader.replication.throttled.replicas")
_REPLICAS: Final = r"\*|(\d+:\d+(,\d+:\d+)*)?"
_INT32_MAX: Final = 2**31 - 1
_WHOLE: Final = r"[+-]?[0-9]+"


def check_taken(config: Mapping[str, str], settings: TopicConfig, *, before: Mapping[str, str] | None = None) -> None:
    """Check what a topic has of its own, `config`, which makes `settings`; what it had before is not asked how it is
    written. The messages begin as Kafka's.

    Raises:
        InvalidTopicConfig: the message names the setting.
    """
    for name, value in config.items():
        if before is None or value != before.get(name):
            _check_spelling(config, name, getattr(settings, name.replace(".", "_")))
    replicas = "min.insync.replicas"
    if settings.min_insync_replicas > _INT32_MAX and config.get(replicas) != (before or {}).get(replicas):
        raise _invalid(config, replicas, "Not a number of type INT")
    if config.get("compression.gzip.level", "").strip() == "0":
        raise _invalid(config, "compression.gzip.level", "Value must be between 1 and 9 or equal to -1")
    for name in _THROTTLED:
        if not re.fullmatch(_REPLICAS, re.sub(r"\s", "", config.get(name, ""))):
            raise _invalid(config, name, "expected * or [partitionId]:[brokerId],[partitionId]:[brokerId],...")
    if settings.remote_storage_enable:
        raise InvalidTopicConfig(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
            hint="leave remote.storage.enable out: all segments stay in the log's directory",
        )
    if settings.min_compaction_lag_ms > settings.max_compaction_lag_ms:
        raise InvalidTopicConfig(
            f"conflict topic config setting min.compaction.lag.ms ({settings.min_compaction_lag_ms})"
            f" > max.compaction.lag.ms ({settings.max_compaction_lag_ms})"
        )


def _check_spelling(config: Mapping[str, str], name: str, found: object) -> None:
    """As Kafka's `Integer.parseInt` and its booleans have it: neither 1e3 nor 1 for true."""
    text = config[name].strip()
    if isinstance(found, bool):
        if text.lower() not in ("true", "false"):
            raise _invalid(config, name, "Expected value to be either true or false")
    elif isinstance(found, int) and not re.fullmatch(_WHOLE, text):
        raise _invalid(config, name, "Not a number of type LONG")


def _invalid(config: Mapping[str, str], name: str, expected: str) -> InvalidTopicConfig:
    return InvalidTopicConfig(f"Invalid value {config[name]} for configuration {name}: {expected}")
