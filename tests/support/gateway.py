"""A gateway in a process of its own, for tests of what speaks to it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SERVE = """
import sys
from mainstem.client.connection import Connection
from mainstem.connect.gateway import GatewayConfig, run
from mainstem.core.logging import configure
configure("gateway")
run(Connection(sys.argv[1]), GatewayConfig(listen="127.0.0.1:0"), on_ready=lambda at: print(at, flush=True))
"""


@contextmanager
def gateway(bootstrap: str) -> Iterator[str]:
    """Its URL."""
    with subprocess.Popen([sys.executable, "-c", SERVE, bootstrap], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://{process.stdout.readline().strip()}"
        finally:
            process.terminate()
            process.wait(30)
