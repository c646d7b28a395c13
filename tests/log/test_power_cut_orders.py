"""A short life of a log directory, the power cut after each of its calls: every state in which that may leave the disk
is tried, where the histories (`history.py`) try some of longer ones.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from mainstem.core import MainstemError
from mainstem.log import TopicConfig
from tests.log.simulated_disk import Choose, SimulatedDisk
from tests.log.support import TOPIC_ID, TP, abandon, batch, open_log, run, values

T = TypeVar("T")


def every_outcome(after: Callable[[Choose], T]) -> Iterator[T]:
    """What `after` gives for each way in which it can choose."""
    chosen: list[tuple[int, int]] = []  # what was drawn, and the most that could be
    while True:
        drawn = 0

        def choose(most: int) -> int:
            nonlocal drawn
            if drawn == len(chosen):
                chosen.append((0, most))
            drawn += 1
            assert chosen[drawn - 1][1] == most
            return chosen[drawn - 1][0]

        yield after(choose)
        while chosen and chosen[-1][0] == chosen[-1][1]:
            chosen.pop()
        if not chosen:
            return
        chosen.append((chosen[-1][0] + 1, chosen.pop()[1]))


def test_every_way_to_choose_comes_once():
    found = Counter(every_outcome(lambda choose: (first := choose(2), choose(first))))
    assert found == dict.fromkeys([(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)], 1)


async def live(path, disk, acknowledged):
    """Batches in three segments, a checkpoint amid them, a clean end."""
    log = await open_log(path, disk=disk)
    try:
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(segment_bytes=1_000))
        for number in range(3):
            value = b"%d" % number * 600
            await partition.append(batch(value))
            acknowledged.append(value)
            if number == 1:
                await log.checkpoint()
        await log.close()
    finally:
        abandon(log)


async def found(path, disk, *, names_in_order):
    """What each state that the disk may be left in has."""
    for after in every_outcome(lambda choose: disk.after_power_cut(choose, names_in_order=names_in_order)):
        log = await open_log(path, disk=after)
        yield await values(log.partitions[TP]) if TP in log.partitions else []
        abandon(log)


def test_after_a_power_cut_anywhere_what_was_acknowledged_is_there_however_the_disk_is_left(tmp_path):
    async def test():
        disk, every = SimulatedDisk(tmp_path), []
        await live(tmp_path, disk, every)
        calls, states = disk.changes, 0
        assert calls > 30
        for off_after in range(calls + 1):
            disk, acknowledged = SimulatedDisk(tmp_path), []
            disk.power_off_after(off_after)
            with suppress(MainstemError, OSError):
                await live(tmp_path, disk, acknowledged)
            for names_in_order in (True, False):
                async for there in found(tmp_path, disk, names_in_order=names_in_order):
                    states += 1
                    assert there[: len(acknowledged)] == acknowledged, f"off after {off_after} calls"
                    assert there == every[: len(there)], f"off after {off_after} calls"
        assert states > 5 * calls

    run(test())
