"""A serving node as a process, which a test may kill."""

import subprocess
import sys

import msgspec

from tests.support import processes
from tests.support.ports import free_port

PROGRAM = """
import sys
from pathlib import Path
import msgspec
from mainstem.client.connection import Connection
from mainstem.core import MainstemError
from mainstem.core.config import convert
from mainstem.serve.config import ServeConfig
from mainstem.serve.server import run
bootstrap, directory, address, settings, name = sys.argv[1:]
try:
    run(name, convert(msgspec.json.decode(settings), ServeConfig, where="test"), address, Connection(bootstrap), Path(directory),
        on_ready=lambda at: print("listening on", at, flush=True))
except MainstemError as error:
    print(f"{type(error).__name__}: {error} ({error.hint})", flush=True)
    sys.exit(2)
"""


class NodeProcess:
    def __init__(self, fleet, directory, *, name="n", **views):
        self.name, self.address = name, f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        settings = msgspec.json.encode(fleet.config(**views)).decode()
        self.command = [
            sys.executable, "-c", PROGRAM, fleet.connection.bootstrap, str(directory), self.address, settings, name,
        ]  # fmt: skip
        self.process = None

    def start(self):
        self.process = processes.start(self.command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line == f"listening on {self.address}\n", line
        return self

    def end(self, number):
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process.stdout.close()
        return code
