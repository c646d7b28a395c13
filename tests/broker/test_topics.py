"""Topic metadata: durable, found again, and tidy after a crash in the middle of a change."""

import asyncio
import errno
import shutil
import threading
import uuid
from functools import partial
from uuid import uuid4

import pytest
import structlog

from mainstem.broker.errors import InvalidPartitions, InvalidTopicName, TopicAlreadyExists, UnknownTopicOrPartition
from mainstem.broker.facts import METADATA
from mainstem.broker.server import Broker
from mainstem.core import ManualClock, TopicPartition
from mainstem.log import BatchTooLarge, InvalidTopicConfig, LogConfig, LogDirectory, StorageError, TopicConfig
from mainstem.log.repair import repair
from mainstem.wire.errors import Code
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import batch, values
from tests.support.broker import CONFIG, Client, crashed, restarted, running, start, stop


def run(coroutine):
    return asyncio.run(coroutine)


def test_topics_survive_a_restart_with_ids_settings_and_cluster_id(tmp_path):
    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            topic = await broker.topics.create("a.b", 2, {"retention.ms": "5"})
            gone = await broker.topics.create("gone", 1, {})
            await broker.topics.delete(gone)
            await broker.topics.add_partitions(topic, 3)
            await broker.topics.set_config(topic, {"retention.ms": "6"})
            before = (broker.topics.cluster_id, topic.topic_id, topic.config)
            assert broker.topics.cluster_id == broker.log.metadata.cluster_id  # what `meta.properties` says
        async with running(tmp_path, ManualClock()) as broker:
            again = broker.topics.by_name("a.b")
            assert (broker.topics.cluster_id, again.topic_id, again.config) == before
            assert [each.config.retention_ms for each in again.logs] == [6, 6, 6]
            assert broker.topics.get("gone") is None
            assert broker.topics.get_by_id(again.topic_id) is again

    run(check())


def test_what_was_answered_survives_a_crash(tmp_path):
    async def check() -> None:
        broker = await start(tmp_path / "a", ManualClock())
        topic = await broker.topics.create("t", 2, {})
        broker = await crashed(broker, tmp_path / "b", ManualClock())
        assert broker.topics.by_name("t").topic_id == topic.topic_id
        await broker.topics.delete(broker.topics.by_name("t"))
        broker = await crashed(broker, tmp_path / "c", ManualClock())
        assert broker.topics.get("t") is None
        assert TopicPartition("t", 0) not in broker.log.partitions
        await stop(broker)

    run(check())


def test_a_log_starts_again_where_nothing_is_left_at_the_end_of_its_metadata(tmp_path):
    """A topic was deleted, then came an idle week: compaction took out the tombstone, the last record. The start looked
    for it for ever."""

    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            topic = await broker.topics.create("t", 1, {})
            metadata = broker.log.partitions[METADATA]
            end = metadata.log_end_offset + 1
        for name in ("checkpoint", "journal.0", "journal.1"):
            (tmp_path / name).unlink()
        (metadata.directory / f"{end:020d}.log").touch()
        async with asyncio.timeout(30), running(tmp_path, ManualClock()) as broker:
            assert broker.log.partitions[METADATA].log_end_offset == end
            assert broker.topics.by_name("t").topic_id == topic.topic_id

    run(check())


def test_partitions_that_no_record_names_are_removed(tmp_path):
    """The crash came between a topic's partitions and its record."""

    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            await broker.log.create_partition(TopicPartition("half", 0), uuid.uuid4(), TopicConfig())
        async with running(tmp_path, ManualClock()) as broker:
            assert TopicPartition("half", 0) not in broker.log.partitions
            await broker.topics.create("half", 1, {})

    run(check())


def test_a_partition_whose_directory_was_removed_by_hand_is_offline_and_not_empty(tmp_path):
    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            topic = await broker.topics.create("t", 2, {})
            await topic.logs[1].append(batch(b"v"))
        shutil.rmtree(tmp_path / "t-1")
        async with running(tmp_path, ManualClock()) as broker:
            found = broker.partition(TopicPartition("t", 1))
            assert found.error is not None
            with pytest.raises(StorageError, match="t-1"):
                await found.read(0, 100)
            assert broker.partition(TopicPartition("t", 0)).error is None

    run(check())


