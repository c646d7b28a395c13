"""Reads around the page cache, by partitions of which nothing is in it."""

import asyncio

import pytest

from mainstem.log import StorageError, TopicConfig, cold, span_memory, window
from mainstem.records import iter_headers
from tests.log.cold_disk import ColdDisk
from tests.log.support import batch, joined, run, with_partition

COUNT = 400


@pytest.fixture(autouse=True)
def small_reads(monkeypatch):
    monkeypatch.setattr(cold, "LARGE_BYTES", 1_000)
    monkeypatch.setattr(window, "BLOCK", 8_192)


async def filled(partition, count=COUNT):
    for number in range(count):
        await partition.append(batch(b"%05d" % number * 200))


def offsets(read):
    return [header.base_offset for header in iter_headers(joined(read))]


async def read_in_order(partition, times):
    """Often enough to be read ahead for; where it goes on."""
    at = 0
    for _ in range(times):
        at = offsets(await partition.read(at, 20_000))[-1] + 1
    return at


async def read_on(partition, at):
    while at < COUNT:
        at = offsets(await partition.read(at, 20_000))[-1] + 1


def ahead_of(partition):
    return partition.shared.cold._streams


def test_who_reads_in_order_is_read_ahead_for(tmp_path):
    disk = ColdDisk()

    async def test(partition):
        await filled(partition)
        at, seen = 0, []
        while at < COUNT:
            found = offsets(await partition.read(at, 20_000))
            assert found[0] == at
            seen += found
            at = found[-1] + 1
            if len(seen) > 60 and at < COUNT - 60:
                assert [offset for _, offset in ahead_of(partition)] == [at]
        assert seen == list(range(COUNT))

    run(with_partition(tmp_path, test, disk=disk))


def test_who_jumps_about_is_not(tmp_path):
    async def test(partition):
        await filled(partition)
        for at in (300, 5, 200, 100, 250, 7):
            assert offsets(await partition.read(at, 20_000))[0] == at
        assert not ahead_of(partition)

    run(with_partition(tmp_path, test, disk=ColdDisk()))


def test_two_who_read_the_same_partition_are_both_read_ahead_for(tmp_path):
    async def test(partition):
        await filled(partition)
        at = [0, 150]
        for _ in range(8):
            for who in range(2):
                found = offsets(await partition.read(at[who], 10_000))
                assert found[0] == at[who]
                at[who] = found[-1] + 1
        assert sorted(offset for _, offset in ahead_of(partition)) == at

    run(with_partition(tmp_path, test, disk=ColdDisk()))


def test_what_is_enough_is_given_while_more_comes_from_the_disk(tmp_path):
    async def test(partition):
        await filled(partition)
        assert len(offsets(await partition.read(0, 10**6))) == COUNT
        for _ in range(3):
            some = offsets(await partition.read(0, 10**6, enough=1))
            assert some
        none_yet = await partition.read(0, 10**6, enough=0)
        assert offsets(none_yet)[0] == 0, "none is never enough"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mainstem.log.reading.READ_STEP", 30_000)
        patch.setattr("mainstem.log.reading.READ_SLACK", 5_000)
        patch.setattr("mainstem.log.reader.READ_SLACK", 5_000)
        run(with_partition(tmp_path, test, disk=ColdDisk()))


@pytest.mark.parametrize("most", [15_000, 900])
def test_a_reader_that_asks_for_less_or_may_see_less_is_not_given_more(tmp_path, most):
    async def test(partition):
        await filled(partition)
        at = await read_in_order(partition, 4)
        assert ahead_of(partition)
        read = await partition.read(at, most, at_least_one=False)
        assert read.size <= most
        assert offsets(read) == [] if most < 1_000 else offsets(read)[0] == at
        again = await partition.read(at, 20_000)
        assert offsets(again)[0] == at

    run(with_partition(tmp_path, test, disk=ColdDisk()))


def test_an_error_is_told_to_who_asks_not_before(tmp_path):
    disk = ColdDisk()

    async def test(partition):
        await filled(partition)
        at = await read_in_order(partition, 3)
        disk.fails = True
        await asyncio.sleep(0.1)
        assert partition.error is None
        with pytest.raises(StorageError, match="no"):
            await read_on(partition, at)
        assert partition.error is not None

    run(with_partition(tmp_path, test, disk=disk))


def test_nobody_is_given_what_was_read_ahead_of_a_segment_that_is_replaced(tmp_path):
    async def test(partition):
        await filled(partition)
        segment = partition.segments[0]
        at = 0
        for _ in range(3):
            at = offsets(await partition.read(at, 5_000))[-1] + 1
        assert ahead_of(partition)
        await partition.shared.cold._threads.run(lambda: None)
        segment.retired = True
        partition.shared.cold._look_for_idle()
        assert not ahead_of(partition)
        segment.retired = False

    run(with_partition(tmp_path, test, topic=TopicConfig(segment_bytes=100_000), disk=ColdDisk()))


def test_more_readers_than_are_read_ahead_for_all_go_on(tmp_path):
    async def test(partition):
        await filled(partition)
        readers = [30 * number for number in range(cold._STREAMS + 4)]
        for _ in range(6):
            for who, at in enumerate(readers):
                found = offsets(await partition.read(at, 3_000))
                assert found[0] == at
                readers[who] = found[-1] + 1
        assert len(ahead_of(partition)) <= cold._STREAMS

    run(with_partition(tmp_path, test, disk=ColdDisk()))


