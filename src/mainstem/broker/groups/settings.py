"""What is set for single groups (DescribeConfigs and IncrementalAlterConfigs, resource type 32).

A group need not be there: its settings wait for it. They are facts of the log (`broker.facts`); what is not set for a
group is the broker's `group.*` setting of the same name. A value that was set under wider bounds than the broker now
has counts as the nearest one within them.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from mainstem.broker.config import BrokerConfig
from mainstem.broker.facts import Facts
from mainstem.broker.groups.config import ConsumerGroupConfig
from mainstem.wire.errors import Code, RequestError


class GroupSetting(msgspec.Struct, frozen=True):
    """One setting of groups: whole milliseconds, within bounds that the broker has."""

    field: str
    """Of `ConsumerGroupConfig`."""
    default: str
    """The broker's setting that counts where nothing is set for the group."""
    least: str
    most: str
    """The broker's settings that bound it."""


def _setting(name: str) -> GroupSetting:
    return GroupSetting(name, f"group_consumer_{name}", f"group_consumer_min_{name}", f"group_consumer_max_{name}")


SETTINGS: Final[Mapping[str, GroupSetting]] = {
    f"consumer.{name.replace('_', '.')}": _setting(name)
    for name in ("assignment_interval_ms", "heartbeat_interval_ms", "session_timeout_ms")
}
"""By Kafka's names."""


class GroupSettings:
    """The settings of all groups."""

    def __init__(self, facts: Facts, config: BrokerConfig) -> None:
        self._facts = facts
        self._config = config
        self._changing = asyncio.Lock()
        self._set: dict[str, dict[str, str]] = {group_id: dict(fact) for group_id, fact in facts.below("group:")}
        self._made: dict[str, ConsumerGroupConfig] = {}
        self._defaults = self._make({})

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """What is set for the group."""
        return self._set.get(group_id, {})

    def default(self, name: str) -> str:
        """The value of a setting that is not set for a group."""
        return str(getattr(self._config, SETTINGS[name].default))

    def consumer(self, group_id: str) -> ConsumerGroupConfig:
        """All settings of a group of the consumer protocol, as they are now."""
        if group_id not in self._set:
            return self._defaults
        if group_id not in self._made:
            self._made[group_id] = self._make(self._set[group_id])
        return self._made[group_id]

    def _make(self, values: Mapping[str, str]) -> ConsumerGroupConfig:
        found = {"max_size": self._config.group_consumer_max_size}
        for name, setting in SETTINGS.items():
            value = int(values.get(name, self.default(name)))
            found[setting.field] = min(max(value, self._bound(setting.least)), self._bound(setting.most))
        return ConsumerGroupConfig(**found)

    def _bound(self, name: str) -> int:
        return int(getattr(self._config, name))

    def check(self, values: Mapping[str, str]) -> None:
        """Raise RequestError unless a group may have these settings."""
        for name, text in values.items():
            setting = SETTINGS.get(name)
            if setting is None:
                raise RequestError(
                    Code.invalid_config, f"groups have no setting {name!r}: they have {', '.join(SETTINGS)}"
                )
            try:
                value = int(text)
            except ValueError:
                raise RequestError(Code.invalid_config, f"{name}: expected a whole number, found {text!r}") from None
            least, most = self._bound(setting.least), self._bound(setting.most)
            if not least <= value <= most:
                bounds = f"{setting.least.replace('_', '.')} and {setting.most.replace('_', '.')}"
                raise RequestError(
                    Code.invalid_config, f"{name}: expected {least} to {most}, found {value}; the bounds are {bounds}"
                )
        made = self._make(values)
        if made.session_timeout_ms <= made.heartbeat_interval_ms:
            raise RequestError(
                Code.invalid_config,
                f"consumer.session.timeout.ms: expected more than the heartbeat interval of "
                f"{made.heartbeat_interval_ms}, found {made.session_timeout_ms}",
            )

    async def change(
        self, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Set what `change` makes of the present settings; durable on return, in effect at once.

        Raises:
            RequestError: a group may not have these settings, or there is no group without a name.
            StorageError: the disk refused; nothing was changed.
        """
        if not group_id:
            raise RequestError(Code.invalid_request, "there are no settings for all groups: name one")
        async with self._changing:
            after = dict(change(self.overrides(group_id)))
            self.check(after)
            if validate_only:
                return
            await self._facts.put({f"group:{group_id}": after or None})
            self._made.pop(group_id, None)
            if after:
                self._set[group_id] = after
            else:
                self._set.pop(group_id, None)
