"""`mainstem log start` on a disk that takes longer to sync: other people's disks.

    python -m bench.slow_log --data DIR --listen HOST:PORT [--sync-ms 3]

Each fdatasync and fsync takes so much more: of the journal, of segments, of directories and checkpoints. Not those of
the process that compacts what is large: two for each file that it has written, behind seconds of work.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from mainstem.broker.node import serving
from mainstem.core.logging import configure
from mainstem.core.process import die_with_parent
from mainstem.log import SWITCH_SECONDS, SystemDisk
from mainstem.standalone.log_process import log_settings


class SlowDisk(SystemDisk):
    """Every sync takes `seconds` more."""

    def __init__(self, seconds: float = 0.003) -> None:
        self._seconds = seconds

    def open(self, path: Path, *, create: bool = False) -> Any:
        return _SlowFile(super().open(path, create=create), self._seconds)

    def write_atomically(self, path: Path, data: bytes) -> None:
        time.sleep(2 * self._seconds)  # the file, then the directory
        super().write_atomically(path, data)

    def sync_directory(self, path: Path) -> None:
        time.sleep(self._seconds)
        super().sync_directory(path)


class _SlowFile:
    def __init__(self, file: Any, seconds: float) -> None:
        self._file, self._seconds = file, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        time.sleep(self._seconds)
        self._file.sync()


def command_of(sync_ms: float) -> Callable[[Path, int], list[str]]:
    """For `mainstem_server`: the command line from the data's directory and a port."""
    module = [sys.executable, "-m", "bench.slow_log", "--sync-ms", str(sync_ms)]
    return lambda data, port: [*module, "--data", str(data), "--listen", f"127.0.0.1:{port}"]


async def serve(data: Path, listen: str, seconds: float) -> None:
    """Until the process is ended; with the settings of the environment."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    broker_config, log_config = log_settings(listen, None, os.environ)
    async with serving(data, broker_config, log_config, disk=SlowDisk(seconds)):
        sys.setswitchinterval(SWITCH_SECONDS)
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--listen", metavar="HOST:PORT", required=True)
    parser.add_argument("--sync-ms", type=float, default=3)
    options = parser.parse_args()
    configure("log", level="warning")
    die_with_parent()
    options.data.mkdir(parents=True, exist_ok=True)
    uvloop.run(serve(options.data, options.listen, options.sync_ms / 1000))
