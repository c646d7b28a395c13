"""kill -9 of every process of a running project, one after the other, each while it has work to do."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from waiting import Background, until

from mainstem.core import Retriable
from mainstem.standalone.state import UpState, load

BETWEEN_S = 0.3
"""From what a process has finished to its death: it is then at what comes next, not at the end of a commit."""


class Work(NamedTuple):
    """What a process is at, how far it is in any unit, and what finds how much is left: that may take a while."""

    what: str
    done: int
    left: Callable[[], int]


class Faults(Background):
    """Kills each process of the project in `data` once; it is finished when all of them have been and are back.

    Each dies while all of them run, `BETWEEN_S` after it was seen to get on with its work, with some of it left.

    Args:
        data: the data directory of `mainstem up`.
        start: runs `mainstem up` again, and returns when it is up.
        work: what the process of this name is at.
        tell: called with a line for people.
        check: raises where there is nothing to wait for any more.
    """

    def __init__(
        self,
        data: Path,
        start: Callable[[], None],
        work: Callable[[str], Work],
        tell: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        super().__init__(self._kill_each)
        self._data, self._start_again, self._work_of, self._tell, self._check_others = data, start, work, tell, check
        self.restarting = False

    def _kill_each(self) -> None:
        for name, find in self._victims():
            self._kill(name, find)
        until("all processes run", self._all_run, self._check_others)

    def _victims(self) -> Iterator[tuple[str, Callable[[], int | None]]]:
        """Names, and what finds the process to kill; a project on somebody else's Kafka has no log of its own."""
        children = {name: lambda name=name: self._children()[name] for name in self._children()}
        for name in ("log", "gateway", "connect"):
            if name in children:
                yield name, children[name]
        if self._worker() is not None:  # large batches have some, and after the others it takes long until they do
            yield "a Python worker of Spark", self._worker
        yield "the JVM of Spark", self._java
        yield "spark", children["spark"]
        yield "mainstem up itself", lambda: self._state().pid

    def _kill(self, name: str, find: Callable[[], int | None]) -> None:
        pid, said = self._find_at_work(name, find)
        self.restarting = is_supervisor = pid == self._state().pid
        os.kill(pid, signal.SIGKILL)
        until(f"{name} has ended", lambda: not _runs(pid), self._check_others)
        self._tell(f"kill -9 {pid}: {name}; {said}")
        if is_supervisor:
            try:
                self._start_again()
            finally:
                self.restarting = False

    def _find_at_work(self, name: str, find: Callable[[], int | None]) -> tuple[int, str]:
        """The process, now that it is in the midst of its work, and what that is."""
        first: Work | None = None
        pid, said = None, ""

        def at_work() -> bool:
            nonlocal first, pid, said
            if not self._all_run():
                first = None
                return False
            try:
                now = self._work_of(name)
                if first is None or now.done <= first.done:
                    first = first or now
                    return False
                time.sleep(BETWEEN_S)
                left, pid = now.left(), find()
            except Retriable:  # what is asked for it is not back yet
                first = None
                return False
            said = f"{now.what} moved by {now.done - first.done:,}, {left:,} left"
            first = None
            return left > 0 and pid is not None and _runs(pid)

        until(f"{name} is at work", at_work, self._check_others)
        assert pid is not None
        return pid, said

    def _all_run(self) -> bool:
        children = self._state().children
        return all(each.state == "running" and each.pid is not None and _runs(each.pid) for each in children)

    def _state(self) -> UpState:
        state = load(self._data)
        assert state is not None, f"nothing runs in {self._data}"
        return state

    def _children(self) -> dict[str, int | None]:
        return {child.name: child.pid for child in self._state().children}

    def _java(self) -> int | None:
        """The JVM that the Spark driver has started; not one that it only asks for its version."""
        driver = self._children()["spark"]
        try:
            for process in psutil.Process(driver).children(recursive=True):
                if "org.apache.spark.deploy.SparkSubmit" in process.cmdline():
                    return int(process.pid)
        except psutil.NoSuchProcess:
            pass
        return None

    def _worker(self) -> int | None:
        """A worker: a child of the daemon that the JVM starts, which is itself a Python."""
        java = self._java()
        try:
            for daemon in psutil.Process(java).children() if java is not None else []:
                for worker in daemon.children():
                    return int(worker.pid)
        except psutil.NoSuchProcess:
            pass
        return None


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
