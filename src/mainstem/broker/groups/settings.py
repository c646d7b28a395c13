"""What is set for single groups (DescribeConfigs and IncrementalAlterConfigs, resource type 32).

A group need not be there: its settings wait for it. They are facts of the log (`broker.facts`); what is not set for a
group is the broker's `group.*` setting of the same name. A value that was set under wider bounds than the broker now
has counts as the nearest one within them.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from mainstem.broker.config import BrokerConfig
from mainstem.broker.facts import Facts
from mainstem.broker.groups.config import ConsumerGroupConfig, OffsetReset, ShareGroupConfig, StreamsGroupConfig
from mainstem.wire.errors import Code, RequestError

Kind: TypeAlias = Literal["consumer", "share", "streams"]

MOST: Final = 2**31 - 1
"""Of a setting that Kafka does not bound."""


class Number(msgspec.Struct, frozen=True):
    """A setting that is a whole number, within bounds that the broker has."""

    kind: Kind
    """The groups that it is of; for others it can be set too, and does nothing."""
    field: str
    """Of the groups' config."""
    above: str
    """The broker's setting that counts where nothing is set for the group."""
    least: str | int
    most: str | int
    """The broker's settings that bound it; where it has none, the number itself."""


class Choice(msgspec.Struct, frozen=True):
    """A setting that is one of a few texts, and has no setting of the broker above it."""

    kind: Kind
    field: str
    default: str
    expected: str
    """What `read` takes, in words."""
    read: Callable[[str], Any]
    """Its value for the groups' config; raises ValueError for what it is not."""


GroupSetting: TypeAlias = Number | Choice


def _number(kind: Kind, name: str) -> Number:
    return Number(kind, name, f"group_{kind}_{name}", f"group_{kind}_min_{name}", f"group_{kind}_max_{name}")


_DURATION: Final = re.compile(
    r"\+?P(?=[T\d+])(?:\+?(?P<days>\d+)D)?"
    r"(?:T(?=[\d+])(?:\+?(?P<hours>\d+)H)?(?:\+?(?P<minutes>\d+)M)?(?:\+?(?P<seconds>\d+(?:[.,]\d{0,9})?)S)?)?",
    re.IGNORECASE,
)


_WHOLE: Final = re.compile("[+-]?[0-9]{1,19}")
_MOST_MS: Final = 2**63 - 1


def read_offset_reset(text: str) -> OffsetReset:
    """`latest`, `earliest`, or the milliseconds of `by_duration:` and a duration of ISO 8601 in days and shorter units.

    Raises:
        ValueError: it is none of them.
    """
    if text == "latest":
        return "latest"
    if text == "earliest":
        return "earliest"
    before, _, duration = text.partition("by_duration:")
    found = None if before else _DURATION.fullmatch(duration)
    if found is None:
        raise ValueError(text)
    days, hours, minutes = (int(found[name] or 0) for name in ("days", "hours", "minutes"))
    seconds = min(float((found["seconds"] or "0").replace(",", ".")), _MOST_MS)
    milliseconds = ((days * 24 + hours) * 60 + minutes) * 60_000 + int(seconds * 1000)
    if milliseconds > _MOST_MS:
        raise ValueError(text)
    return milliseconds


def _one_of(*texts: str) -> Callable[[str], str]:
    return lambda text: texts[texts.index(text)]


_CHOICES: Final = {
    "share.auto.offset.reset": Choice(
        "share",
        "auto_offset_reset",
        "latest",
        "latest, earliest or by_duration: and a duration as PT1H30M",
        read_offset_reset,
    ),
    "share.isolation.level": Choice(
        "share",
        "isolation_level",
        "read_uncommitted",
        "read_uncommitted or read_committed",
        _one_of("read_uncommitted", "read_committed"),
    ),
    "share.renew.acknowledge.enable": Choice(
        "share",
        "renew_acknowledge_enable",
        "true",
        "true or false",
        lambda text: bool(("false", "true").index(text.lower())),
    ),
}
_NUMBERS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "consumer": ("assignment_interval_ms", "heartbeat_interval_ms", "session_timeout_ms"),
    "share": (
        "assignment_interval_ms",
        "delivery_count_limit",
        "heartbeat_interval_ms",
        "partition_max_record_locks",
        "record_lock_duration_ms",
        "session_timeout_ms",
    ),
    "streams": ("assignment_interval_ms", "heartbeat_interval_ms", "session_timeout_ms"),
}

SETTINGS: Final[Mapping[str, GroupSetting]] = {
    **{f"{kind}.{name.replace('_', '.')}": _number(kind, name) for kind, names in _NUMBERS.items() for name in names},
    **_CHOICES,
    "streams.initial.rebalance.delay.ms": Number(
        "streams", "initial_rebalance_delay_ms", "group_streams_initial_rebalance_delay_ms", 0, MOST
    ),
    "streams.num.standby.replicas": Number(
        "streams", "num_standby_replicas", "group_streams_num_standby_replicas", 0, "group_streams_max_standby_replicas"
    ),
}
"""By Kafka's names."""


