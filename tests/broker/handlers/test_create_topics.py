"""CreateTopics: what is made, and what is refused."""

import asyncio
import uuid

import pytest
from msgspec.structs import replace

from mainstem.broker.config import MOST_PARTITIONS
from mainstem.core import SystemClock
from mainstem.wire.errors import Code
from tests.support.broker import CONFIG, Client, running


def name() -> str:
    return f"made-{uuid.uuid4().hex}"


def create(raw, *topics, version=7, **fields):
    full = [{"num_partitions": -1, "replication_factor": -1, **each} for each in topics]
    return raw.call(19, version, topics=full, timeout=30_000, **fields).topics


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_creates(raw, version):
    topic = name()
    asked = {
        "name": topic,
        "num_partitions": 3,
        "replication_factor": 1,
        "configs": [{"name": "retention.ms", "value": "5"}],
    }
    (made,) = create(raw, asked, version=version)
    assert (made.name, made.error_code) == (topic, Code.none)
    (listed,) = raw.call(3, 12, topics=[{"name": topic}]).topics
    assert len(listed.partitions) == 3
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        assert {each.name: each.value for each in made.configs}["retention.ms"] == "5"
    if version >= 7:
        assert made.topic_id == listed.topic_id


def test_a_dry_run_creates_nothing(raw):
    topic = name()
    assert create(raw, {"name": topic}, validate_only=True)[0].error_code is Code.none
    answer = raw.call(3, 9, topics=[{"name": topic}], allow_auto_topic_creation=False)
    assert answer.topics[0].error_code is Code.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"name": "no/slash"}, Code.invalid_topic_exception),
        ({"name": ".."}, Code.invalid_topic_exception),
        ({"name": "__mainstem_metadata"}, Code.invalid_topic_exception),
        ({"name": "__cluster_metadata"}, Code.invalid_request),
        ({"configs": [{"name": "compression.gzip.level", "value": "0"}]}, Code.invalid_config),
        ({"num_partitions": 0}, Code.invalid_partitions),
        ({"num_partitions": -2}, Code.invalid_partitions),
        ({"replication_factor": 3}, Code.invalid_replication_factor),
        ({"configs": [{"name": "no.such.setting", "value": "1"}]}, Code.invalid_config),
        ({"configs": [{"name": "retention.ms", "value": "soon"}]}, Code.invalid_config),
        ({"assignments": [{"partition_index": 0, "broker_ids": [99]}]}, Code.invalid_replica_assignment),
        ({"assignments": [{"partition_index": 1, "broker_ids": [1]}]}, Code.invalid_replica_assignment),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}], "num_partitions": 1}, Code.invalid_request),
    ],
)
def test_what_is_refused(raw, asked, code):
    (refused,) = create(raw, {"name": name(), **asked})
    assert refused.error_code is code
    assert refused.error_message
    assert (refused.num_partitions, refused.replication_factor) == (-1, -1)


def test_where_the_log_is_told_to_take_them_more_replicas_may_be_asked_for(tmp_path):
    """For programs that ask for three everywhere: the topic has one, and the answer says so."""

    async def check() -> None:
        async with running(tmp_path, SystemClock(), replace(CONFIG, max_replication_factor=3)) as broker:
            client = await Client.connect(broker)
            for factor, taken in ((3, True), (4, False), (0, False)):
                topic = {"name": f"asked-{factor}", "num_partitions": 1, "replication_factor": factor}
                (made,) = (await client.call(19, 7, topics=[topic], timeout=30_000)).topics
                assert made.error_code is (Code.none if taken else Code.invalid_replication_factor)
                assert made.replication_factor == (1 if taken else -1)
            assert "max_replication_factor is 3" in made.error_message
            client.close()

    asyncio.run(check())


def test_assignments_to_the_one_node_say_how_many_partitions(raw):
    (made,) = create(raw, {"name": name(), "assignments": [{"partition_index": i, "broker_ids": [1]} for i in (1, 0)]})
    assert made.num_partitions == 2


def test_a_topic_that_is_there_and_one_that_looks_alike(raw):
    topic = name()
    create(raw, {"name": f"{topic}.x"})
    assert create(raw, {"name": f"{topic}.x"})[0].error_code is Code.topic_already_exists
    assert create(raw, {"name": f"{topic}_x"})[0].error_code is Code.invalid_topic_exception


def test_one_name_twice_in_a_request(raw):
    topic = name()
    (refused,) = create(raw, {"name": topic}, {"name": topic})
    assert refused.error_code is Code.invalid_request


def test_a_topic_has_so_many_partitions_at_most(raw):
    for count, code in ((MOST_PARTITIONS, Code.none), (MOST_PARTITIONS + 1, Code.policy_violation)):
        asked = {"name": name(), "num_partitions": count}
        assert create(raw, asked, validate_only=True)[0].error_code is code
    assert MOST_PARTITIONS == 10_000


@pytest.mark.parametrize("sizes", [(6_000, 4_001), (MOST_PARTITIONS, -1), (0, MOST_PARTITIONS + 1)])
def test_a_request_for_more_partitions_than_kafka_makes_at_once_makes_none(raw, sizes):
    found = create(raw, *({"name": name(), "num_partitions": size} for size in sizes))
    assert {(each.error_code, each.error_message) for each in found} == {
        (Code.policy_violation, "Excessively large number of partitions per request.")
    }
    for each in found:
        (told,) = raw.call(3, 9, topics=[{"name": each.name}], allow_auto_topic_creation=False).topics
        assert told.error_code is Code.unknown_topic_or_partition


def test_what_is_named_twice_is_no_part_of_that_count_nor_is_what_nobody_may_have(raw):
    twice, once = {"name": name(), "num_partitions": 5_000}, {"name": name(), "num_partitions": MOST_PARTITIONS}
    kafkas = {"name": "__cluster_metadata", "num_partitions": 5_000}
    found = create(raw, twice, twice, kafkas, once, validate_only=True)
    assert [each.error_code for each in found] == [Code.invalid_request, Code.invalid_request, Code.none]


def test_a_null_value_of_a_new_topic_means_the_default(raw):
    (made,) = create(raw, {"name": name(), "configs": [{"name": "retention.ms", "value": None}]})
    assert {each.name: each.value for each in made.configs}["retention.ms"] == "604800000"


def test_as_many_names_as_a_request_may_have_are_refused_at_once(raw):
    """Each was looked for among all: five thousand million steps, in which nobody else was served."""
    asked = [{"name": f"a_{number}", "num_partitions": 0} for number in range(90_000)]
    assert {each.error_code for each in create(raw, *asked)} == {Code.invalid_partitions}


def test_a_name_that_looked_like_a_deleted_one_is_free(raw):
    topic = name()
    create(raw, {"name": f"{topic}.x"})
    raw.call(20, 5, topic_names=[f"{topic}.x"], timeout=30_000)
    assert create(raw, {"name": f"{topic}_x"})[0].error_code is Code.none
