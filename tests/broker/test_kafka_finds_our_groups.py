"""Apache Kafka, started on a copy of the coordinators' partitions, finds each group and transactional id."""

import asyncio
import shutil
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.records import OffsetValue
from mainstem.core import ManualClock
from mainstem.core import TopicPartition as Partition
from tests.support.broker import CONFIG, start, stop
from tests.support.kafka_cluster import KafkaCluster
from tests.support.raw import RawClient

NAMES = [f"name-{number}" for number in range(20)]
TOPIC = "facts"
COUNTS = {
    "__consumer_offsets": CONFIG.offsets_topic_num_partitions,
    "__transaction_state": CONFIG.transaction_state_log_num_partitions,
}


async def fill(path: Path) -> dict[str, int]:
    """A committed offset and a transactional id of each name; the producer ids."""
    broker = await start(path, ManualClock())
    await broker.topics.create(TOPIC, 1, {})
    for number, name in enumerate(NAMES):
        await broker.groups.commit(name, Commit(), {Partition(TOPIC, 0): OffsetValue(number)})
    ids = {name: (await broker.transactions.initialize(name, 60_000)).producer_id for name in NAMES}
    await stop(broker)
    return ids


def put_in_place(ours: Path, kafka: Path) -> None:
    for topic, count in COUNTS.items():
        for number in range(count):
            directory = kafka / f"{topic}-{number}"
            for path in directory.iterdir():
                if path.name != "partition.metadata":  # whose topic's they are
                    path.unlink()
            for path in (ours / directory.name).glob("*.log"):
                shutil.copy(path, directory)
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (kafka / name).unlink(missing_ok=True)


@pytest.mark.kafka
def test_kafka_finds_groups_and_transactional_ids_on_a_copy_of_our_files(tmp_path: Path) -> None:
    ids = asyncio.run(fill(tmp_path / "ours"))
    names = {"__consumer_offsets": "offsets.topic", "__transaction_state": "transaction.state.log"}
    counts = {f"{names[topic]}.num.partitions": str(count) for topic, count in COUNTS.items()}
    # Those times are long ago.
    kept = {"offsets.retention.minutes": "100000000", "transactional.id.expiration.ms": "2147483647"}
    with KafkaCluster(1, tmp_path / "kafka", overrides=counts | kept) as kafka:
        admin = kafka.admin()
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        offsets = [TopicPartition(TOPIC, 0, 0)]
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("first", offsets)])["first"].result(30)
        Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "first"}).init_transactions(30)
        kafka.stop(1)
        put_in_place(tmp_path / "ours", kafka.data(1))
        kafka.start(1)
        for topic, count in COUNTS.items():
            for number in range(count):
                kafka.leader(topic, number)
        with RawClient(kafka.bootstrap) as raw:
            for number, name in enumerate(NAMES):
                request = {"group_id": name, "topics": None}
                (group,) = raw.settled(9, 8, groups=[request], require_stable=False).groups
                ((topic,),) = [group.topics]
                assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [(0, number)]
                (state,) = raw.settled(65, 0, transactional_ids=[name]).transaction_states
                assert (state.error_code, state.producer_id) == (0, ids[name])
