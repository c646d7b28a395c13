"""Watching a run from outside: what its processes use, how far its group is, how long its output is."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.nexmark.engines import ROOT, Run
from mainstem.client.connection import Connection
from mainstem.client.reader import RangeReader
from mainstem.client.topics import admin, end_offsets
from tests.support import processes

_EVERY_SECONDS = 0.2


class Used(msgspec.Struct):
    """Of a tree of processes: seconds of the processors, and the highest sum of what they had in memory (MB; what
    processes share counts in each).
    """

    cpu: float = 0.0
    memory: float = 0.0


class Watch:
    """Samples trees of processes in a thread. Processes that have ended keep what they had used when seen last."""

    def __init__(self, roots: list[int]) -> None:
        self._roots = roots
        self._cpu: dict[tuple[int, float], float] = {}
        self._memory = 0.0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def used(self) -> Used:
        """Until now."""
        self._sample()
        with self._lock:
            return Used(sum(self._cpu.values()), self._memory)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_SECONDS):
            self._sample()

    def _sample(self) -> None:
        memory = 0.0
        found: dict[tuple[int, float], float] = {}
        for root in self._roots:
            with contextlib.suppress(psutil.Error):
                top = psutil.Process(root)
                for process in (top, *top.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        times = process.cpu_times()
                        found[process.pid, process.create_time()] = times.user + times.system
                        memory += process.memory_info().rss / 2**20
        with self._lock:
            self._cpu |= found
            self._memory = max(self._memory, memory)


class Position(msgspec.Struct, frozen=True):
    """Where a run is: the committed end of its output, and whether its group has all of its input."""

    output: int
    all_read: bool


class Progress:
    """Asks the log how far a run is."""

    def __init__(self, connection: Connection, run: Run) -> None:
        self._connection, self._run = connection, run
        self._ends = {topic: end_offsets(connection, topic, committed=True) for topic in run.inputs}

    def now(self) -> Position:
        output = sum(end_offsets(self._connection, self._run.output, committed=True).values())
        return Position(output, self._all_read())

    def _all_read(self) -> bool:
        if not self._run.group:
            return True
        from confluent_kafka import ConsumerGroupTopicPartitions
        from confluent_kafka import TopicPartition as Partition

        wanted = [Partition(topic, each) for topic, ends in self._ends.items() for each in ends]
        asked = ConsumerGroupTopicPartitions(self._run.group, wanted)
        try:
            found = admin(self._connection).list_consumer_group_offsets([asked])[self._run.group].result(10)
        except Exception:  # of several kinds: there is no group yet
            return False
        at = {(each.topic, each.partition): each.offset for each in found.topic_partitions}
        return all(at.get((topic, each), -1) >= end for topic, ends in self._ends.items() for each, end in ends.items())


@contextlib.contextmanager
def started(run: Run) -> Iterator[list["subprocess.Popen[Any]"]]:
    """The processes of a run; what they say is in files of its directory."""
    environment = {**os.environ, **run.environment}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = []
    try:
        for number, command in enumerate(run.commands):
            with (run.state / f"said-{number}.txt").open("wb") as out:
                begun.append(processes.start(command, stdout=out, stderr=out, env=environment, cwd=ROOT))
        yield begun
    finally:
        for process in begun:
            process.terminate()
        for process in begun:
            processes.stop(process)


def said(state: Path) -> str:
    """The last that its processes have said."""
    return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(state.glob("said-*.txt")))


def values(connection: Connection, topic: str) -> Iterator[bytes]:
    """Of all committed records of a topic, in order within a partition."""
    with contextlib.closing(RangeReader(connection, topic, deleted="earliest", name="nexmark")) as reader:
        ends = reader.ends()
        for record in reader.read(dict.fromkeys(ends, 0), ends):
            yield record.value() or b""
