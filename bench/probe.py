"""A client that asks a log for its Metadata every 5 ms, as a process of its own: how long its event loop is blocked.

    python -m bench.probe HOST:PORT [--every-ms 5]

It says when it begins, ends when its input is closed, and prints the waits in seconds as a JSON list. An answer says
nothing about topics, so what is long is waiting: for the log's event loop, or for a processor. `probing` starts it
around a block.
"""

import argparse
import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.servers import METADATA, Server
from bench.waits import Waits
from tests.support import processes
from tests.support.repository import ROOT


@contextmanager
def probing(server: Server) -> Iterator[list[Waits]]:
    """The list has the waits once the block is left."""
    command = [sys.executable, "-m", "bench.probe", server.bootstrap]
    process = processes.start(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    found: list[Waits] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", "the probe failed"
        yield found
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, "the probe failed"
        found.append(Waits.of(json.loads(said)))
    finally:
        processes.stop(process)


def probe(address: str, every_seconds: float) -> list[float]:
    """Seconds that each answer took, until stdin is closed."""
    host, port = address.rsplit(":", 1)
    waits: list[float] = []
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb")
        due = time.perf_counter()
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], max(due - time.perf_counter(), 0))[0] or not waits:
            asked = time.perf_counter()
            connection.sendall(METADATA)
            size = struct.unpack(">i", answers.read(4))[0]
            answers.read(size)
            waits.append(time.perf_counter() - asked)
            due = max(due + every_seconds, time.perf_counter())
    return waits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--every-ms", type=float, default=5)
    options = parser.parse_args()
    print(json.dumps(probe(options.address, options.every_ms / 1000)))
