"""`make demo`, as a test runs it: neither it nor what it starts outlives the test."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil

from tests.support.processes import start, stop
from tests.support.repository import ROOT

DEMO = ROOT / "examples" / "flights_demo" / "demo.py"


@contextmanager
def running_demo(*options: str, seconds: float) -> "Iterator[subprocess.Popen[str]]":
    """The demo, for so long; what it prints comes in `stdout`."""
    process = start([sys.executable, "-u", DEMO, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    alarm = threading.Timer(seconds, process.kill)
    alarm.start()
    try:
        yield process
    finally:
        alarm.cancel()
        stop(process, signal_number=signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()


def run_demo(*options: str, seconds: float, on_line: Callable[[str], None] = lambda _: None) -> str:
    """What the demo printed; it has ended with exit code 0. `on_line` is called with each line as it comes."""
    lines: list[str] = []
    with running_demo(*options, seconds=seconds) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            on_line(line)
        process.wait()
    output = "".join(lines)
    assert process.returncode == 0, output[-40000:]
    return output


def names_of(processes: Iterable[psutil.Process]) -> set[str]:
    """Of those that are still there: a compaction's, or a worker's of Spark, lives for a moment."""
    names = set()
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            names.add(each.name())
    return names
