"""A gateway as a process of its own, which a test may kill."""

import signal
import subprocess
import sys
import time
from typing import Any

import httpx

from tests.support import processes
from tests.support.ports import free_port

PROGRAM = """
import sys
from mainstem.client.connection import Connection
from mainstem.connect.gateway import run
from mainstem.connect.gateway_config import GatewayConfig
from mainstem.core import MainstemError
from mainstem.core.config import convert
import msgspec
bootstrap, settings = sys.argv[1:]
try:
    run(Connection(bootstrap), convert(msgspec.json.decode(settings), GatewayConfig, where="test"),
        on_ready=lambda address: print("listening on", address, flush=True))
except MainstemError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    sys.exit(2)
"""


class GatewayProcess:
    """`python -c …` around `mainstem.connect.gateway.run`; `start` returns when it answers."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self.bootstrap = bootstrap
        self.settings = {"listen": f"127.0.0.1:{free_port()}", **settings}
        self.url = f"http://{self.settings['listen']}"
        self.process: subprocess.Popen[Any] | None = None

    def __enter__(self) -> "GatewayProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> "GatewayProcess":
        import msgspec

        settings = msgspec.json.encode(self.settings).decode()
        command = [sys.executable, "-c", PROGRAM, self.bootstrap, settings]
        self.process = processes.start(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = ""
        for line in self.process.stdout:
            if line.startswith("listening on"):
                return self
        raise AssertionError(f"the gateway did not start: {line!r}")

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        processes.stop(self.process, signal_number=signal.SIGKILL)
        self._close()

    def stop(self) -> int:
        assert self.process is not None
        code = processes.stop(self.process)
        self._close()
        return code

    def _close(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def wait_until_healthy(self, seconds: float = 30) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if httpx.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise AssertionError("not healthy")
