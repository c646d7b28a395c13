"""Processes of the service, and what may happen to them: killed, stopped and woken up, started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from examples.arithmetic.client import ask
from mainstem.core.address import free_port
from mainstem.core.process import PARENT, start_child

ROOT = Path(__file__).parents[2]


class Late(AssertionError):
    """What must happen did not, in time."""


class Cluster:
    """Nodes n1, n2, …, each a process of its own.

    Args:
        model: how they are replicated.
        bootstrap: the log, or what leads to it, of all nodes, or by node.
        options: of the command, beside those.
        topic: empty for the model's own.
        nodes: how many.
    """

    def __init__(
        self, model: str, bootstrap: str | Mapping[str, str], *options: str, topic: str = "", nodes: int = 3
    ) -> None:
        self.model, self.topic, self._options = model, topic or f"arithmetic-{model}", options
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._bootstraps = {node: bootstrap if isinstance(bootstrap, str) else bootstrap[node] for node in self.nodes}
        self.addresses: dict[str, str] = {}
        while len(set(self.addresses.values())) < nodes:
            self.addresses = {node: f"127.0.0.1:{free_port('127.0.0.1')}" for node in self.nodes}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.stopped: set[str] = set()

    def __enter__(self) -> "Cluster":
        try:
            for node in self.nodes:
                self.start(node, wait=False)
            self.wait_until(lambda: all(self.status(node) for node in self.nodes), "all nodes answer")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for node in list(self.processes):
            self.kill(node)

    def start(self, node: str, *, wait: bool = True) -> None:
        """Start a node, or start it again."""
        peers = ",".join(f"{other}={address}" for other, address in self.addresses.items() if other != node)
        command = [sys.executable, "-m", "examples.arithmetic.service", "--model", self.model, "--node", node]
        command += ["--listen", self.addresses[node], "--peers", peers, "--bootstrap", self._bootstraps[node]]
        command += ["--topic", self.topic]
        self.processes[node] = start_child(
            [*command, *self._options], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env=os.environ | {PARENT: str(os.getpid())},
        )  # fmt: skip
        if wait:
            self.wait_until(lambda: self.status(node), f"{node} answers")

    def kill(self, node: str) -> str:
        """SIGKILL, as a crash; what it had said on standard error."""
        process = self.processes.pop(node)
        self.stopped.discard(node)
        process.kill()
        _, said = process.communicate()
        return said

    def stop(self, node: str) -> None:
        """SIGSTOP: it does nothing, and does not know it."""
        self.processes[node].send_signal(signal.SIGSTOP)
        self.stopped.add(node)

    def wake(self, node: str) -> None:
        """SIGCONT: it goes on as if nothing had been."""
        self.processes[node].send_signal(signal.SIGCONT)
        self.stopped.discard(node)

    def status(self, node: str) -> dict[str, Any]:
        """What a node says of itself; empty where it says nothing."""
        said = ask(self.addresses[node], "/status", seconds=2.0)
        return said.body if said is not None and said.status == 200 else {}

    def local(self, node: str, variable: str, basis: int = 0) -> str:
        """What a node has, once it has read up to `basis`."""
        said = ask(self.addresses[node], f"/{variable}?level=local&basis={basis}", seconds=12.0)
        return str(said.body.get("value", "")) if said is not None else ""

    @property
    def awake(self) -> list[str]:
        return [node for node in self.processes if node not in self.stopped]

    def primary(self) -> str:
        """The node that takes requests, once there is one; where all do, the first."""
        found: list[str] = []

        def there() -> bool:
            found[:] = [node for node in self.awake if self.status(node).get("role") in ("primary", "replica")]
            return bool(found)

        self.wait_until(there, "a primary")
        return found[0]

    def wait_until(self, reached: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > deadline:
                raise Late(f"not within {seconds:.0f} s: {what}")
            for node, process in self.processes.items():
                if process.poll() is not None:
                    raise Late(f"{node} has ended: {self.kill(node)}")
            time.sleep(0.02)
