"""Who connects while the broker starts is told what is served and what topics there are; the rest waits, unlost."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from mainstem.broker.server import Broker
from mainstem.core import SystemClock
from mainstem.log import LogConfig, LogDirectory, StorageError
from mainstem.wire.errors import Code
from tests.log.cold_disk import ColdDisk, ColdFile
from tests.support.broker import CONFIG, Client, running, until

API_VERSIONS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, CREATE_TOPICS = 18, 3, 8, 9, 19


class SlowFile(ColdFile):
    """Of a `SlowGroups`."""

    __slots__ = ()
    disk: "SlowGroups"

    def read_around_cache(self, buffer: memoryview, position: int, block: int) -> int:
        if self.path.parent.name.startswith("__consumer_offsets-"):
            self.disk.waits.set()
            assert self.disk.go.wait(60)
            if self.disk.is_short:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return super().read_around_cache(buffer, position, block)


class SlowGroups(ColdDisk):
    """What groups have stored is not read before `go`; there is no memory for it, if `is_short`."""

    kind = SlowFile

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.go, self.is_short = threading.Event(), threading.Event(), False


@asynccontextmanager
async def starting(directory: Path) -> "AsyncIterator[tuple[Broker, SlowGroups, asyncio.Task[str]]]":
    """A broker that accepts, and whose groups are not read yet; topic `t` is there, and group `g` has committed 5."""
    clock = SystemClock()
    async with running(directory, clock) as broker:
        await broker.topics.create("t", 1, {})
        client = await Client.connect(broker)
        partition = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}
        answer = await client.call(
            OFFSET_COMMIT, 8, group_id="g", generation_id_or_member_epoch=-1, topics=[topic(partitions=[partition])]
        )
        assert answer.topics[0].partitions[0].error_code == 0
        client.close()
    disk = SlowGroups()
    log = await LogDirectory.open(directory, LogConfig(), clock=clock, disk=disk)
    broker = Broker(msgspec.structs.replace(CONFIG, stop_timeout_ms=60_000), log, clock)
    task = asyncio.create_task(broker.start())
    try:
        await until(disk.waits.is_set, "groups are read")
        yield broker, disk, task
    finally:
        disk.go.set()
        await asyncio.wait([task])
        await broker.stop()
        await log.close()


def topic(**fields: object) -> dict[str, object]:
    return {"name": "t", **fields}


def committed(client: Client) -> "asyncio.Task[object]":
    return asyncio.create_task(client.call(OFFSET_FETCH, 5, group_id="g", topics=[topic(partition_indexes=[0])]))


def test_topics_are_told_at_once_and_groups_when_they_are_read(tmp_path):
    async def check() -> None:
        async with starting(tmp_path) as (broker, disk, start):
            client, other, gone = [await Client.connect(broker) for _ in range(3)]
            served = await client.call(API_VERSIONS, 0)
            assert OFFSET_FETCH in {each.api_key for each in served.api_keys}
            assert [each.name for each in (await client.call(METADATA, 4, topics=None)).topics if each.name == "t"]
            answer = committed(client)
            gone.send(OFFSET_FETCH, 5, group_id="g", topics=None)
            gone.close()
            assert [each.name for each in (await other.call(METADATA, 4, topics=[{"name": "t"}])).topics] == ["t"]
            assert not answer.done()
            assert not start.done()
            disk.go.set()
            await start
            assert (await answer).topics[0].partitions[0].committed_offset == 5
            assert (await committed(other)).topics[0].partitions[0].committed_offset == 5
            client.close()
            other.close()

    asyncio.run(check())


def test_what_a_client_sent_before_it_left_is_done(tmp_path):
    async def check() -> None:
        async with starting(tmp_path) as (broker, disk, start):
            client = await Client.connect(broker)
            client.send(CREATE_TOPICS, 5, topics=[{"name": "new", "num_partitions": 2, "replication_factor": 1}])
            client.close()
            await asyncio.sleep(0.05)
            assert broker.topics.get("new") is None
            disk.go.set()
            await start
            await until(lambda: broker.topics.get("new") is not None, "the topic is made")

    asyncio.run(check())


def test_a_start_that_fails_does_not_wait_for_those_who_wait_for_it(tmp_path):
    async def check() -> None:
        async with starting(tmp_path) as (broker, disk, start):
            client = await Client.connect(broker)
            answer = committed(client)
            await asyncio.sleep(0.05)
            disk.is_short = True
            disk.go.set()
            with pytest.raises(StorageError):
                await asyncio.wait_for(start, 10)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(answer, 10)
            client.close()

    asyncio.run(check())


def test_a_start_that_is_broken_off_does_not_wait_for_topics_to_be_made(tmp_path):
    """It waited for the answer, and that for the coordinators, which nobody read any more: for `stop_timeout_ms`."""

    async def check() -> None:
        async with starting(tmp_path) as (broker, disk, start):
            client = await Client.connect(broker)
            asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
            made = asyncio.create_task(client.call(METADATA, 4, **asked))
            assert not (await asyncio.wait([made], timeout=0.2))[0]
            disk.is_short = True
            disk.go.set()
            with pytest.raises(StorageError):
                await asyncio.wait_for(start, 10)
            assert (await made).topics[0].error_code == Code.unknown_topic_or_partition
            assert broker.topics.get("new") is None
            client.close()

    asyncio.run(check())


def test_a_topic_is_made_when_what_groups_have_of_its_namesake_is_gone(tmp_path):
    """It was there before, and had the offsets that had been committed for the one that was deleted."""

    async def check() -> None:
        async with starting(tmp_path) as (broker, disk, start):
            client = await Client.connect(broker)
            made = asyncio.create_task(
                client.call(METADATA, 4, topics=[{"name": "new"}], allow_auto_topic_creation=True)
            )
            assert not (await asyncio.wait([made], timeout=0.5))[0]
            assert broker.topics.get("new") is None
            disk.go.set()
            await start
            assert (await made).topics[0].error_code == 0
            assert broker.topics.get("new") is not None
            client.close()

    asyncio.run(check())
