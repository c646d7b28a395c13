"""Executors of a Spark cluster, or their Python workers, are killed while they write: whole batches, exactly once, all
the same.
"""

import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import psutil
import pytest

from mainstem.client import Connection
from mainstem.client.append import append
from mainstem.client.topics import end_offsets, ensure_internal_topics, ensure_topic
from tests.support.records import committed
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
RECORDS = 2000
KILLS = 4


def is_executor(process):
    return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())


def is_python_worker(process):
    """It is a fork of a daemon, and called like it."""
    return all("pyspark.daemon" in each.cmdline() for each in (process, process.parent()))


@pytest.mark.parametrize("is_victim", [pytest.param(is_executor, marks=pytest.mark.long), is_python_worker])
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_killed_while_they_write(mainstem_log, tmp_path, is_victim):
    connection, name = Connection(mainstem_log.bootstrap), f"job-{uuid.uuid4().hex[:8]}"
    ensure_internal_topics(connection)
    ensure_topic(connection, f"{name}.in", 2)
    ensure_topic(connection, f"{name}.out", 4)
    append(connection, f"{name}.in", [(b"key-%d" % number, b"%d" % number) for number in range(RECORDS)])
    arguments = [connection.bootstrap, f"{name}.in", f"{name}.out", str(tmp_path), str(RECORDS)]
    command = [sys.executable, "-c", "from tests.support.sink_cluster_job import main; main()", *arguments]
    with (tmp_path / "err").open("w") as err:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        job = subprocess.Popen(command, cwd=ROOT, stderr=err, text=True, **pipes)
    begun = killed = 0
    with job:
        for line in job.stdout:
            if line.startswith("writing"):
                job.stdin.write("go\n")
                job.stdin.flush()
                begun += 1
                if begun % 2 and killed < KILLS:
                    time.sleep(0.3)  # its tasks take longer
                    wait_until(lambda: kill_one(job.pid, is_victim), "there is one")
                    killed += 1
    assert job.returncode == 0, (tmp_path / "err").read_text()[-3000:]
    values = Counter(read(connection, f"{name}.out"))
    assert values == Counter(b"%d" % number for number in range(RECORDS))
    assert killed == KILLS
    stable, high = (end_offsets(connection, f"{name}.out", committed=committed) for committed in (True, False))
    assert stable == high


def kill_one(driver, is_victim):
    """SIGKILL one of this driver's processes; 1 if there was one."""
    for process in psutil.Process(driver).children(recursive=True):
        try:
            if is_victim(process):
                process.send_signal(signal.SIGKILL)
                return 1
        except psutil.Error:
            continue
    return 0


def read(connection, topic):
    return [message.value() for message in committed(connection, topic)]
