"""A connect worker with one task, as a process of its own that a test may kill."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.support import processes

PROGRAM = """
import signal, sys, threading
import msgspec
from mainstem.client.connection import Connection
from mainstem.connect.worker import Worker, convert_sink, convert_source, make_sink, make_source
from mainstem.core import Backoff
from mainstem.core.logging import configure
from mainstem.registry.client import Registry

kind, name, bootstrap, registry, settings = sys.argv[1:]
configure("connect")
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
convert, make = (convert_source, make_source) if kind == "source" else (convert_sink, make_sink)
config = convert(msgspec.json.decode(settings), where="test")
Worker({f"{kind} {name}": make(name, config, Connection(bootstrap), Registry(registry))}, passing=Backoff(0.5, 0.5)).run(stop)
"""


class ConnectProcess:
    """`start`, `kill` and `start` again; what it logs goes to a file."""

    def __init__(self, kind: str, name: str, bootstrap: str, registry_url: str, log: Path, **settings: Any) -> None:
        self._command = [sys.executable, "-c", PROGRAM, kind, name, bootstrap, registry_url]
        self._settings = msgspec.json.encode({"type": "postgres", **settings}).decode()
        self.log = log
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> "ConnectProcess":
        with self.log.open("ab") as log:
            self._process = processes.start([*self._command, self._settings], stdout=log, stderr=log)
        return self

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        assert self._process.poll() is None, f"it had ended: {self.log.read_text()[-2000:]}"
        processes.stop(self._process, signal_number=signal.SIGKILL)

    def stop(self) -> int:
        assert self._process is not None
        return processes.stop(self._process)