def test_refusals_change_nothing(tmp_path):
    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            topics = broker.topics
            topic = await topics.create("a.b", 2, {})
            before = set(broker.log.partitions)
            for name, count, config, error in (
                ("a.b", 1, {}, TopicAlreadyExists),
                ("a_b", 1, {}, InvalidTopicName),
                ("a/b", 1, {}, InvalidTopicName),
                (METADATA.topic, 1, {}, InvalidTopicName),
                ("c", 0, {}, InvalidPartitions),
                ("c", 1, {"no.such": "1"}, InvalidTopicConfig),
            ):
                with pytest.raises(error):
                    await topics.create(name, count, config)
            with pytest.raises(InvalidPartitions):
                await topics.add_partitions(topic, 2)
            with pytest.raises(InvalidTopicConfig):
                await topics.set_config(topic, {"retention.ms": "x"})
            assert set(broker.log.partitions) == before
            assert topic.config == {}

    run(check())


def test_a_topic_is_created_once_and_deleted_once(tmp_path):
    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            topics = broker.topics
            made = await asyncio.gather(*(topics.create("t", 1, {}) for _ in range(5)), return_exceptions=True)
            assert [type(each).__name__ for each in made].count("TopicAlreadyExists") == 4
            topic = topics.by_name("t")
            gone = await asyncio.gather(*(topics.delete(topic) for _ in range(3)), return_exceptions=True)
            assert [each for each in gone if each is None] == [None]
            with pytest.raises(UnknownTopicOrPartition):
                topics.partition("t", 0)

    run(check())


def test_many_partitions_are_deleted_in_a_few_rounds(tmp_path):
    """Each waited for a sync of its own: 2,000 of them took half a minute on a slow disk, and clients gave up."""
    disk = SimulatedDisk(tmp_path)

    async def check() -> None:
        broker = await start(tmp_path, ManualClock(), disk=disk)
        topic = await broker.topics.create("t", 150, {})
        disk.syncs.clear()
        await broker.topics.delete(topic)
        assert len([path for path in disk.syncs if path.name.startswith("journal")]) < 10
        assert not [each for each in broker.log.partitions if each.topic == "t"]
        assert not list(tmp_path.glob("t-*"))
        await stop(broker)

    run(check())


def test_why_a_topic_cannot_be_made_is_told_once(tmp_path):
    """Only the client was told, in a code; and clients that want the topic ask again and again."""

    async def check() -> None:
        broker = await start(tmp_path, ManualClock())
        stray = tmp_path / "t-0"
        stray.mkdir()
        (stray / f"{0:020d}.log").write_bytes(b"of somebody else")
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                with pytest.raises(StorageError):
                    await broker.topics.create("t", 1, {})
        told = [entry for entry in logs if entry["event"] == "topic_not_created"]
        assert [(entry["topic"], str(stray) in entry["error"], bool(entry["hint"])) for entry in told] == [
            ("t", True, True)
        ]
        shutil.rmtree(stray)
        await broker.topics.create("t", 1, {})
        await stop(broker)

    run(check())


