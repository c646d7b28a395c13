"""Child processes that never outlive the test that started them."""

import atexit
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mainstem.core.process import start_child

_started: set["subprocess.Popen[Any]"] = set()


def start(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[Any]":
    """`subprocess.Popen`, but the child is killed when this process ends, also by SIGKILL."""
    options.setdefault("stdin", subprocess.DEVNULL)
    # setpriv (util-linux) asks for the signal and becomes the command; a preexec_fn could deadlock among threads.
    process = start_child(["setpriv", "--pdeathsig", "KILL", *(str(part) for part in command)], **options)
    _started.add(process)
    return process


def stop(process: "subprocess.Popen[Any]", *, signal_number: int = signal.SIGTERM, seconds: float = 30) -> int:
    """Ask it to end, kill it if it does not in `seconds`; returns its exit code."""
    if process.poll() is None:
        process.send_signal(signal_number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _started.discard(process)
    return process.returncode


@atexit.register
def _stop_all() -> None:
    for process in list(_started):
        stop(process, signal_number=signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether the process is there, or waits to be collected."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
