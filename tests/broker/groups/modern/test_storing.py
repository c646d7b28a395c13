import asyncio

import pytest

from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.modern.storing import Storing, is_refused
from mainstem.broker.groups.records import GroupKey, GroupValue
from mainstem.core import ManualClock
from mainstem.log.errors import StorageError
from tests.support.broker import running

ENTRIES = [(GroupKey("g"), GroupValue("consumer", 1, None, None, -1))]


def test_who_needs_no_record_waits_for_those_before(tmp_path):
    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            storing = Storing(broker.groups)
            stored = storing.store("g", list(ENTRIES))
            assert storing.store("g", []) is stored
            assert storing.store("h", []).done()
            assert not stored.done()
            await storing.settled("g")
            assert stored.done()
            await asyncio.sleep(0)
            assert storing.store("g", []).done()
            await storing.settled("g")

    asyncio.run(story())


def test_what_is_refused_is_nothing_that_others_wait_for(tmp_path, monkeypatch):
    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            storing = Storing(broker.groups)
            assert not is_refused(storing.store("g", []))

            def refuse(batch):
                raise StorageError("the disk is gone")

            for log in broker.groups.storage.logs:
                monkeypatch.setattr(log, "append", refuse)
            stored = storing.store("g", list(ENTRIES))
            assert is_refused(stored)
            await storing.settled("g")
            with pytest.raises(GroupError):
                await stored

    asyncio.run(story())
