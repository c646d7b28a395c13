"""A real process appends and is killed with SIGKILL, over and over:
what it had acknowledged is there, once, in order.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mainstem.core import ManualClock
from mainstem.log import LogConfig, LogDirectory, PartitionLog
from mainstem.records import decode_records, iter_headers
from tests.log.support import joined, run

WRITER = Path(__file__).with_name("log_writer.py")


def run_and_kill(directory: Path, seconds: float) -> list[str]:
    """Lines of a writer that was killed; the last may be cut short."""
    with subprocess.Popen([sys.executable, str(WRITER), str(directory)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            started = process.stdout.readline()
            assert started == b"started\n", started
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGKILL)
        output = process.stdout.read().decode()
    return [line for line in output.split("\n")[:-1] if line]


async def records_of(partition: PartitionLog, *, committed_only: bool) -> list[tuple[int, bytes, bytes]]:
    offset, found = partition.log_start_offset, []
    while True:
        result = await partition.read(offset, 1 << 20, committed_only=committed_only)
        whole = joined(result)
        if not whole:
            return found
        position = 0
        for header in iter_headers(whole):
            data = whole[position : position + header.size]
            position += header.size
            offset = header.next_offset
            aborted = any(
                a.producer_id == header.producer_id and a.first_offset <= header.base_offset <= a.last_offset
                for a in result.aborted
            )
            if not header.is_control and not (committed_only and header.is_transactional and aborted):
                found += [(r.offset, r.key, r.value) for r in decode_records(data)]


async def check(directory: Path, acknowledged: dict[str, dict[int, str]]) -> None:
    log = await LogDirectory.open(directory, LogConfig(), clock=ManualClock(int(time.time() * 1000)))
    for topic_partition, partition in log.partitions.items():
        topic = topic_partition.topic
        assert partition.error is None
        found = {offset: (key, value) for offset, key, value in await records_of(partition, committed_only=False)}
        for offset, value in acknowledged.get(str(topic_partition), {}).items():
            if topic != "compacted":
                assert found[offset][1] == value.encode(), f"{topic_partition}: offset {offset}"
        if topic == "idempotent":
            numbers = [int(value) for _, value in found.values()]
            assert numbers == list(range(len(numbers))), "a record was lost, repeated or moved"
        if topic == "transactional":
            committed = [int(value) for _, _, value in await records_of(partition, committed_only=True)]
            groups = [committed[n : n + 3] for n in range(0, len(committed), 3)]
            assert all(group == [group[0]] * 3 for group in groups), "a transaction was torn"
            assert all(group[0] % 2 == 0 for group in groups), "an aborted record was read"
            promised = {int(v) for v in acknowledged.get(f"commits-{topic_partition.partition}", {}).values()}
            assert promised <= set(committed)
        if topic == "compacted":
            state = {key: value for _, (key, value) in sorted(found.items())}
            for offset, value in acknowledged.get(str(topic_partition), {}).items():
                latest = max(o for o, (key, _) in found.items() if key == b"%d" % (int(value) % 10))
                assert latest >= offset, f"{topic_partition}: the last value of key {int(value) % 10} is lost"
            assert len(state) <= 10
    await log.close()


def kill_loop(directory: Path, times: int, seed: int) -> int:
    draw = random.Random(seed)
    acknowledged: dict[str, dict[int, str]] = {}
    total = 0
    for number in range(times):
        for line in run_and_kill(directory, draw.uniform(0.05, 0.6)):
            where, offset, value = line.split()
            acknowledged.setdefault(where, {})[int(offset)] = value
            total += 1
        if number % 4 == 3 or number == times - 1:  # else the next writer recovers
            run(check(directory, acknowledged))
    return total


def test_what_was_acknowledged_survives_kills(tmp_path):
    assert kill_loop(tmp_path, times=8, seed=1) > 0


@pytest.mark.long
def test_what_was_acknowledged_survives_many_kills(tmp_path):
    assert kill_loop(tmp_path, times=150, seed=2) > 0
