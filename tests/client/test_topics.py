import re
import time
from concurrent.futures import Future

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from mainstem import embedded
from mainstem.client import BrokerUnavailable, Connection, TopicMismatch, UnknownTopic, topics
from mainstem.client.append import append
from mainstem.client.compacted import read_compacted
from mainstem.client.connection import Security
from mainstem.client.errors import TopicRefused
from mainstem.client.internal import COMMITS, INTERNAL_TOPICS
from mainstem.client.topics import (
    alter_config,
    bounds,
    brokers,
    cluster_id,
    delete,
    describe,
    describe_config,
    end_offsets,
    ensure_internal_topics,
    ensure_topic,
    list_topics,
    offsets_since,
    spans,
    stable_offsets,
    start_offsets,
    topic_ids,
    topic_settings,
    what_can_be_lost,
)
from mainstem.core import TopicPartition, UserError
from mainstem.log.config import TopicConfig
from tests.support.counting import counted
from tests.support.proxy import CuttingProxy
from tests.support.undecided import undecided
from tests.support.waiting import wait_until

LIST_OFFSETS = 2  # its API key


def test_brokers_are_at_the_addresses_that_clients_are_told(connection):
    assert set(connection.addresses) <= set(brokers(connection))


def test_internal_topics_are_made_once(connection):
    ensure_internal_topics(connection)
    present = list_topics(connection)
    assert all(present[topic.name].partitions == 1 for topic in INTERNAL_TOPICS)
    for topic in INTERNAL_TOPICS:
        assert topic.config.items() <= describe_config(connection, topic.name).items()


def test_a_client_that_asks_for_an_internal_topic_does_not_make_it():
    """It had Kafka's week of retention: ids of schemas and positions of sources went with it."""
    with embedded() as log:
        connection = Connection(log.bootstrap)
        for topic in INTERNAL_TOPICS:
            Producer(connection.confluent()).list_topics(topic.name, timeout=30)
        assert [topic.name for topic in INTERNAL_TOPICS if topic.name in list_topics(connection)] == []


def test_an_internal_topic_that_would_lose_what_it_holds_is_refused():
    with embedded() as log:
        connection = Connection(log.bootstrap)
        ensure_topic(connection, COMMITS, 1, {})
        with pytest.raises(TopicMismatch, match=f"topic {COMMITS}: expected cleanup.policy = compact, found delete"):
            ensure_internal_topics(connection)


def test_a_topic_is_made_while_another_thread_drops_the_admin_client(connection, name, monkeypatch):
    """It ended as if the log were down: `Handle is terminating`."""

    class Dropped(topics.AdminClient):
        def create_topics(self, *args, **options):
            futures = super().create_topics(*args, **options)
            topics.admin.cache_clear()
            return futures

    monkeypatch.setattr(topics, "AdminClient", Dropped)
    topics.admin.cache_clear()
    assert ensure_topic(connection, name, 1).name == name
    topics.admin.cache_clear()


def test_a_topic_is_made_once_and_keeps_its_partitions(connection, name):
    made = ensure_topic(connection, name, 2, {"retention.ms": "1234567"})
    assert (made.name, made.partitions, made.replication_factor) == (name, 2, 1)
    assert ensure_topic(connection, name, 2) == made == describe(connection, name)
    assert describe_config(connection, name)["retention.ms"] == "1234567"
    with pytest.raises(TopicMismatch, match="expected 5 partitions, found 2"):
        ensure_topic(connection, name, 5)
    assert ensure_topic(connection, name, 2, {"retention.ms": "1234567"}, same_settings=True) == made
    assert ensure_topic(connection, name, 2, {"retention.ms": "7654321"}) == made
    with pytest.raises(TopicMismatch, match=r"expected retention\.ms = 7654321, found 1234567"):
        ensure_topic(connection, name, 2, {"retention.ms": "7654321"}, same_settings=True)


@pytest.mark.kafka
def test_a_topic_that_is_made_while_a_broker_is_down_has_replicas_on_all(kafka_cluster, name):
    connection = Connection(kafka_cluster.bootstrap)
    ensure_topic(connection, f"{name}.before", 1)
    kafka_cluster.kill(3)
    wait_until(lambda: len(kafka_cluster.admin().list_topics(timeout=5).brokers) == 2, "two brokers are left")
    assert ensure_topic(connection, name, 3).replication_factor == 3
    append(connection, name, [(None, b"x")] * 5)
    assert sum(end_offsets(connection, name).values()) == 5