def test_a_full_disk_leaves_nothing_of_a_topic_behind(tmp_path):
    """Two of three partitions were made when the disk was full: the name stayed taken until a restart."""

    async def check() -> None:
        disk = SimulatedDisk(tmp_path)
        broker = await start(tmp_path, ManualClock(), disk=disk)
        before = set(broker.log.partitions)
        client = await Client.connect(broker)
        create = {"topics": [{"name": "t", "num_partitions": 3, "replication_factor": 1}], "timeout": 1000}
        for call, path in (("mkdir", "t-1"), ("write", "journal"), ("write", METADATA.topic)):
            disk.refuse(call, errno.ENOSPC, path)
            refused = (await client.call(19, 5, **create)).topics[0]
            assert refused.error_code == Code.kafka_storage_error, (call, path)
            assert set(broker.log.partitions) == before
        topic = await broker.topics.create("t", 3, {})
        disk.refuse("mkdir", errno.ENOSPC, "t-4")
        with pytest.raises(StorageError):
            await broker.topics.add_partitions(topic, 6)
        assert len(topic.logs) == 3
        disk.refuse("write", errno.ENOSPC, METADATA.topic)
        with pytest.raises(StorageError):
            await broker.topics.set_config(topic, {"retention.ms": "5"})
        assert topic.config == {}
        await broker.topics.add_partitions(topic, 6)
        broker = await restarted(broker, ManualClock(), disk.after_power_cut(lambda _: 0))
        again = broker.topics.by_name("t")
        assert (again.topic_id, len(again.logs), again.config) == (topic.topic_id, 6, {})
        client.close()
        await stop(broker)

    run(check())


def test_settings_that_are_no_record_leave_nothing_of_a_topic_behind(tmp_path):
    """Fifty partitions stayed that nobody could see, of each request."""

    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            before = set(broker.log.partitions)
            large = {"leader.replication.throttled.replicas": "0:1" + ",0:1" * 375_000}
            with pytest.raises(BatchTooLarge):
                await broker.topics.create("t", 50, large)
            assert set(broker.log.partitions) == before
            assert broker.topics.get("t") is None
            await broker.topics.create("t", 1, {})

    run(check())


def test_a_topic_has_the_defaults_that_came_while_it_was_made(tmp_path):
    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            topics, late = broker.topics, TopicConfig(retention_ms=5)
            made = asyncio.ensure_future(topics.create("t", 1, {}))
            await asyncio.sleep(0)
            topics.set_defaults(late)
            topic = await made
            grown = asyncio.ensure_future(topics.add_partitions(topic, 2))
            await asyncio.sleep(0)
            topics.set_defaults(later := TopicConfig(retention_ms=6))
            await grown
            assert [each.config for each in topic.logs] == [later, later]

    run(check())


def test_a_topic_is_deleted_although_its_files_stay(tmp_path):
    """The record is gone, the disk refuses the rest: the name is free at once."""

    async def check() -> None:
        disk = SimulatedDisk(tmp_path)
        broker = await start(tmp_path, ManualClock(), disk=disk)
        topic = await broker.topics.create("t", 2, {})
        disk.refuse("rename", errno.ENOSPC, "t-0")
        await broker.topics.delete(topic)
        assert broker.topics.get("t") is None
        await broker.topics.create("t", 2, {})
        await stop(broker)

    run(check())


def test_a_change_that_meets_a_deletion_does_not_bring_the_topic_back(tmp_path):
    """Its record was written after the tombstone: the topic was there again after a restart, and empty."""

    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            for change in (
                lambda topic: broker.topics.set_config(topic, {"retention.ms": "5"}),
                lambda topic: broker.topics.add_partitions(topic, 2),
            ):
                topic = await broker.topics.create("t", 1, {})
                deleted, changed = await asyncio.gather(
                    broker.topics.delete(topic), change(topic), return_exceptions=True
                )
                assert deleted is None
                assert isinstance(changed, UnknownTopicOrPartition)
        async with running(tmp_path, ManualClock()) as broker:
            assert broker.topics.get("t") is None
            assert TopicPartition("t", 0) not in broker.log.partitions

    run(check())


def test_two_incremental_changes_at_once_are_both_made(tmp_path):
    """Each was computed from the settings before the other: the second undid the first."""

    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            topic = await broker.topics.create("t", 1, {})
            clients = [await Client.connect(broker) for _ in range(2)]

            def change(client, name):
                configs = [{"name": name, "config_operation": 0, "value": "5"}]
                resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
                return client.call(44, 1, resources=[resource])

            await asyncio.gather(change(clients[0], "retention.ms"), change(clients[1], "retention.bytes"))
            assert topic.config == {"retention.ms": "5", "retention.bytes": "5"}
            for client in clients:
                client.close()

    run(check())


