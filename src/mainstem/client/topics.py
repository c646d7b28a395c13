"""Create, describe, alter and delete topics, and ask for their offsets; on any Kafka, through its admin requests."""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any, TypeVar

import msgspec
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, TopicMismatch, TopicRefused, UnknownTopic
from mainstem.client.internal import INTERNAL_TOPICS
from mainstem.core import TopicPartition, UserError, is_topic_name
from mainstem.core.logging import get_logger
from mainstem.core.wrong_settings import suggestion

log = get_logger()

K = TypeVar("K")
V = TypeVar("V")
TIMEOUT_SECONDS = 30.0
_FIRST_ATTEMPT_SECONDS = 2.0  # it may wait for a broker that is gone while another leads by now
_LONGEST_ATTEMPT_SECONDS = 8.0
_ATTEMPT_SECONDS = 5.0
_ABSENT = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_ELECTION = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
)
"""Of one broker, while another becomes the leader or whoever asks has not heard of it."""
_NO_ANSWER = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
_PASSING = (*_ELECTION, *_NO_ANSWER)
_SECURITY_HINT = "check [security] of the project's mainstem.toml, and MAINSTEM_SECURITY__PASSWORD"
_told: dict[Connection, KafkaError] = {}
"""What a log's client was told last of its connections: a request says only that it got no answer."""
_REFUSALS = (
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,  # of its name: a letter that none may have, or one that is another's but for . and _
)
"""The answers that are the same at every try."""
_MOST_PLACES = 20_000  # in one request: our log refuses one with more than 100,000 items
STREAM_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""A project's topics are kept for ever: a week's retention by event time would delete last year's data on arrival."""
CHANGELOG_SETTINGS = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(7 * 24 * 3600 * 1000)}
"""The lag is how long a table can be read as of a past position, and how far behind a replica still gets every
transaction as a whole."""


class TopicDescription(msgspec.Struct, frozen=True):
    """A topic as its cluster describes it."""

    name: str
    partitions: int
    replication_factor: int


@lru_cache(maxsize=8)
def admin(connection: Connection) -> AdminClient:
    """The admin client of this process for a log.

    Keep it in a variable until its futures are done: they fail, or never end, once it is gone, and any thread that gets
    no answer drops it from here. One for all uses, since a new one takes 50 ms until it is connected, and one to three
    seconds where it asks for the leaders of partitions a moment too early.
    """
    settings = connection.confluent(socket_timeout_ms=10_000, log_level=2)
    settings |= {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500}
    try:
        return AdminClient(settings | {"error_cb": partial(_hear, connection)})
    except KafkaException as error:
        raise UserError(f"{connection.bootstrap}: {error.args[0].str()}", hint=_SECURITY_HINT) from None


def is_not_let_in(told: KafkaError) -> bool:
    """Whether a client was told that it is the wrong user, or the certificates are wrong, or there is no TLS: it would
    try again for ever.
    """
    return told.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or "SSL handshake failed" in told.str()


def _hear(connection: Connection, error: KafkaError) -> None:
    before = _told.get(connection)
    if before is not None and is_not_let_in(before) and "SSL_HANDSHAKE" in error.str():
        return  # the next try ended there too, and the client says less of it
    if error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less than what was said before
        _told[connection] = error


def ensure_internal_topics(connection: Connection) -> None:
    """Create the internal topics that are missing; on return all have leaders.

    Raises:
        TopicMismatch: somebody else has created one, and it would lose what it holds.
    """
    present = list_topics(connection)
    for topic in INTERNAL_TOPICS:
        if topic.name not in present:
            ensure_topic(connection, topic.name, 1, topic.config)
        else:
            keeps = {key: value for key, value in topic.config.items() if key in ("cleanup.policy", "retention.ms")}
            _refuse_other_settings(connection, topic.name, keeps)