def test_where_brokers_are_gone_for_good_a_topic_has_replicas_on_those_that_are_left(connection, name, monkeypatch):
    monkeypatch.setattr(topics, "_replication_factors", lambda _: (1, 3))
    assert ensure_topic(connection, name, 1).replication_factor == 1
    with pytest.raises(TopicRefused):
        ensure_topic(connection, f"{name}.more", 1, replication_factor=3)


@pytest.mark.parametrize(("partitions", "config"), [(1, {"retenshun.ms": "1"}), (0, {})])
def test_a_topic_that_cannot_be_made_is_no_broker_that_does_not_answer(connection, name, partitions, config):
    with pytest.raises(TopicRefused, match=f"^create topic {name}: "):
        ensure_topic(connection, name, partitions, config)


def test_a_topic_whose_name_is_refused_is_no_broker_that_does_not_answer(connection, topic):
    for refused in (f"{topic} ü", f"{topic}.x"):
        ensure_topic(connection, f"{topic}_x", 1)
        with pytest.raises(TopicRefused, match=f"^create topic {refused}: "):
            ensure_topic(connection, refused, 1)


@pytest.mark.parametrize(
    ("given", "partitions", "factor", "settings", "hint"),
    [
        ("a b", 1, None, {}, "a topic's name is 1 to 249 of the letters"),
        ("{topic}.x", 1, None, {}, "take another name"),
        ("{topic}.y", 0, None, {}, "give a number of partitions that the log takes"),
        ("{topic}.y", 10_001, None, {}, "give a number of partitions that the log takes"),  # it was "from 1 on"
        ("{topic}.y", 1, 99, {}, "as many replicas as"),
        ("{topic}.y", 1, None, {"retention.ns": "1"}, "did you mean retention.ms?"),
        ("{topic}.y", 1, None, {"retention.ms": "long"}, "its settings are those of https://kafka.apache.org"),
    ],
)
def test_the_hint_is_of_what_was_refused(connection, topic, given, partitions, factor, settings, hint):
    """All were told which settings there are, a name with a space in it too."""
    ensure_topic(connection, f"{topic}_x", 1)
    with pytest.raises(TopicRefused) as refused:
        ensure_topic(connection, given.format(topic=topic), partitions, settings, replication_factor=factor)
    assert hint in refused.value.hint


def test_settings_of_a_topic_are_changed_and_taken_back(connection, name):
    """Hints named a tool of Kafka's, which is not there."""
    ensure_topic(connection, name, 1, {"retention.ms": "1000", "max.message.bytes": "7777"})
    with pytest.raises(TopicMismatch) as mismatch:
        ensure_topic(connection, name, 1, {"retention.ms": "2000"}, same_settings=True)
    (command,) = re.findall("`mainstem topic alter (.*)`", mismatch.value.hint)
    assert command == f"{name} retention.ms=2000 --bootstrap {connection.bootstrap}"
    alter_config(connection, name, {"retention.ms": "2000", "max.message.bytes": None})
    until = time.monotonic() + 10  # Apache Kafka's broker hears of it a moment later
    while (found := describe_config(connection, name))["retention.ms"] != "2000" and time.monotonic() < until:
        time.sleep(0.01)
    assert (found["retention.ms"], found["max.message.bytes"]) == ("2000", "1048588")
    with pytest.raises(TopicRefused, match=r"^alter topic .*retenshun\.ms") as refused:
        alter_config(connection, name, {"max.message.bytes": "5", "retenshun.ms": "1"})
    assert refused.value.hint == "did you mean retention.ms?"
    assert describe_config(connection, name) == found
    with pytest.raises(UnknownTopic, match="no such topic"):
        alter_config(connection, f"{name}.never-there", {"retention.ms": "1"})


def test_a_topic_that_is_deleted_is_unknown(connection, topic):
    delete(connection, [topic, f"{topic}.never-there"])

    def is_unknown():  # to Apache Kafka's brokers a little later than to its controller, which answers
        try:
            describe(connection, topic)
        except UnknownTopic as error:
            return topic in str(error)

    wait_until(is_unknown, "the topic is gone")


