"""Settings of the broker that a request may change while it runs: Kafka's dynamic broker configs (KIP-226).

There are two layers of them: what is set for all brokers (the resource with an empty name), and above it what is set
for this one (the resource named by its number). Both are facts of the log. Below them is what the broker was started
with for its topics (`BrokerConfig.topic_defaults`); what none of them has is the default.

Those that topics take over (`TOPIC_DEFAULTS`) hold at once, for each topic that has no value of its own; the
coordinators' own topics are left as they are. Those that mean nothing here (`WITHOUT_EFFECT`) are kept and shown, so
that what sets up a Kafka finds what it knows. Everything else comes from the start of the broker (`BrokerConfig`).
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeAlias

from mainstem.broker.facts import Facts
from mainstem.broker.topic_settings import check_taken
from mainstem.core.wrong_settings import nearest
from mainstem.log import InvalidTopicConfig, TopicConfig
from mainstem.wire.errors import Code, RequestError

FROM_THIS_BROKER: Final = 2
FROM_ALL_BROKERS: Final = 3
FROM_START: Final = 4
"""Where a value comes from (Kafka's ConfigSource)."""

ALL_BROKERS: Final = ""
_KEY: Final = "broker:"

TOPIC_DEFAULTS: Final[Mapping[str, str]] = {
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.local.retention.bytes": "local.retention.bytes",
    "log.local.retention.ms": "local.retention.ms",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.preallocate": "preallocate",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "message.max.bytes": "max.message.bytes",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Kafka's name for the broker, and the topic setting that it is the default of."""

BROKERS_NAMES: Final[Mapping[str, str]] = {of_topic: of_broker for of_broker, of_topic in TOPIC_DEFAULTS.items()}

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "background.threads": "10",
    "follower.replication.throttled.rate": "9223372036854775807",
    "leader.replication.throttled.rate": "9223372036854775807",
    "log.cleaner.backoff.ms": "15000",
    "log.cleaner.dedupe.buffer.size": "134217728",
    "log.cleaner.io.buffer.load.factor": "0.9",
    "log.cleaner.io.buffer.size": "524288",
    "log.cleaner.io.max.bytes.per.second": "1.7976931348623157E308",
    "log.cleaner.threads": "1",
    "num.io.threads": "8",
    "num.network.threads": "3",
    "num.recovery.threads.per.data.dir": "2",
    "num.replica.fetchers": "1",
    "replica.alter.log.dirs.io.max.bytes.per.second": "9223372036854775807",
    "sasl.kerberos.min.time.before.relogin": "60000",
    "sasl.kerberos.ticket.renew.jitter": "0.05",
    "sasl.kerberos.ticket.renew.window.factor": "0.8",
    "sasl.login.refresh.buffer.seconds": "300",
    "sasl.login.refresh.min.period.seconds": "60",
    "sasl.login.refresh.window.factor": "0.8",
    "sasl.login.refresh.window.jitter": "0.05",
}
"""Kafka's name and default: its threads, its cleaner's buffers, its replication, its logins elsewhere."""

_MIN_IN_SYNC: Final = "min.insync.replicas"
_ALWAYS_SET: Final[Mapping[str, str]] = {_MIN_IN_SYNC: "1"}
"""For all brokers, from the first start on, as in Kafka from 4.1 on (KIP-966); it may be changed there alone."""

Change: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]
"""What is to be set for a layer, made of what is set for it when its turn has come."""


