"""`make demo`, as a test runs it: in a process group of its own, which never outlives the test."""

import os
import signal
import subprocess
import sys

from tests.support.repository import ROOT

DEMO = ROOT / "examples" / "flights_demo" / "demo.py"


def run_demo(*options: str, seconds: float) -> str:
    """What the demo printed; it has ended with exit code 0."""
    process = subprocess.Popen(
        [sys.executable, str(DEMO), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert process.returncode == 0, output[-8000:]
    return output
