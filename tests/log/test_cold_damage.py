"""One bit that is flipped, or a segment that is cut, under readers around the page cache: they are told, given nothing
that is wrong, and nobody else is held up by it.

`test_recovery.py` has the same for every file at a start, through the page cache.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from random import Random
from uuid import UUID

import msgspec
import pytest

from mainstem.core import TopicPartition
from mainstem.log import PartitionLog, StorageError, TopicConfig, cold, window
from mainstem.records import iter_headers
from tests.log.cold_disk import ColdDisk
from tests.log.support import TP, abandon, batch, joined, open_log, run

OTHER = TopicPartition("others", 0)
COUNT = 120
SEGMENTS = TopicConfig(segment_bytes=200_000)
SLACK = 5_000
AHEAD = 70_000
"""No piece and no block that far has been read ahead."""


class Damage(msgspec.Struct, frozen=True):
    """What happens to a partition's file."""

    path: Path
    place: int
    bit: int
    """0 to 7; -1: the file ends at `place`."""
    offset: int
    """Of the first record that is wrong or missing."""

    def happen(self) -> None:
        if self.bit < 0:
            os.truncate(self.path, self.place)
            return
        data = bytearray(self.path.read_bytes())
        data[self.place] ^= 1 << self.bit
        self.path.write_bytes(data)


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "LARGE_BYTES", 1_000)
    monkeypatch.setattr(window, "BLOCK", 8_192)
    for module in ("reader", "reading"):
        monkeypatch.setattr(f"mainstem.log.{module}.READ_SLACK", SLACK)