def ensure_topic(
    connection: Connection,
    name: str,
    partitions: int,
    config: Mapping[str, str] | None = None,
    *,
    replication_factor: int | None = None,
    same_settings: bool = False,
) -> TopicDescription:
    """Create topic `name` unless it exists; on return it has leaders. Replication is min(3, brokers) unless given.

    Brokers that are down for a while count, as far as other topics have replicas there. An existing topic keeps its
    settings; where `same_settings`, others than `config` are refused.

    Raises:
        TopicMismatch: it exists with another number of partitions (keys would change their place) or other settings.
        TopicRefused: the log does not take its name or settings, or as many partitions or replicas.
        BrokerUnavailable: no answer within 30 s.
    """
    up, wanted = _replication_factors(connection)
    try:
        try:
            _create(connection, name, partitions, config, replication_factor or wanted)
        except KafkaException as error:
            if replication_factor or up == wanted or error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            # Brokers that others have replicas on are gone for good.
            log.warning("topic_with_fewer_replicas", topic=name, replicas=up, others=wanted)
            _create(connection, name, partitions, config, up)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            translated = _translated(error, f"create topic {name}")
            if isinstance(translated, TopicRefused):
                translated.hint = _mend(connection, error.args[0].code(), name, config or {})
            raise translated from error
        if same_settings:
            _refuse_other_settings(connection, name, config or {})
    description = _wait_for_leaders(connection, name)
    if description.partitions != partitions:
        raise TopicMismatch(
            f"topic {name}: expected {partitions} partitions, found {description.partitions}",
            hint="a topic keeps its number of partitions; give that number, or another name",
        )
    return description


def _create(
    connection: Connection, name: str, partitions: int, config: Mapping[str, str] | None, replication_factor: int
) -> None:
    new = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(config or {}))
    client = admin(connection)
    client.create_topics([new], request_timeout=TIMEOUT_SECONDS)[name].result()


def _replication_factors(connection: Connection) -> tuple[int, int]:
    """How many replicas a new topic may have by the brokers that are up, and how many it is to have.

    Only brokers that are up are in the metadata. A topic that is made while one of three is down would be left with two
    replicas for good, and take no records when either of them fails: it is to have as many as others.
    """
    metadata = _metadata(connection)
    up = min(3, len(metadata.brokers))
    most = max((_description(topic).replication_factor for topic in metadata.topics.values()), default=0)
    return up, min(3, max(up, most))


def _mend(connection: Connection, code: int, name: str, config: Mapping[str, str]) -> str:
    """The hint where a new topic is refused."""
    match code:
        case KafkaError.INVALID_CONFIG | KafkaError.POLICY_VIOLATION if config:
            return _mend_settings(connection, config)
        case KafkaError.TOPIC_EXCEPTION if is_topic_name(name):
            return "take another name: two topics must differ in more than . and _, which Kafka's metrics cannot tell apart"
        case KafkaError.TOPIC_EXCEPTION:
            return "a topic's name is 1 to 249 of the letters a-z A-Z 0-9 . _ -, and not . or .."
        case KafkaError.INVALID_REPLICATION_FACTOR:
            return "give at most as many replicas as the log has brokers"
    return "give a number of partitions that the log takes"


def _mend_settings(connection: Connection, config: Mapping[str, str | None]) -> str:
    """The hint where settings of a topic are refused: which of them this log does not know, by a topic it has."""
    known = next(iter(describe_configs(connection, list(list_topics(connection))[:1]).values()), dict(config))
    unknown = next((name for name in config if name not in known), "")
    return suggestion(unknown, known, "its settings are those of https://kafka.apache.org/documentation/#topicconfigs")


def _refuse_other_settings(connection: Connection, name: str, expected: Mapping[str, str]) -> None:
    found = describe_config(connection, name)
    for key, value in expected.items():
        if found.get(key) != value:
            hint = "an existing topic keeps its settings; give those"
            if key in found:
                hint += f", or change them: `{alter_command(connection, name, key, value)}`"
            raise TopicMismatch(
                f"topic {name}: expected {key} = {value}, found {found.get(key, 'no such setting')}", hint=hint
            )


def alter_command(connection: Connection, name: str, key: str, value: str) -> str:
    """What a person types to change a setting of a topic."""
    return shlex.join(["mainstem", "topic", "alter", name, f"{key}={value}", "--bootstrap", connection.bootstrap])


