"""Which segments a round syncs; what the disk gets of it is in test_writer.py."""

import asyncio

import pytest
from msgspec.structs import replace

from mainstem.log import TopicConfig
from mainstem.log.config import FOREVER
from mainstem.log.flushing import Flushing
from mainstem.log.round import Write
from mainstem.log.segment import OpenFiles, Segment
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import run

PAGE_CACHE = TopicConfig(flush_messages=3)


@pytest.fixture
def story(tmp_path):
    """Runs a test with a `Flushing`, a segment, and the event that is set when a round is asked for."""

    def start(test):
        async def go():
            asked = asyncio.Event()
            segment = Segment(tmp_path, 0, OpenFiles(SimulatedDisk(tmp_path), 10))
            await test(Flushing(asyncio.get_running_loop(), asked.set), segment, asked)

        run(go())

    return start


def writes(segment: Segment) -> list[Write]:
    return [Write(segment, 0, b"", b"v", 1)]


def test_so_many_records_are_synced_together(story):
    async def test(flushing, segment, _):
        for records, expected in ((1, []), (2, []), (3, [segment]), (1, [])):
            flushing.records = records
            assert flushing.take(writes(segment), PAGE_CACHE) == expected
        assert flushing.records == 1

    story(test)


def test_a_topic_that_is_journaled_from_now_on_syncs_what_was_not(story):
    async def test(flushing, segment, _):
        assert flushing.take(writes(segment), PAGE_CACHE) == []
        assert flushing.take(writes(segment), TopicConfig()) == [segment]
        assert flushing.take(writes(segment), TopicConfig()) == []

    story(test)


def test_after_so_many_milliseconds_a_round_is_asked_for_that_syncs(story):
    async def test(flushing, segment, asked):
        config = TopicConfig(flush_messages=1_000, flush_ms=1)
        assert flushing.take(writes(segment), config) == []
        async with asyncio.timeout(60):
            await asked.wait()
        assert flushing.take([], config) == [segment]

    story(test)


@pytest.mark.parametrize("first", [FOREVER, 3_600_000])
@pytest.mark.parametrize(
    "then", [{"flush_ms": 1}, {"flush_ms": 0}, {"flush_messages": 1}, {"flush_messages": 500}], ids=str
)
def test_what_is_unsynced_is_synced_when_the_topic_asks_for_that_sooner(story, first, then):
    """What was acknowledged for up to an hour more was gone with a power cut."""

    async def test(flushing, segment, asked):
        before = TopicConfig(flush_messages=1_000, flush_ms=first)
        flushing.records = 500
        assert flushing.take(writes(segment), before) == []
        flushing.follow(before)
        assert not asked.is_set()
        after = replace(before, **then)
        flushing.follow(after)
        async with asyncio.timeout(60):
            await asked.wait()
        assert flushing.take([], after) == [segment]

    story(test)


def test_what_is_to_be_synced_soon_is_not_put_off_by_other_settings(story):
    async def test(flushing, segment, asked):
        assert flushing.take(writes(segment), TopicConfig(flush_messages=1_000, flush_ms=20)) == []
        flushing.follow(TopicConfig(flush_messages=1_000, flush_ms=3_600_000))
        async with asyncio.timeout(60):
            await asked.wait()

    story(test)


def test_what_a_failed_round_did_not_sync_is_synced_by_the_next(story, monkeypatch):
    monkeypatch.setattr("mainstem.log.flushing._AGAIN_SECONDS", 0.001)

    async def test(flushing, segment, asked):
        flushing.again([segment])
        async with asyncio.timeout(60):
            await asked.wait()
        assert flushing.take([], PAGE_CACHE) == [segment]

    story(test)


@pytest.mark.parametrize("how", ["left", "retired"])
def test_a_segment_that_has_left_needs_no_sync(story, how):
    async def test(flushing, segment, asked):
        flushing.take(writes(segment), PAGE_CACHE)
        if how == "left":
            flushing.forget([segment])
        else:
            segment.retired = True
        flushing.records = 3
        assert flushing.take([], PAGE_CACHE) == []
        flushing.again([segment] if how == "retired" else [])
        flushing.stop()
        assert not asked.is_set()

    story(test)
