"""What a client believes about the leader epoch is compared with what is."""

import pytest

from mainstem.broker.leadership import check_leader_epoch
from mainstem.core import SystemClock, TopicPartition
from mainstem.wire.errors import Code, RequestError
from tests.support.broker import running


async def _checks(directory):
    async with running(directory, SystemClock()) as broker:
        partition_log = broker.partition(TopicPartition("__consumer_offsets", 0))
        epoch = partition_log.leader_epoch
        check_leader_epoch(partition_log, -1)
        check_leader_epoch(partition_log, epoch)
        with pytest.raises(RequestError) as newer:
            check_leader_epoch(partition_log, epoch + 1)
        assert newer.value.code is Code.unknown_leader_epoch
        partition_log.leader_epoch += 1
        with pytest.raises(RequestError) as older:
            check_leader_epoch(partition_log, epoch)
        assert older.value.code is Code.fenced_leader_epoch
        with pytest.raises(RequestError) as none:
            check_leader_epoch(partition_log, -2)
        assert none.value.code is Code.fenced_leader_epoch


def test_epochs(tmp_path):
    import asyncio

    asyncio.run(_checks(tmp_path))