def alter_config(connection: Connection, name: str, changes: Mapping[str, str | None]) -> None:
    """Change settings of a topic, all or none; None takes back what was set, so that the log's default holds.

    Raises:
        UnknownTopic: there is no such topic.
        TopicRefused: the log does not take a setting, or its value.
    """
    describe(connection, name)
    entries = [
        ConfigEntry(
            key, value, incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        )
        for key, value in changes.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    client = admin(connection)
    try:
        client.incremental_alter_configs([resource], request_timeout=TIMEOUT_SECONDS)[resource].result()
    except KafkaException as error:
        translated = _translated(error, f"alter topic {name}")
        if isinstance(translated, TopicRefused):
            translated.hint = _mend_settings(connection, changes)
        raise translated from error


def topic_settings(kind: str, own: Mapping[str, str]) -> dict[str, str]:
    """What a topic of a project is created with, whoever comes first: its source, its job, or the project itself."""
    return (CHANGELOG_SETTINGS if kind == "changelog" else STREAM_SETTINGS) | dict(own)


def what_can_be_lost(name: str, settings: Mapping[str, str]) -> str | None:
    """One line for a topic of our own log with settings by which records are acknowledged before they are on the disk;
    None: they are there first, as `TopicConfig.syncs_every_append` of the log has it.
    """
    messages = settings.get("flush.messages", "1")
    if messages == "1" or settings.get("flush.ms") == "0":
        return None
    return (
        f"topic {name} has flush.messages = {messages}: its records are acknowledged before they are on the disk, "
        "and the last ones are lost where the machine loses its power"
    )


def brokers(connection: Connection) -> list[tuple[str, int]]:
    """Host and port of each broker that is up, as clients are told them."""
    return sorted((each.host, each.port) for each in _metadata(connection).brokers.values())


def list_topics(connection: Connection) -> dict[str, TopicDescription]:
    """Every topic by name, internal ones included."""
    topics = _metadata(connection).topics
    return {name: _description(topic) for name, topic in sorted(topics.items())}


def describe(connection: Connection, name: str) -> TopicDescription:
    """Partitions and replication of one topic.

    Raises:
        UnknownTopic: there is no such topic.
    """
    topic = _metadata(connection).topics.get(name)  # of all topics: asking for one may create it on some brokers
    if topic is None:
        raise UnknownTopic(f"topic {name}: no such topic", hint="`mainstem topic list` shows the topics")
    if topic.error is not None:  # then it names no partitions, and nothing is known of what they hold
        raise _translated(KafkaException(topic.error), f"describe topic {name}")
    return _description(topic)


def describe_config(connection: Connection, name: str) -> dict[str, str]:
    """The settings of a topic as the broker sees them, defaults included."""
    return describe_configs(connection, [name])[name]


class Setting(msgspec.Struct, frozen=True):
    """Of a topic, as the broker sees it; `own`: it was set for the topic, and is no default."""

    value: str
    own: bool


def describe_configs(connection: Connection, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The settings of topics that exist, by their names; one request for all."""
    found = describe_settings(connection, names)
    return {name: {key: each.value for key, each in settings.items()} for name, settings in found.items()}


def describe_settings(connection: Connection, names: Iterable[str]) -> dict[str, dict[str, Setting]]:
    """The same, and where each comes from."""
    wanted = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    if not wanted:
        return {}
    found = _asked(
        connection,
        lambda client, seconds: client.describe_configs(wanted, request_timeout=seconds),
        lambda resource: f"describe topic {resource.name}",
        lambda resource: (resource.name, None),
    )
    return {
        resource.name: {
            key: Setting(entry.value, entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
            for key, entry in sorted(entries.items())
        }
        for resource, entries in found.items()
    }


def delete(connection: Connection, names: Iterable[str]) -> None:
    """Delete topics; one that does not exist is no error."""
    client, names = admin(connection), list(dict.fromkeys(names))  # librdkafka ends the process for one named twice
    futures = client.delete_topics(names, request_timeout=TIMEOUT_SECONDS) if names else {}
    for name, future in futures.items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _translated(error, f"delete topic {name}") from error


def end_offsets(connection: Connection, topic: str, *, committed: bool = False) -> dict[int, int]:
    """The next offset of every partition: the high watermark, or the last stable offset where `committed`."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    return _offsets(
        connection,
        topic,
        OffsetSpec.latest(),  # type: ignore[no-untyped-call]
        level,
    )


def start_offsets(connection: Connection, topic: str) -> dict[int, int]:
    """The log start offset of every partition."""
    return _offsets(
        connection,
        topic,
        OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
        IsolationLevel.READ_UNCOMMITTED,
    )


def offsets_since(connection: Connection, topic: str, time_ms: int) -> dict[int, int]:
    """The first offset of every partition whose record's time is `time_ms` or later; -1 where there is none."""
    return _offsets(connection, topic, OffsetSpec.for_timestamp(time_ms), IsolationLevel.READ_UNCOMMITTED)


def cluster_id(connection: Connection) -> str:
    """Which log this is: it stays the same for the life of its data, whatever its address."""
    return str(_metadata(connection).cluster_id)


def topic_ids(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """The id of every topic that exists; one that is deleted and made anew has another id."""
    wanted = list(names)
    if not wanted:
        return {}
    found = _asked(
        connection,
        lambda client, seconds: client.describe_topics(TopicCollection(wanted), request_timeout=seconds),
        lambda name: f"describe topic {name}",
        lambda name: (name, None),
        only_present=True,
    )
    return {name: str(description.topic_id) for name, description in found.items()}


def bounds(
    connection: Connection, topics: Mapping[str, int], *, committed: bool = False
) -> dict[TopicPartition, tuple[int, int]]:
    """Log start offset of every partition, and the high watermark or, where `committed`, the last stable offset:
    `topics` has their number. Two requests for all.
    """
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    places = [ConfluentPartition(topic, number) for topic, count in topics.items() for number in range(count)]
    start, end = (
        _list_offsets(connection, dict.fromkeys(places, spec), "offsets of all topics", isolation_level=level)
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
    )
    return {place: (start[place], end[place]) for place in start}


def spans(connection: Connection, topics: Mapping[str, int]) -> dict[str, int]:
    """How many offsets each topic has, summed over partitions: `topics` has their number. Two requests for all; a topic
    that was deleted meanwhile is left out.
    """
    first, last = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    start, end = (_offsets_of_present(connection, topics, spec) for spec in (first, last))
    return {topic: sum(end[topic].values()) - sum(starts.values()) for topic, starts in start.items() if topic in end}


def stable_offsets(connection: Connection, topics: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """The last stable offset of every partition, by topic: `topics` has their number. One request for all; a topic that
    was deleted meanwhile is left out.
    """
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return _offsets_of_present(connection, topics, latest, isolation_level=IsolationLevel.READ_COMMITTED)


def _offsets_of_present(
    connection: Connection, topics: Mapping[str, int], spec: Any, **options: Any
) -> dict[str, dict[int, int]]:
    places = [ConfluentPartition(topic, number) for topic, count in topics.items() for number in range(count)]
    found: dict[str, dict[int, int]] = {}
    for first in range(0, len(places), _MOST_PLACES):
        wanted = dict.fromkeys(places[first : first + _MOST_PLACES], spec)
        offsets = _list_offsets(connection, wanted, "offsets of all topics", only_present=True, **options)
        for place, offset in offsets.items():
            found.setdefault(place.topic, {})[place.partition] = offset
    return {topic: offsets for topic, offsets in found.items() if len(offsets) == topics[topic]}


def _offsets(connection: Connection, topic: str, spec: Any, level: IsolationLevel) -> dict[int, int]:
    partitions = describe(connection, topic).partitions  # which also tells the client who leads them now
    wanted = {ConfluentPartition(topic, number): spec for number in range(partitions)}
    found = _list_offsets(connection, wanted, f"offsets of topic {topic}", isolation_level=level)
    return {place.partition: offset for place, offset in found.items()}


def _list_offsets(
    connection: Connection,
    wanted: dict[ConfluentPartition, Any],
    doing: str,
    *,
    only_present: bool = False,
    **options: Any,
) -> dict[TopicPartition, int]:
    """Offsets by partition; one that there is not is an error, or left out where `only_present`."""
    found = _asked(
        connection,
        lambda client, seconds: client.list_offsets(wanted, request_timeout=seconds, **options),
        lambda _: doing,
        lambda place: (place.topic, place.partition),
        only_present=only_present,
        # librdkafka has no error for the partitions of a broker that ended before it answered, only this offset. Taken
        # for the end of a partition it would make all that is read from there empty.
        no_answer=lambda result: result.offset == OFFSET_INVALID,
    )
    return {TopicPartition(place.topic, place.partition): result.offset for place, result in found.items()}


def _asked(
    connection: Connection,
    ask: Callable[[AdminClient, float], Mapping[K, Future[V]]],
    doing: Callable[[K], str],
    place: Callable[[K], tuple[str, int | None]],
    *,
    only_present: bool = False,
    no_answer: Callable[[V], bool] = lambda _: False,
) -> dict[K, V]:
    """The answers to a question that changes nothing: asked again while leaders are elected, do not know yet that they
    are, or end, and while a broker has not heard yet of a topic that others list.

    Args:
        connection: the log.
        ask: with so many seconds for the answers.
        doing: what is asked, in words.
        place: the topic that is asked about, and the partition.
        only_present: leave out what there is not, instead of raising it.
        no_answer: whether an answer is none.
    """
    deadline, seconds = time.monotonic() + TIMEOUT_SECONDS, _FIRST_ATTEMPT_SECONDS
    while True:
        client = admin(connection)
        futures = ask(client, seconds)
        seconds = min(2 * seconds, _LONGEST_ATTEMPT_SECONDS)
        late = time.monotonic() + seconds > deadline
        found = {}
        for each, future in futures.items():
            try:
                found[each] = future.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code in _ABSENT and not late and _is_listed(connection, *place(each)):
                    break
                if only_present and code in _ABSENT:
                    continue
                if late or code not in _PASSING:
                    raise _translated(error, doing(each)) from error
                break
            if no_answer(found[each]):
                if late:
                    raise BrokerUnavailable(f"{doing(each)}: the leader of {each} does not answer")
                break
        else:
            return found
        time.sleep(0.1)
        _metadata(connection)  # the client learns who leads them now


def _is_listed(connection: Connection, name: str, partition: int | None) -> bool:
    topic = _metadata(connection).topics.get(name)
    return topic is not None and topic.error is None and (partition is None or partition in topic.partitions)


def _wait_for_leaders(connection: Connection, name: str) -> TopicDescription:
    """A topic is created before its leaders are elected, and a produce in between fails."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        topic = _metadata(connection).topics.get(name)
        if topic and topic.partitions and all(partition.leader >= 0 for partition in topic.partitions.values()):
            return _description(topic)
        time.sleep(0.05)
    raise BrokerUnavailable(f"topic {name}: no leader for every partition within {TIMEOUT_SECONDS:.0f} s")


def _metadata(connection: Connection) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    attempt = _FIRST_ATTEMPT_SECONDS
    _told.pop(connection, None)
    while True:
        left, client = deadline - time.monotonic(), admin(connection)
        try:
            return client.list_topics(timeout=min(attempt, max(left, 0.1)))
        except KafkaException as error:
            client.poll(0)  # what it was told meanwhile
            told = _told.get(connection)
            if told is not None and is_not_let_in(told):
                raise BrokerUnavailable(f"{connection.bootstrap}: {told.str()}", hint=_SECURITY_HINT) from error
            admin.cache_clear()  # it may wait for a broker that is gone; a new client asks those that are there
            if error.args[0].code() not in _NO_ANSWER or left < attempt:
                raise _translated(error, f"{connection.bootstrap}: list topics") from error
            attempt = min(2 * attempt, _ATTEMPT_SECONDS)
            time.sleep(0.05)


def _description(topic: Any) -> TopicDescription:
    replicas = [len(partition.replicas) for partition in topic.partitions.values()]
    return TopicDescription(topic.topic, len(topic.partitions), min(replicas, default=0))


def _translated(error: KafkaException, doing: str) -> Exception:
    cause = error.args[0]
    if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return UnknownTopic(f"{doing}: no such topic")
    if cause.code() in _REFUSALS:
        return TopicRefused(f"{doing}: {cause.str()}")
    hint = "is that the address of a log, and [security] what it asks for? the gateway, say, listens at another"
    return BrokerUnavailable(f"{doing}: {cause.str()}", hint=hint if cause.code() in _NO_ANSWER else "")
