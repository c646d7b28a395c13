"""kill -9 of every process of a running project, one after the other, while it works."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from waiting import Background, until

from mainstem.standalone.state import UpState, load

SETTLE_S = 3.0
"""All processes have run for so long, together, before the next one is killed."""


class Faults(Background):
    """Kills each process of the project in `data` once; it is finished when all of them have been and are back.

    Args:
        data: the data directory of `mainstem up`.
        start: runs `mainstem up` again, and returns when it is up.
        tell: called with a line for people.
        check: raises where there is nothing to wait for any more.
    """

    def __init__(
        self, data: Path, start: Callable[[], None], tell: Callable[[str], None], check: Callable[[], None]
    ) -> None:
        super().__init__(self._kill_each)
        self._data, self._start_again, self._tell, self._check_others = data, start, tell, check
        self.restarting = False

    def _kill_each(self) -> None:
        for name, find in self._victims():
            self._settle()
            self._kill(name, find)
        self._settle()

    def _victims(self) -> Iterator[tuple[str, Callable[[], int | None]]]:
        """Names, and what finds the process to kill; a project on somebody else's Kafka has no log of its own."""
        for name in ("log", "gateway", "connect", "spark"):
            if name in self._children():
                yield name, lambda name=name: self._children()[name]  # type: ignore[misc]
        yield "the JVM of Spark", self._java
        yield "a Python worker of Spark", self._worker
        yield "mainstem up itself", lambda: self._state().pid

    def _kill(self, name: str, find: Callable[[], int | None]) -> None:
        pid: int | None = None

        def found() -> bool:
            nonlocal pid
            pid = find()
            return pid is not None

        until(f"{name} runs", found, self._check_others)
        assert pid is not None
        self.restarting = is_supervisor = pid == self._state().pid
        self._tell(f"kill -9 {pid}: {name}")
        os.kill(pid, signal.SIGKILL)
        if is_supervisor:
            try:
                self._start_again()
            finally:
                self.restarting = False

    def _settle(self) -> None:
        """Wait until everything runs, and has for a while."""
        since, last = time.monotonic(), None

        def settled() -> bool:
            nonlocal since, last
            now = [(child.pid, child.state) for child in self._state().children]
            if now != last or any(state != "running" for _, state in now):
                since, last = time.monotonic(), now
            return time.monotonic() - since >= SETTLE_S

        until("all processes run", settled, self._check_others)

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
