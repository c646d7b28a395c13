"""A standalone cluster of Spark: a real master and workers, each a process of its own, all stopped afterwards."""

import os
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from mainstem.process.java import find_java
from mainstem.process.spark_home import spark_home
from tests.support.ports import free_ports
from tests.support.processes import start, stop
from tests.support.waiting import wait_until


class SparkCluster:
    """A master with one worker; more with `add_worker`.

    Args:
        directory: for what executors write.
        cores: of each worker.
        memory: of each worker.
    """

    def __init__(self, directory: Path, *, cores: int = 2, memory: str = "1200m") -> None:
        self._directory, self._cores, self._memory = directory, cores, memory
        self._port, self._web = free_ports(2)
        self.master = f"spark://127.0.0.1:{self._port}"
        self._processes = []
        self._start("master.Master", "--port", str(self._port), "--webui-port", str(self._web))

    def add_worker(self, *, within: Sequence[str] = ()) -> None:
        """One more; returns when the master knows it. `within`: a command to start it by."""
        expected = len(self._workers()) + 1
        home = self._directory / f"worker{expected}"
        sizes = ("--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(home))
        self._start("worker.Worker", "--webui-port", "0", *sizes, self.master, within=within)
        wait_until(lambda: len(self._workers()) == expected, "the master knows its worker", seconds=60)

    def executors(self) -> list[int]:
        """The process ids of those that run now."""
        return [pid for pid, command in _commands() if "CoarseGrainedExecutorBackend" in command and self._is_ours(pid)]

    def stop(self) -> None:
        for process in reversed(self._processes):
            stop(process)
        wait_until(lambda: not self.executors(), "the executors have ended", seconds=30)

    def _start(self, kind: str, *arguments: str, within: Sequence[str] = ()) -> None:
        command = [*within, spark_home() / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}"]
        self._directory.mkdir(exist_ok=True)
        own = {"JAVA_HOME": str(find_java().home), "SPARK_HOME": str(spark_home()), "SPARK_DAEMON_MEMORY": "256m"}
        own |= {"SPARK_LOCAL_DIRS": str(self._directory / "local"), "SPARK_LOCAL_IP": "127.0.0.1"}
        with (self._directory / f"{kind}.log").open("ab") as log:
            options = {"stdout": log, "stderr": log, "env": os.environ | own}
            self._processes.append(start([*command, "--host", "127.0.0.1", *arguments], **options))

    def applications(self) -> list[str]:
        """The names of those that run now."""
        return sorted(each["name"] for each in self._state()["activeapps"])

    def end(self, application: str) -> None:
        """End one as the button of the master's page does."""
        (number,) = [each["id"] for each in self._state()["activeapps"] if each["name"] == application]
        form = urlencode({"id": number, "terminate": "true"}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/app/kill/", form, timeout=10) as answer:
            answer.read()

    def _workers(self) -> list[Any]:
        return [each for each in self._state()["workers"] if each["state"] == "ALIVE"]

    def _state(self) -> Any:
        """What the master says."""
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=5) as answer:
                    return msgspec.json.decode(answer.read())
            except OSError:  # the master starts
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _is_ours(self, pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(self._directory)
        except OSError:
            return False


def _commands() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_text(errors="replace")
        except OSError:
            continue


@contextmanager
def spark_cluster(directory: Path, **options: object) -> Iterator[SparkCluster]:
    """With one worker."""
    cluster = SparkCluster(directory, **options)  # type: ignore[arg-type]
    try:
        cluster.add_worker()
        yield cluster
    finally:
        cluster.stop()
