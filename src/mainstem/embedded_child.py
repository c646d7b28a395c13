"""The log of `mainstem.embedded(child=True)`: a process of its own, which the program may kill and start again.

The parent writes one line of JSON to its stdin, `Settings`; it answers with one on stdout, `Started`, when it serves or
cannot. It ends with SIGTERM, and with its parent, however that ends; a Ctrl-C in their terminal is its parent's. Where
the disk has failed it ends by itself: only another start helps.
"""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from mainstem.broker.config import BrokerConfig
from mainstem.broker.node import serving, until_ended
from mainstem.core import MainstemError
from mainstem.core.address import format_address
from mainstem.core.logging import configure
from mainstem.core.prepared import prepared
from mainstem.core.process import PARENT, die_with_parent, is_there, open_standard_files, start_child
from mainstem.log import SWITCH_SECONDS, LogConfig, StorageError

_STOP_SECONDS = 30
_DISK_FAILED = 2


class Settings(msgspec.Struct, frozen=True):
    """What the process serves, and where."""

    data: str
    broker: BrokerConfig
    log: LogConfig


class Started(msgspec.Struct, frozen=True):
    """`host` and `port` it serves on, or the `error` that prevents it and its `hint`."""

    host: str = ""
    port: int = 0
    error: str = ""
    hint: str = ""


class NotStarted(MainstemError):
    """The log's process does not serve."""


class Child:
    """A log in a process of its own, from `start` to `stop` or `kill`; it may be started again."""

    def __init__(self, data: Path, broker: BrokerConfig, log: LogConfig) -> None:
        self._settings = Settings(str(data), broker, log)
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    @property
    def process_id(self) -> int:
        """Of the running process; 0 where there is none, also where it has ended by itself."""
        if self._process is None:
            return 0
        if os.getpid() != self._owner:  # of a fork it is no child, which a look at it would take for its end
            return self._process.pid if is_there(self._process.pid) else 0
        return self._process.pid if self._process.poll() is None else 0

    def start(self) -> str:
        """Start the process; its address, the same each time.

        Raises:
            NotStarted: the directory or the port are taken, or it ended before it could say.
        """
        if self.process_id:
            raise NotStarted(f"process {self.process_id} serves the log already", hint="stop() or kill() it first")
        self.kill()
        self._process = process = start_child(
            [sys.executable, "-P", "-m", __name__],  # what lies in the working directory is none of its modules
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {PARENT: str(os.getpid())},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended: what it says, or does not, tells why
            process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self.kill()
            raise NotStarted(f"the log's process ended with exit code {process.returncode}", hint="its stderr says why")
        started = msgspec.json.decode(line, type=prepared(Started))
        if started.error:
            self.kill()
            raise NotStarted(started.error, hint=started.hint)
        # The same port when it is started again: clients know no other.
        broker = msgspec.structs.replace(self._settings.broker, port=started.port)
        self._settings = msgspec.structs.replace(self._settings, broker=broker)
        return format_address(started.host, started.port)

    def stop(self) -> None:
        """SIGTERM: it closes its files. None running is fine."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
            self.kill()

    def kill(self) -> None:
        """SIGKILL: what it has acknowledged is there when it is started again. None running is fine."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()


async def _serve(settings: Settings) -> StorageError | None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serving(Path(settings.data), settings.broker, settings.log) as broker:
        sys.setswitchinterval(SWITCH_SECONDS)
        _tell(Started(broker.host, broker.port))
        return await until_ended(broker, stop)


def _tell(started: Started) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(started) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve what stdin says."""
    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the program, which may still need its log
    die_with_parent()
    open_standard_files()  # a program's own file in the place of its stderr is none of ours, and closed here
    configure("embedded-log", level="warning")
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=prepared(Settings))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            failure = runner.run(_serve(settings))
    except (MainstemError, OSError) as error:
        _tell(Started(error=str(error) or repr(error), hint=getattr(error, "hint", "")))
        sys.exit(1)
    code = 0 if failure is None else _DISK_FAILED
    os._exit(code)  # all is closed: a client's regular expression that a thread is still about holds up nobody


if __name__ == "__main__":
    main()
