"""Which settings of a topic are taken: what Apache Kafka refuses is refused, or the topic could not move there.

These are asked of what a client sets. What is stored already is not refused: a start would fail because of it.
"""

import re
from collections.abc import Mapping
from typing import Final

from mainstem.log import InvalidTopicConfig, TopicConfig

_THROTTLED: Final = ("follower.replication.throttled.replicas", "leader.replication.throttled.replicas")
_REPLICAS: Final = r"\*|(\d+:\d+(,\d+:\d+)*)?"


def check_taken(config: Mapping[str, str], settings: TopicConfig) -> None:
    """Check what a topic has of its own, `config`, which makes `settings`. The messages begin as Kafka's.

    Raises:
        InvalidTopicConfig: the message names the setting.
    """
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


def _invalid(config: Mapping[str, str], name: str, expected: str) -> InvalidTopicConfig:
    return InvalidTopicConfig(f"Invalid value {config[name]} for configuration {name}: {expected}")