class DynamicSettings:
    """Both layers, as the facts have them and as they change; topics follow."""

    def __init__(self, facts: Facts, node_id: int, start: Mapping[str, str]) -> None:
        """`start`: what the broker is started with for its topics, as `of_start` takes it."""
        self._facts = facts
        self.on_change: Callable[[TopicConfig], None] = lambda _: None
        """Told what topics are to have where they have no value of their own, with each change."""
        self._node = str(node_id)
        self._changing = asyncio.Lock()
        self._start = of_start(start)
        self._layers: dict[str, dict[str, str]] = {self._node: {}, ALL_BROKERS: dict(_ALWAYS_SET)}
        for name, fact in facts.below(_KEY):
            if name in self._layers:  # those of another number are of a broker that this log was under before
                self._layers[name] |= fact

    @property
    def defaults(self) -> TopicConfig:
        """What topics have where they have no value of their own."""
        return self._defaults(self._layers)

    def _defaults(self, layers: Mapping[str, Mapping[str, str]]) -> TopicConfig:
        return topic_defaults({**self._start, **layers[ALL_BROKERS], **layers[self._node]})

    def of(self, broker: str) -> Mapping[str, str]:
        """What is set for this broker (its number), or for all (an empty name).

        Raises:
            RequestError: there is no such broker.
        """
        if broker not in self._layers:
            raise RequestError(Code.invalid_request, f"broker {broker!r}, the only one is {self._node}")
        return self._layers[broker]

    async def change(self, broker: str, change: Change, *, validate_only: bool) -> None:
        """Set what `change` makes of what is set; durable, and in effect, on return.

        Raises:
            RequestError: there is no such broker, or a setting that cannot be changed, or not to that value.
        """
        async with self._changing:
            before = self.of(broker)
            after = dict(change(before))
            check(after)
            self._check_min_in_sync(broker, before, after)
            layers = self._layers | {broker: after}
            defaults = self._defaults(layers)
            self._check_defaults(after, before, defaults)
            if not validate_only:
                await self._facts.put({f"{_KEY}{broker}": after or None})
                self._layers = layers
                self.on_change(defaults)

    @staticmethod
    def _check_defaults(after: Mapping[str, str], before: Mapping[str, str], defaults: TopicConfig) -> None:
        """A topic without settings of its own could not be made."""
        try:
            check_taken(_of_topics(after), defaults, before=_of_topics(before))
        except InvalidTopicConfig as error:
            raise RequestError(Code.invalid_request, str(error)) from None

    @staticmethod
    def _check_min_in_sync(broker: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        value = after.get(_MIN_IN_SYNC)
        if broker == ALL_BROKERS and value is None:
            raise RequestError(Code.invalid_config, f"{_MIN_IN_SYNC} of all brokers can be changed, not removed")
        if broker != ALL_BROKERS and value is not None and value != before.get(_MIN_IN_SYNC):
            raise RequestError(Code.invalid_config, f"{_MIN_IN_SYNC} can be set for all brokers, not for one")

    def synonyms(self, name: str) -> list[dict[str, Any]]:
        """What is set under that name, the one that counts first, as DescribeConfigs tells it."""
        layers = (
            (self._layers[self._node], FROM_THIS_BROKER),
            (self._layers[ALL_BROKERS], FROM_ALL_BROKERS),
            (self._start, FROM_START),
        )
        return [{"name": name, "value": layer[name], "source": source} for layer, source in layers if name in layer]


def topic_defaults(settings: Mapping[str, str]) -> TopicConfig:
    """The defaults of topics under these settings of the broker.

    Raises:
        RequestError: a value that the topic setting does not take.
    """
    try:
        return TopicConfig.from_kafka(_of_topics(settings))
    except InvalidTopicConfig as error:
        raise RequestError(Code.invalid_request, str(error)) from None


def _of_topics(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that topics take over, by the names that they have there."""
    return {TOPIC_DEFAULTS[name]: value for name, value in settings.items() if name in TOPIC_DEFAULTS}


def of_start(settings: Mapping[str, str]) -> dict[str, str]:
    """What a broker is started with for its topics, by the broker's names; given by the topics', where underscores
    count as dots: a variable of the environment has no dots.

    Raises:
        InvalidTopicConfig: a name or a value that topics do not take, or one that is not the broker's to say.
    """
    settings = {name.replace("_", "."): value for name, value in settings.items()}
    check_taken(settings, TopicConfig.from_kafka(settings))
    for name in settings:
        if name not in BROKERS_NAMES:
            raise InvalidTopicConfig(f"{name} is each topic's own: there is no default to set")
        if BROKERS_NAMES[name] in _ALWAYS_SET:
            raise InvalidTopicConfig(
                f"{name} is set for all topics while the log runs (kafka-configs --entity-default)"
            )
    return {BROKERS_NAMES[name]: value for name, value in settings.items()}


@cache
def default_of(name: str) -> str:
    """The value where nothing is set."""
    if name in TOPIC_DEFAULTS:
        return TopicConfig().to_kafka()[TOPIC_DEFAULTS[name]]
    return WITHOUT_EFFECT[name]


_STATIC = "Cannot update these configs dynamically"
"""In Kafka's words: tests of clients look for them."""


def check(settings: Mapping[str, str]) -> None:
    """Check names, and values as far as nobody else does.

    Raises:
        RequestError: a name that is not among those that can be changed, or a value of another kind.
    """
    for name, value in settings.items():
        if name in TOPIC_DEFAULTS:
            continue
        if name not in WITHOUT_EFFECT:
            alike = nearest(name, (*TOPIC_DEFAULTS, *WITHOUT_EFFECT))
            hint = f" (or did you mean {alike}?)" if alike else ""
            raise RequestError(Code.invalid_request, f"{_STATIC}: [{name}]: mainstem.toml is where it is given{hint}")
        _check_number(name, value, whole=WITHOUT_EFFECT[name].isdigit())


def _check_number(name: str, value: str, *, whole: bool) -> None:
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        kind = "an integer" if whole else "a number"
        raise RequestError(Code.invalid_request, f"{name}: expected {kind}, found {value!r}") from None
    if not number >= (1 if whole else 0):
        raise RequestError(Code.invalid_request, f"{name}: expected {1 if whole else 0} or more, found {value}")