def test_who_asks_for_less_has_no_more_than_one_batch_beyond_it(tmp_path):
    """What was read ahead for somebody with more room was given whole."""

    async def test(partition):
        await filled(partition)
        at = await read_in_order(partition, 4)
        assert ahead_of(partition)
        for _ in range(10):
            assert len(offsets(await partition.read(at, 1))) == 1
        assert max(len(stream.pieces) for stream in ahead_of(partition).values()) <= cold._AHEAD
        assert len(offsets(await partition.read(at, 3_000))) == 2
        assert ahead_of(partition), "it stays for who has room"
        assert offsets(await partition.read(at, 20_000))[0] == at

    run(with_partition(tmp_path, test, disk=ColdDisk()))


def test_large_batches_are_read_once(tmp_path):
    disk = ColdDisk()

    async def test(partition):
        for _ in range(60):
            await partition.append(batch(b"v" * 30_000))
        at = 0
        while at < 60:
            at = offsets(await partition.read(at, 100_000))[-1] + 1
        assert len(disk.reads) < 2 * partition.size_bytes // 8_192

    with pytest.MonkeyPatch.context() as patch:
        for module in ("reader", "reading"):
            patch.setattr(f"mainstem.log.{module}.READ_SLACK", 5_000)
        run(with_partition(tmp_path, test, disk=disk))


def test_a_read_that_waits_ends_when_the_log_is_closed(tmp_path):
    async def test(partition):
        await filled(partition)
        at = await read_in_order(partition, 3)
        reads = [asyncio.ensure_future(partition.read(at, 20_000)) for _ in range(3)]
        await asyncio.sleep(0)
        partition.shared.cold.close()
        async with asyncio.timeout(10):
            await asyncio.gather(*reads, return_exceptions=True)

    run(with_partition(tmp_path, test, disk=ColdDisk()))


def test_who_goes_away_while_he_waits_is_not_read_ahead_for(tmp_path):
    async def test(partition):
        await filled(partition)
        at = await read_in_order(partition, 3)
        for stream in ahead_of(partition).values():
            while stream.running:
                await asyncio.sleep(0.001)
            stream.pieces.clear()
            stream.running = True
        waits = asyncio.ensure_future(partition.read(at, 20_000))
        await asyncio.sleep(0.01)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert not ahead_of(partition)
        assert offsets(await partition.read(at, 20_000))[0] == at

    run(with_partition(tmp_path, test, disk=ColdDisk()))


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_what_is_mostly_in_the_page_cache_is_read_through_it(tmp_path, share):
    """One page that was missing made all that came after it come from the disk."""
    disk = ColdDisk()

    async def test(partition):
        await filled(partition)
        at = await read_in_order(partition, 4)
        assert ahead_of(partition)
        disk.share = share
        at = offsets(await partition.read(at, 20_000))[-1] + 1
        while any(stream.running for stream in ahead_of(partition).values()):
            await asyncio.sleep(0.001)
        for pool in (partition.shared.cold._pool, partition.shared.cold._blocks) * 2:  # what had begun ends
            await asyncio.get_running_loop().run_in_executor(pool, lambda: None)
        disk.reads.clear()
        await read_on(partition, at)
        assert not disk.reads

    run(with_partition(tmp_path, test, disk=disk))


async def to_send(partition, at):
    return await partition.read_to_send(at, 20_000, enough=20_000, committed_only=False, at_least_one=True)


@pytest.mark.parametrize("is_scarce", [False, True], ids=["enough memory", "little memory"])
def test_what_is_to_be_sent_lies_where_it_was_read_while_there_is_memory_for_that(tmp_path, monkeypatch, is_scarce):
    if is_scarce:
        monkeypatch.setattr(span_memory, "_FOR_READS", span_memory._MOST + 1)

    async def test(partition):
        await filled(partition)
        at, pieces = 0, []
        while at < COUNT:
            found = await to_send(partition, at)
            pieces += found.pieces
            at = offsets(found)[-1] + 1
        assert {type(piece) for piece in pieces[:-1]} == ({bytes} if is_scarce else {memoryview})
        assert b"".join(pieces) == joined(await partition.read(0, 10**7)), "what came later has not gone over it"

    run(with_partition(tmp_path, test, disk=ColdDisk()))


def test_memory_is_let_go_of_when_nobody_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cold, "_IDLE_SECONDS", 0.2)

    async def test(partition):
        await filled(partition)
        spans = partition.shared.cold._spans

        def held():
            return [each for each in spans._there if each is not None]

        for at in (0, await read_in_order(partition, 4)):
            await to_send(partition, at)
            lent = spans.take()
            await asyncio.sleep(0.5)
            assert not spans.is_whole, "a client has it for longer than anybody is read ahead for"
            del lent
            async with asyncio.timeout(20):
                while held() or ahead_of(partition):
                    await asyncio.sleep(0.05)
            assert spans.is_whole

    run(with_partition(tmp_path, test, disk=ColdDisk()))
