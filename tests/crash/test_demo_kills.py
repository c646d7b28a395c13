"""The main job while every process of it is killed once, by SIGKILL: the same truth, and balanced books."""

import pytest

from tests.support.demo import run_demo


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_kill_9_of_each_process_in_turn_changes_nothing(tmp_path):
    output = run_demo("--flights", "4000", "--kill", "--work", str(tmp_path / "work"), seconds=840)
    killed = [line.rpartition(": ")[2] for line in output.splitlines() if "kill -9" in line]
    assert killed == [
        "log",
        "gateway",
        "connect",
        "spark",
        "the JVM of Spark",
        "a Python worker of Spark",
        "mainstem up itself",
    ]
    assert "all equal" in output.splitlines()
