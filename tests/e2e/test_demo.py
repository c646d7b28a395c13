"""The main job, as `make demo` runs it, on the first 20,000 flights."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

DEMO = ROOT / "examples" / "flights_demo" / "demo.py"


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_stage_is_equal_to_the_truth(tmp_path):
    command = [sys.executable, str(DEMO), "--flights", "20000", "--work", str(tmp_path / "work")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=840)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
    assert process.returncode == 0, output[-8000:]
    assert "all equal" in output.splitlines()
    assert "the books balance" in output