def test_offsets_of_every_partition(connection, topic):
    append(connection, topic, [(None, b"x")] * 5)
    assert end_offsets(connection, topic) == end_offsets(connection, topic, committed=True) == {0: 5, 1: 0, 2: 0}
    assert start_offsets(connection, topic) == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize(
    "code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH]
)
def test_a_leader_that_does_not_know_it_yet_is_asked_again(connection, topic, monkeypatch, code):
    """Apache Kafka names a new topic's leaders a moment before they know of it."""
    append(connection, topic, [(None, b"x")] * 5)
    client, refusals = topics.admin(connection), []

    class Election:
        def list_offsets(self, wanted, **options):
            answers = client.list_offsets(wanted, **options)
            if len(refusals) < 2:
                refusals.append(Future())
                refusals[-1].set_exception(KafkaException(KafkaError(code)))
                answers |= {next(iter(answers)): refusals[-1]}
            return answers

        def __getattr__(self, name):
            return getattr(client, name)

    monkeypatch.setattr(topics, "admin", lambda _: Election())
    assert end_offsets(connection, topic) == {0: 5, 1: 0, 2: 0}
    assert len(refusals) == 2


def test_a_topic_of_which_the_log_tells_nothing_is_not_taken_for_empty(connection, topic, monkeypatch):
    told = topics.admin(connection).list_topics(timeout=30)
    told.topics[topic].error, told.topics[topic].partitions = KafkaError(KafkaError.LEADER_NOT_AVAILABLE), {}
    monkeypatch.setattr(topics, "_metadata", lambda _: told)
    with pytest.raises(BrokerUnavailable, match=f"describe topic {topic}: Broker: Leader not available"):
        end_offsets(connection, topic)


def test_a_leader_that_ends_before_it_answers_is_asked_again(connection, topic):
    append(connection, topic, [(None, b"x")] * 5)
    with CuttingProxy(connection.bootstrap, cut_before_api=LIST_OFFSETS, most_cuts=2) as proxy:
        assert end_offsets(Connection(proxy.address), topic) == {0: 5, 1: 0, 2: 0}


def test_and_again_for_as_long_as_an_election_takes(connection, topic, monkeypatch):
    """However fast each answer was."""
    monkeypatch.setattr(topics, "TIMEOUT_SECONDS", 60.0)
    with CuttingProxy(connection.bootstrap, cut_before_api=LIST_OFFSETS, most_cuts=20) as proxy:
        assert end_offsets(Connection(proxy.address), topic) == {0: 0, 1: 0, 2: 0}


def test_and_a_state_is_read_whole(connection, name):
    ensure_topic(connection, name, 1)
    append(connection, name, [(b"key", b"value")])
    with CuttingProxy(connection.bootstrap, cut_before_api=LIST_OFFSETS, most_cuts=2) as proxy:
        assert read_compacted(Connection(proxy.address), name) == {b"key": b"value"}


def test_a_leader_that_never_answers_is_an_error(connection, topic, monkeypatch):
    monkeypatch.setattr(topics, "TIMEOUT_SECONDS", 1.0)
    with (
        CuttingProxy(connection.bootstrap, cut_before_api=LIST_OFFSETS) as proxy,
        pytest.raises(BrokerUnavailable, match=f"offsets of topic {topic}: the leader of .* does not answer"),
    ):
        end_offsets(Connection(proxy.address), topic)


def test_offsets_since_a_time(connection, topic):
    producer = Producer(connection.confluent())
    for time_ms in (1000, 2000, 3000):
        producer.produce(topic, b"x", partition=0, timestamp=time_ms)
    producer.flush(30)
    assert offsets_since(connection, topic, 1001) == {0: 1, 1: -1, 2: -1}
    assert offsets_since(connection, topic, 3001) == {0: -1, 1: -1, 2: -1}


def test_the_bounds_of_every_partition(connection, topic):
    append(connection, topic, [(None, b"x")] * 5)
    assert bounds(connection, {topic: 3}) == {
        TopicPartition(topic, 0): (0, 5), TopicPartition(topic, 1): (0, 0), TopicPartition(topic, 2): (0, 0)
    }  # fmt: skip
    assert bounds(connection, {}) == {}