class GroupSettings:
    """The settings of all groups."""

    def __init__(self, facts: Facts, config: BrokerConfig) -> None:
        self._facts = facts
        self._config = config
        self._changing = asyncio.Lock()
        self._set: dict[str, dict[str, str]] = {group_id: dict(fact) for group_id, fact in facts.below("group:")}
        self._consumer: dict[str, ConsumerGroupConfig] = {}
        self._share: dict[str, ShareGroupConfig] = {}
        self._streams: dict[str, StreamsGroupConfig] = {}

    def __iter__(self) -> Iterator[str]:
        """The groups for which something is set."""
        return iter(self._set)

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """What is set for the group."""
        return self._set.get(group_id, {})

    def default(self, name: str) -> str:
        """The value of a setting that is not set for a group."""
        setting = SETTINGS[name]
        return setting.default if isinstance(setting, Choice) else str(getattr(self._config, setting.above))

    def consumer(self, group_id: str) -> ConsumerGroupConfig:
        """All settings of a group of the consumer protocol, as they are now."""
        name = group_id if group_id in self._set else ""  # all groups without settings of their own have the same
        if name not in self._consumer:
            self._consumer[name] = self._make_consumer(self.overrides(name))
        return self._consumer[name]

    def share(self, group_id: str) -> ShareGroupConfig:
        """All settings of a share group, as they are now."""
        name = group_id if group_id in self._set else ""
        if name not in self._share:
            self._share[name] = self._make_share(self.overrides(name))
        return self._share[name]

    def streams(self, group_id: str) -> StreamsGroupConfig:
        """All settings of a streams group, as they are now."""
        name = group_id if group_id in self._set else ""
        if name not in self._streams:
            self._streams[name] = self._make_streams(self.overrides(name))
        return self._streams[name]

    def _make_consumer(self, values: Mapping[str, str]) -> ConsumerGroupConfig:
        return ConsumerGroupConfig(**self._values("consumer", values), max_size=self._config.group_consumer_max_size)

    def _make_share(self, values: Mapping[str, str]) -> ShareGroupConfig:
        return ShareGroupConfig(**self._values("share", values), max_size=self._config.group_share_max_size)

    def _make_streams(self, values: Mapping[str, str]) -> StreamsGroupConfig:
        return StreamsGroupConfig(**self._values("streams", values), max_size=self._config.group_streams_max_size)

    def _values(self, kind: Kind, values: Mapping[str, str]) -> dict[str, Any]:
        """The settings of such groups, by the fields of their config."""
        found: dict[str, Any] = {}
        for name, setting in SETTINGS.items():
            if setting.kind != kind:
                continue
            text = values.get(name, self.default(name))
            if isinstance(setting, Choice):
                found[setting.field] = setting.read(text)
            else:
                found[setting.field] = min(max(int(text), self._bound(setting.least)), self._bound(setting.most))
        return found

    def _bound(self, bound: str | int) -> int:
        return bound if isinstance(bound, int) else int(getattr(self._config, bound))

    def check(self, values: Mapping[str, str]) -> None:
        """Raise RequestError unless a group may have these settings."""
        for name, text in values.items():
            setting = SETTINGS.get(name)
            if setting is None:
                raise RequestError(
                    Code.invalid_config, f"groups have no setting {name!r}: they have {', '.join(SETTINGS)}"
                )
            if isinstance(setting, Choice):
                self._check_choice(name, setting, text)
            else:
                self._check_number(name, setting, text)
        for kind, made in (
            ("consumer", self._make_consumer(values)),
            ("share", self._make_share(values)),
            ("streams", self._make_streams(values)),
        ):
            is_asked = any(name.startswith(f"{kind}.") for name in values)
            if is_asked and made.session_timeout_ms <= made.heartbeat_interval_ms:
                raise RequestError(
                    Code.invalid_config,
                    f"{kind}.session.timeout.ms: expected more than the heartbeat interval of "
                    f"{made.heartbeat_interval_ms}, found {made.session_timeout_ms}",
                )

    @staticmethod
    def _check_choice(name: str, setting: Choice, text: str) -> None:
        try:
            setting.read(text)
        except ValueError:
            raise RequestError(Code.invalid_config, f"{name}: expected {setting.expected}, found {text!r}") from None

    def _check_number(self, name: str, setting: Number, text: str) -> None:
        if not _WHOLE.fullmatch(text.strip()):
            raise RequestError(Code.invalid_config, f"{name}: expected a whole number, found {text!r}")
        value = int(text)
        least, most = self._bound(setting.least), self._bound(setting.most)
        if not least <= value <= most:
            bounds = " and ".join(
                bound.replace("_", ".") for bound in (setting.least, setting.most) if isinstance(bound, str)
            )
            raise RequestError(
                Code.invalid_config,
                f"{name}: expected {least} to {most}, found {value}" + (f"; the bounds are {bounds}" if bounds else ""),
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
            self._consumer.pop(group_id, None)
            self._share.pop(group_id, None)
            self._streams.pop(group_id, None)
            if after:
                self._set[group_id] = after
            else:
                self._set.pop(group_id, None)