def test_internal_topics_are_made_when_missing(tmp_path):
    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            logs = await broker.ensure_internal_topic("__inside", 3, {"cleanup.policy": "compact"})
            assert [each.config.compacts for each in logs] == [True] * 3
            assert broker.topics.by_name("__inside").internal
            assert await broker.ensure_internal_topic("__inside", 3, {}) == logs

    run(check())


def test_a_full_disk_ends_the_log_for_its_own_topics_alone(tmp_path):
    """Others' topics have names that begin with __ too (Debezium's, Kafka Connect's): each ended the log, too."""

    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            await broker.ensure_internal_topic("__inside", 1, {})
            await broker.topics.create("__debezium-heartbeat.shop", 1, {})
        async with running(tmp_path, ManualClock()) as broker:
            await broker.topics.create("__connect-offsets", 1, {})
            await broker.ensure_internal_topic("__within", 1, {})
            ends = {topic.name for topic in broker.topics if all(each.fail_stop for each in topic.logs)}
            goes_on = {topic.name for topic in broker.topics if not any(each.fail_stop for each in topic.logs)}
        assert ends == {"__consumer_offsets", "__transaction_state", "__inside", "__within"}
        assert goes_on == {"__debezium-heartbeat.shop", "__connect-offsets"}

    run(check())


def test_records_that_no_metadata_names_are_a_topic_again(tmp_path):
    """The metadata may be what is lost: a start deleted every partition that it did not name, and later kept them where
    nobody could read them.
    """
    lost = tmp_path / "lost"

    async def check() -> None:
        async with running(tmp_path / "whole", ManualClock()) as broker:
            topic = await broker.topics.create("t", 3, {"retention.ms": "5"})
            await topic.logs[1].append(batch(b"precious"))
        lost.mkdir()
        for number in (1, 2):
            shutil.copytree(tmp_path / "whole" / f"t-{number}", lost / f"t-{number}")
        for _ in range(2):
            async with running(lost, ManualClock()) as broker:
                found = broker.topics.by_name("t")
                assert (found.topic_id, len(found.logs)) == (topic.topic_id, 3)
                assert not found.logs[1].config.compacts  # nothing of it goes before somebody has said what may
                assert (found.logs[1].config.retention_ms, found.logs[1].config.retention_bytes) == (-1, -1)
                assert await values(found.logs[1]) == [b"precious"]

    run(check())


def test_a_log_whose_metadata_is_lost_goes_on_after_a_repair(tmp_path):
    """It was refused, or knew a topic no more, and committed offsets of it were deleted."""

    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            topic = await broker.topics.create("t", 2, {})
            await topic.logs[0].append(batch(b"a", b"b"))
            client = await Client.connect(broker)
            commit = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 2}]}]
            answer = await client.call(8, 8, group_id="g", topics=commit)
            assert answer.topics[0].partitions[0].error_code == Code.none
            client.close()
        for file in (tmp_path / str(METADATA)).glob("*.log"):
            file.unlink()
        assert (await repair(tmp_path, METADATA, clock=ManualClock(), mend=True)).damages
        for _ in range(2):
            async with running(tmp_path, ManualClock()) as broker:
                found = broker.topics.by_name("t")
                assert (found.topic_id, len(found.logs)) == (topic.topic_id, 2)
                assert await values(found.logs[0]) == [b"a", b"b"]
                assert broker.topics.by_name("__consumer_offsets").internal
                client = await Client.connect(broker)
                asked = [{"name": "t", "partition_indexes": [0]}]
                answer = await client.call(9, 7, group_id="g", topics=asked)
                assert answer.topics[0].partitions[0].committed_offset == 2
                client.close()

    run(check())


