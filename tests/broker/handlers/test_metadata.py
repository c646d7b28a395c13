"""Metadata: nodes and topics."""

import asyncio
import uuid

import pytest
from msgspec.structs import replace

import mainstem
from mainstem.core import SystemClock
from mainstem.wire.errors import Code
from tests.support.broker import CONFIG, Client, running, until
from tests.support.raw import RawClient


@pytest.mark.parametrize("version", range(14))
def test_every_version_names_the_node_and_the_topic(raw, topic, version, mainstem_log):
    answer = raw.call(3, version, topics=[{"name": topic}])
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == mainstem_log.bootstrap
    (found,) = answer.topics
    (partition,) = found.partitions
    assert (found.name, found.error_code, partition.leader_id) == (topic, Code.none, broker.node_id)
    assert tuple(partition.replica_nodes) == tuple(partition.isr_nodes) == (broker.node_id,)
    if version >= 2:
        assert len(answer.cluster_id) == 22
    if version >= 10:
        assert found.topic_id is not None


def test_null_asks_for_all_topics_and_an_empty_list_for_none(raw, topic):
    assert topic in [each.name for each in raw.call(3, 9, topics=None).topics]
    assert raw.call(3, 9, topics=[]).topics == ()
    assert topic in [each.name for each in raw.call(3, 0, topics=[]).topics]


def test_the_metadata_partition_is_no_topic(raw):
    assert "__mainstem_metadata" not in [each.name for each in raw.call(3, 9, topics=None).topics]
    answer = raw.call(3, 9, topics=[{"name": "__mainstem_metadata"}], allow_auto_topic_creation=True)
    assert answer.topics[0].error_code is Code.invalid_topic_exception


def test_internal_topics_say_so(raw):
    found = {each.name: each.is_internal for each in raw.call(3, 9, topics=None).topics}
    assert found["__consumer_offsets"]
    assert found["__transaction_state"]


def test_a_missing_topic_is_created_where_the_client_allows_it(raw):
    name = f"auto-{uuid.uuid4().hex}"
    refused = raw.call(3, 9, topics=[{"name": name}], allow_auto_topic_creation=False)
    assert refused.topics[0].error_code is Code.unknown_topic_or_partition
    created = raw.call(3, 9, topics=[{"name": name}], allow_auto_topic_creation=True)
    assert created.topics[0].error_code is Code.none
    assert len(created.topics[0].partitions) == 1


def test_where_no_topics_are_made_by_asking_there_are_none():
    with mainstem.embedded(broker={"auto_create_topics_enable": False}) as log, RawClient(log.bootstrap) as raw:
        for _ in range(2):
            (answer,) = raw.call(3, 9, topics=[{"name": "t"}], allow_auto_topic_creation=True).topics
            assert answer.error_code is Code.unknown_topic_or_partition


def test_a_topic_in_which_state_is_kept_is_not_made_by_asking():
    """With the settings of any topic it would lose what is older than a week."""
    with mainstem.embedded() as log, RawClient(log.bootstrap) as raw:
        for name in (
            "_schemas",
            "__mainstem.sources",
            "__mainstem.new",
            "__share_group_state",
            "__cluster_metadata",
        ) * 2:
            (answer,) = raw.call(3, 9, topics=[{"name": name}], allow_auto_topic_creation=True).topics
            assert (answer.name, answer.error_code) == (name, Code.unknown_topic_or_partition)


@pytest.mark.parametrize("name", ["", "a b", "..", "x" * 250])
def test_a_name_that_no_topic_can_have(raw, name):
    for allow in (True, False):
        answer = raw.call(3, 9, topics=[{"name": name}], allow_auto_topic_creation=allow)
        assert answer.topics[0].error_code is Code.invalid_topic_exception
        assert answer.topics[0].name == name


