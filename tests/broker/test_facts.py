"""Facts: several at once or none, and there again after a crash."""

import asyncio
import errno

import pytest

from mainstem.broker.facts import METADATA, Facts, peek
from mainstem.core import ManualClock
from mainstem.log import LogConfig, LogDirectory, StorageError
from tests.log.simulated_disk import SimulatedDisk


def test_facts_are_there_again_and_deleted_ones_are_not(tmp_path):
    async def check() -> None:
        clock = ManualClock()
        for start in range(3):
            directory = await LogDirectory.open(tmp_path, LogConfig(), clock=clock)
            facts = await Facts.load(directory, clock)
            if start == 0:
                await facts.put({})
                await facts.put({"a:1": {"n": 1}, "a:2": [1, 2], "b": "ü"})
            elif start == 1:
                assert dict(facts.below("a:")) == {"1": {"n": 1}, "2": [1, 2]}
                await facts.put({"a:1": None, "a:2": 5})
            else:
                assert dict(facts.below("")) == {"a:2": 5, "b": "ü"}
                assert facts.found["a:1"] is None
            await directory.close()

    asyncio.run(check())


def test_a_full_disk_takes_none_of_them(tmp_path):
    async def check() -> None:
        clock, disk = ManualClock(), SimulatedDisk(tmp_path)
        directory = await LogDirectory.open(tmp_path, LogConfig(), clock=clock, disk=disk)
        facts = await Facts.load(directory, clock)
        disk.refuse("write", errno.ENOSPC, "journal")
        with pytest.raises(StorageError):
            await facts.put({"a": 1, "b": 2})
        facts = await Facts.load(directory, clock)
        assert facts.found == {}
        await directory.close()

    asyncio.run(check())


def test_a_look_from_outside_sees_what_is_there_and_nothing_else(tmp_path):
    async def check() -> None:
        directory = await LogDirectory.open(tmp_path, LogConfig(), clock=ManualClock())
        facts = await Facts.load(directory, ManualClock())
        await facts.put({"a": 1, "b": 2})
        await facts.put({"a": None, "c": {"d": 3}})
        assert peek(tmp_path) == {"b": 2, "c": {"d": 3}}
        await directory.close()
        (segment,) = (tmp_path / str(METADATA)).glob("*.log")
        segment.write_bytes(segment.read_bytes() + b"torn")
        assert peek(tmp_path) == {"b": 2, "c": {"d": 3}}
        content = bytearray(segment.read_bytes())
        content[-30] ^= 1
        segment.write_bytes(content)
        assert peek(tmp_path) == {"a": 1, "b": 2}

    asyncio.run(check())
    assert peek(tmp_path / "nothing") == {}