@pytest.mark.parametrize("refused", ["note", "name"])
def test_what_a_full_disk_keeps_of_a_deleted_topic_goes_with_the_next_one_of_its_name(tmp_path, refused):
    """It had fewer partitions: the other was there again after a restart, and the topic could not grow any more."""

    async def check() -> None:
        disk = SimulatedDisk(tmp_path)
        broker = await start(tmp_path, ManualClock(), disk=disk)
        topic = await broker.topics.create("t", 2, {})
        await topic.logs[1].append(batch(b"deleted"))
        if refused == "name":
            disk.refuse("rename", errno.ENOSPC, "t-1")
        else:
            broker.topics.facts.put = partial(put_and_fill, broker.topics.facts.put, disk)
        await broker.topics.delete(topic)
        assert TopicPartition("t", 1) in broker.log.undeleted
        vars(broker.topics.facts).pop("put", None)
        await broker.topics.create("t", 1, {})
        assert not broker.log.undeleted
        await stop(broker)
        broker = await start(tmp_path, ManualClock(), disk=disk)
        await broker.topics.add_partitions(broker.topics.by_name("t"), 2)
        assert await values(broker.partition(TopicPartition("t", 1))) == []
        await stop(broker)

    run(check())


def test_housekeeping_may_remove_what_is_left_while_a_topic_of_that_name_is_made(tmp_path):
    async def check() -> None:
        disk = SimulatedDisk(tmp_path)
        broker = await start(tmp_path, ManualClock(), disk=disk)
        topic = await broker.topics.create("t", 130, {})
        for number in range(130):
            disk.refuse("rename", errno.ENOSPC, f"t-{number}")
        await broker.topics.delete(topic)
        assert len(broker.log.undeleted) == 130
        disk.refusals.clear()
        await asyncio.gather(broker.log.housekeep(), broker.topics.create("t", 1, {}))
        assert not broker.log.undeleted
        await stop(broker)

    run(check())


async def put_and_fill(put, disk, facts):
    await put(facts)
    disk.refuse("write", errno.ENOSPC, "journal")


def test_a_coordinators_records_stay_although_a_full_disk_refuses_to_make_their_topic_again(tmp_path):
    """Asked for once more, it was made anew over them."""

    async def check() -> None:
        disk = SimulatedDisk(tmp_path)
        broker = await start(tmp_path, ManualClock(), disk=disk)
        lost = await broker.log.create_partition(TopicPartition("__state", 0), uuid4(), TopicConfig())
        await lost.append(batch(b"state"))
        broker.topics._kept["__state"] = [lost]  # as a start finds them whose metadata is lost
        disk.refuse("write", errno.ENOSPC, str(METADATA))
        with pytest.raises(StorageError):
            await broker.ensure_internal_topic("__state", 1, {})
        (found,) = await broker.ensure_internal_topic("__state", 1, {})
        assert await values(found) == [b"state"]
        await stop(broker)

    run(check())


def test_nothing_is_deleted_by_other_settings_than_the_brokers_while_it_starts(tmp_path):
    """Retention ran by the built-in defaults where a start took long: what was to be kept for ever was gone."""

    class Slow(SimulatedDisk):
        removes, go_on = threading.Event(), threading.Event()

        def remove_tree(self, path):
            self.removes.set()
            assert self.go_on.wait(30)
            super().remove_tree(path)

    async def check() -> None:
        disk, clock = Slow(tmp_path), ManualClock()
        broker = await start(tmp_path, clock, disk=disk)
        await broker.dynamic.change(
            "", lambda _: {"log.retention.ms": "-1", "min.insync.replicas": "1"}, validate_only=False
        )
        topic = await broker.topics.create("t", 1, {})
        await topic.logs[0].append(batch(b"kept for ever", timestamp=clock.now_ms()))
        await broker.log.create_partition(TopicPartition("unfinished", 0), uuid4(), TopicConfig())
        await stop(broker)
        clock.advance_ms(30 * 86_400_000)
        log = await LogDirectory.open(tmp_path, LogConfig(), clock=clock, disk=disk)
        broker = Broker(CONFIG, log, clock)
        starting = asyncio.create_task(broker.start())
        assert await asyncio.to_thread(disk.removes.wait, 30)
        await log.housekeep()
        disk.go_on.set()
        await starting
        assert await values(broker.partition(TopicPartition("t", 0))) == [b"kept for ever"]
        await stop(broker)

    run(check())