def test_topics_by_id(raw, topic):
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    answer = raw.call(3, 12, topics=[{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": uuid.uuid4()}])
    assert [(each.name, each.error_code) for each in answer.topics] == [
        (topic, Code.none),
        (None, Code.unknown_topic_id),
    ]


def test_authorized_operations_only_when_asked(raw, topic):
    asked = raw.call(3, 8, topics=[{"name": topic}], include_topic_authorized_operations=True)
    assert asked.topics[0].topic_authorized_operations == 0b110111111000
    assert asked.cluster_authorized_operations == -(2**31)
    cluster = raw.call(3, 8, topics=[{"name": topic}], include_cluster_authorized_operations=True)
    assert cluster.cluster_authorized_operations > 0


def test_a_topic_that_is_missing_has_operations_too(raw):
    """Of one that is not there kafka-python showed None."""
    asked = {"topics": [{"name": "is-missing"}], "allow_auto_topic_creation": False}
    (told,) = raw.call(3, 9, include_topic_authorized_operations=True, **asked).topics
    assert (told.error_code, told.topic_authorized_operations) == (Code.unknown_topic_or_partition, 0b1101_1111_1000)
    (told,) = raw.call(75, 0, topics=[{"name": "is-missing"}], response_partition_limit=5).topics
    assert (told.error_code, told.topic_authorized_operations) == (Code.unknown_topic_or_partition, 0b1101_1111_1000)


def test_what_is_asked_for_many_times_is_told_once(raw, topic):
    """A request of two megabytes would have an answer of many gigabytes: a topic may have 10,000 partitions."""
    (found,) = raw.call(3, 12, topics=[{"name": topic}] * 3).topics
    assert [each.name for each in raw.call(3, 9, topics=[{"name": topic}, {"name": f"{topic}-new"}] * 2).topics] == [
        topic,
        f"{topic}-new",
    ]
    asked = [{"name": str(number), "topic_id": found.topic_id} for number in range(3)]
    assert [each.name for each in raw.call(3, 12, topics=asked).topics] == [topic]


@pytest.mark.parametrize("version", [10, 11])
def test_versions_that_have_ids_in_answers_alone_are_asked_by_name(raw, version):
    """The answer had a name of null, which nobody could read."""
    answer = raw.call(3, version, topics=[{"topic_id": uuid.uuid4(), "name": "t"}])
    assert [each.error_code for each in answer.topics] == [Code.invalid_request]


def test_of_more_partitions_than_kafka_makes_at_once_none_is_made_by_asking(tmp_path):
    async def check() -> None:
        async with running(tmp_path, SystemClock(), replace(CONFIG, num_partitions=5_001)) as broker:
            client = await Client.connect(broker)
            asked = [{"name": "one"}, {"name": "another"}, {"name": "no/name"}]
            found = (await client.call(3, 9, topics=asked, allow_auto_topic_creation=True)).topics
            assert [each.error_code for each in found] == [
                Code.unknown_topic_or_partition,
                Code.unknown_topic_or_partition,
                Code.invalid_topic_exception,
            ]
            assert broker.topics.get("one") is broker.topics.get("another") is None
            client.close()

    asyncio.run(check())


def test_who_has_gone_has_no_further_topic_made(tmp_path, monkeypatch):
    """Twenty thousand in one request took minutes of the disk, for nobody."""

    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            client = await Client.connect(broker)
            made = []
            create = broker.topics.create

            async def create_and_note(name, *args, **named):
                made.append(name)
                client.close()
                await until(lambda: not broker.connections, "the client has gone")
                return await create(name, *args, **named)

            monkeypatch.setattr(broker.topics, "create", create_and_note)
            client.send(3, 9, topics=[{"name": f"t{number}"} for number in range(20)], allow_auto_topic_creation=True)
            await until(lambda: bool(made), "the first is made")
            await until(lambda: all(each.get_name() != "api 3" for each in asyncio.all_tasks()), "it is over")
            assert made == ["t0"]

    asyncio.run(check())