async def append_some(partition: PartitionLog, random: Random) -> None:
    for _ in range(COUNT // 2):
        await partition.append(batch(*[random.randbytes(random.choice([40, 700, 700, 4_000]))] * 3))
    await partition.append(batch(random.randbytes(20_000)))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of three segments and two leader epochs each; batches of a line, of a page, more than a block."""
    path: Path = tmp_path_factory.mktemp("original")

    async def fill() -> None:
        log = await open_log(path)
        random = Random(1)
        for number, each in enumerate((TP, OTHER)):
            await append_some(await log.create_partition(each, UUID(int=number + 1), SEGMENTS), random)
        abandon(log)
        log = await open_log(path)
        for partition in log.partitions.values():
            partition.config = SEGMENTS
            await append_some(partition, random)
            assert len(partition.segments) >= 3
            assert len(partition.epochs.entries()) == 2
        await log.close()

    run(fill())
    return path


def batches(path: Path) -> Iterator[tuple[Path, int, int, int]]:
    """Each one in each segment: its file, where it begins and ends there, and its offset."""
    for segment in sorted(path.glob("*.log")):
        position = 0
        for header in iter_headers(segment.read_bytes()):
            yield segment, position, position + header.size, header.base_offset
            position += header.size


def damage_of(path: Path, where: str, random: Random, *, after: int = 0, before: int = 10**6) -> Damage:
    """At a random place of that kind, in a batch with an offset from `after` on and below `before`."""
    there = [each for each in batches(path) if after <= each[3] < before]
    last = [one for one, following in zip(there, [*there[1:], None], strict=True) if not following or following[1] == 0]
    file, begin, end, offset = random.choice(last if "last" in where else there)
    places = {
        "header": (0, 61),
        "length": (8, 12),
        "epoch": (12, 16),
        "cut at a batch": (0, 1),
        "end": (end - begin - 1, end - begin),
    }
    low, high = next((found for name, found in places.items() if name in where), (0, end - begin))
    return Damage(file, begin + random.randrange(low, high), -1 if "cut" in where else random.randrange(8), offset)


async def read_on(partition: PartitionLog, offset: int, most: int, found: list[bytes]) -> None:
    """To the end, as a consumer does."""
    while offset < partition.high_watermark:
        records = joined(await partition.read(offset, most))
        headers = list(iter_headers(records))
        offset = headers[-1].last_offset + 1
        found.append(records)
        await asyncio.sleep(0)


def content(path: Path, offset: int = 0) -> bytes:
    """Of the batches from that one on."""
    return b"".join(file.read_bytes()[begin:end] for file, begin, end, first in batches(path) if first >= offset)


PLACES = (
    "anywhere", "header", "epoch", "length", "last header", "last length", "last anywhere", "end", "last end",
    "cut anywhere", "cut at a batch", "cut last anywhere",
)  # fmt: skip


@pytest.mark.parametrize("where", PLACES)
def test_damage_under_readers_around_the_page_cache_is_never_silent(tmp_path: Path, original: Path, where: str) -> None:
    """Before anything was read, and ahead of who is read ahead for; the file system may have no reads around it."""
    random = Random(where)
    for has_direct in (True, False):
        for late in (False, True):
            path = tmp_path / f"{has_direct}-{late}"
            shutil.copytree(original, path)
            run(_read_damaged(path, original, where, random, ColdDisk(has_direct=has_direct), late=late))


async def _read_damaged(path: Path, original: Path, where: str, random: Random, disk: ColdDisk, *, late: bool) -> None:
    ours, others = original / "orders-0", original / "others-0"
    log = await open_log(path, disk=disk)
    partition, other = log.partitions[TP], log.partitions[OTHER]
    there = list(batches(path / "orders-0"))
    most = random.choice([2_000, 5_000, 10_000])
    found: list[bytes] = []
    begin = after = 0
    if late:
        while not partition.shared.cold._streams:
            found.append(joined(await partition.read(begin, most)))
            begin = list(iter_headers(found[-1]))[-1].last_offset + 1
        ends = list(accumulate(end - start for _, start, end, _ in there))
        after = next(
            offset for (*_, offset), end in zip(there, ends, strict=True) if end > len(b"".join(found)) + AHEAD
        )
    damage = damage_of(path / "orders-0", where, random, after=after)
    if not late:
        begin = random.choice([offset for *_, offset in there if offset <= damage.offset])
    damage.happen()
    seen: list[bytes] = []
    others_read = asyncio.ensure_future(read_on(other, 0, most, seen))
    with pytest.raises(StorageError, match=damage.path.name) as told:
        await read_on(partition, begin, most, found)
    assert told.value.hint.endswith("mainstem log repair --data " + f"{path} orders 0")
    given, right = b"".join(found), content(ours, 0 if late else begin)
    assert right.startswith(given), damage
    assert len(given) <= len(right) - len(content(ours, damage.offset)), damage
    with pytest.raises(StorageError, match=damage.path.name):
        await partition.read(begin, most)
    await others_read
    assert b"".join(seen) == content(others)
    assert other.error is None
    assert disk.reads, "nothing was read around the page cache"
    assert bool(disk.direct) is (disk.has_direct and _has_direct(path))
    await log.close()


@pytest.mark.parametrize("where", ["anywhere", "length", "cut anywhere"])
def test_what_was_read_ahead_before_the_damage_is_given(tmp_path: Path, original: Path, where: str) -> None:
    """Who is read ahead for is told when he comes to it, not before."""
    shutil.copytree(original, tmp_path / "data")

    async def test() -> None:
        log = await open_log(tmp_path / "data", disk=ColdDisk())
        partition, path = log.partitions[TP], tmp_path / "data" / "orders-0"
        first, last = (next(each for _, begin, _, each in batches(path) if begin > AHEAD + 30_000 * n) for n in (1, 2))
        damage = damage_of(path, where, Random(where), after=first, before=last)
        found: list[bytes] = []
        found_ahead = False

        async def read() -> None:
            nonlocal found_ahead
            offset = 0
            while True:
                found.append(joined(await partition.read(offset, 10_000)))
                offset = list(iter_headers(found[-1]))[-1].last_offset + 1
                if len(found) == 3:
                    damage.happen()
                for stream in partition.shared.cold._streams.values():
                    while stream.running:
                        await asyncio.sleep(0.001)
                    found_ahead = found_ahead or (stream.over and bool(stream.pieces))
                assert partition.error is None

        with pytest.raises(StorageError, match=damage.path.name):
            await read()
        assert found_ahead
        right = content(original / "orders-0")
        # A cut takes the rest of the block with it that the batches before it are in.
        assert right.startswith(b"".join(found))
        assert len(b"".join(found)) > len(right) - len(content(original / "orders-0", damage.offset)) - 20_000
        await log.close()

    run(test())


def _has_direct(path: Path) -> bool:
    """Whether the file system does so at all."""
    try:
        os.close(os.open(path / "checkpoint", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True
