"""The main job while every process of it is killed once, by SIGKILL: the same truth, and balanced books."""

import re
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support.demo import DEMO, names_of, run_demo
from tests.support.node import wait_for
from tests.support.processes import start, stop


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_kill_9_of_each_process_in_turn_changes_nothing(tmp_path):
    output = run_demo("--flights", "4000", "--only-tables", "--kill", "--work", str(tmp_path / "work"), seconds=1140)
    killed = re.findall(r"kill -9 \d+: (.+); (\w+) moved by ([\d,]+), ([\d,]+) left", output)
    named = [name for name, *_ in killed if name != "a Python worker of Spark"]  # small batches have none
    assert named == ["log", "gateway", "connect", "the JVM of Spark", "spark", "mainstem up itself"]
    # Each was in the midst of its work, and there was input left to the last.
    assert not any("0" in (moved, left) for *_, moved, left in killed), killed
    assert "all equal" in output.splitlines()


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_nothing_is_left_when_the_demo_itself_is_killed(tmp_path):
    command = [sys.executable, "-u", DEMO, "--flights", "1000", "--work", tmp_path / "work"]
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with process.stdout:
        for line in process.stdout:
            if "change planes and airports" in line:  # Spark has its Python workers
                break
        started = psutil.Process(process.pid).children(recursive=True)
        assert {"java", "postgres"} <= names_of(started)
        stop(process, signal_number=signal.SIGKILL)
    wait_for(lambda: not any(each.is_running() for each in started))