def test_the_offsets_of_many_topics_are_asked_for_together(connection, name, monkeypatch):
    monkeypatch.setattr(topics, "_MOST_PLACES", 4)
    names = {f"{name}.{number}": 2 for number in range(5)}
    for each in names:
        ensure_topic(connection, each, 2)
    append(connection, f"{name}.4", [(None, b"x")] * 5)
    calls = counted(monkeypatch)
    assert spans(connection, names) == {each: 5 * each.endswith(".4") for each in names}
    assert calls == ["list_offsets"] * 6
    delete(connection, [f"{name}.0"])
    gone = names | {f"{name}.1": 3}  # it was made anew, with fewer partitions
    assert list(spans(connection, gone)) == list(stable_offsets(connection, gone)) == list(names)[2:]
    assert spans(connection, {}) == stable_offsets(connection, {}) == {}


def test_what_is_undecided_is_not_stable(connection, name):
    ensure_topic(connection, name, 1)
    with undecided(connection, name, lambda word: [(name, None, word.encode())]):
        expected = end_offsets(connection, name, committed=True)
        assert stable_offsets(connection, {name: 1}) == {name: expected}
        assert spans(connection, {name: 1})[name] == end_offsets(connection, name)[0] > expected[0]


def test_a_topic_that_is_made_anew_has_another_id(connection, topic):
    before = topic_ids(connection, [topic, f"{topic}.never-there"])
    assert before.keys() == {topic}
    delete(connection, [topic])
    ensure_topic(connection, topic, 3)
    assert topic_ids(connection, [topic])[topic] != before[topic]
    assert cluster_id(connection) == cluster_id(connection) != ""


@pytest.mark.filterwarnings("ignore")
def test_nobody_there_is_one_line(monkeypatch):
    monkeypatch.setattr("mainstem.client.topics.TIMEOUT_SECONDS", 1.0)
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:\d+: list topics") as caught:
        list_topics(Connection("127.0.0.1:1"))
    assert "is that the address of a log, and" in caught.value.hint


@pytest.mark.filterwarnings("ignore")
def test_who_is_not_let_in_is_told_so_at_once(monkeypatch):
    """It was no answer after half a minute."""
    users = {"sasl_enabled_mechanisms": ["PLAIN"], "users": {"ann": "right"}}
    with embedded(broker={"protocol": "SASL_PLAINTEXT", **users}) as log:
        security = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="ann", password="wrong")
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="invalid credentials") as caught:
            list_topics(Connection(log.bootstrap, security))
        assert "MAINSTEM_SECURITY__PASSWORD" in caught.value.hint
        assert time.monotonic() - began < 10
        with pytest.raises(UserError, match=r"sasl\.username and sasl\.password") as caught:
            list_topics(Connection(log.bootstrap, msgspec.structs.replace(security, username="", password="")))
        assert "MAINSTEM_SECURITY__PASSWORD" in caught.value.hint


@pytest.mark.filterwarnings("ignore")
def test_that_a_listener_has_no_tls_is_told_at_once():
    with embedded() as log:
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"SSL handshake failed.*PLAINTEXT") as caught:
            list_topics(Connection(log.bootstrap, Security(protocol="SSL")))
        assert "check [security]" in caught.value.hint
        assert time.monotonic() - began < 10


def test_topics_are_kept_for_ever_unless_the_project_says_otherwise():
    assert topic_settings("stream", {})["retention.ms"] == "-1"
    assert topic_settings("stream", {"retention.ms": "1000"})["retention.ms"] == "1000"
    assert topic_settings("changelog", {})["cleanup.policy"] == "compact"
    assert int(topic_settings("changelog", {})["min.compaction.lag.ms"]) >= 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, False),
        ({"flush.messages": "1000"}, True),
        ({"flush.messages": "1000", "flush.ms": "5000"}, True),
        ({"flush.messages": "1000", "flush.ms": "0"}, False),
        ({"flush.ms": "5000"}, False),
    ],
)
def test_what_can_be_lost_is_what_the_log_syncs_later(settings, told):
    line = what_can_be_lost("orders", settings)
    assert (line is not None) == told == (not TopicConfig.from_kafka(settings).syncs_every_append)
    assert line is None or "topic orders has flush.messages = 1000: " in line
