"""Executors of a Spark cluster are killed while they write: whole batches, exactly once, all the same."""

import signal
import subprocess
import sys
import threading
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

ROOT = Path(__file__).parents[2]
RECORDS = 2000
KILLS = 4


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_executors_killed_while_they_write(mainstem_log, tmp_path):
    connection, name = Connection(mainstem_log.bootstrap), f"job-{uuid.uuid4().hex[:8]}"
    ensure_internal_topics(connection)
    ensure_topic(connection, f"{name}.in", 2)
    ensure_topic(connection, f"{name}.out", 4)
    append(connection, f"{name}.in", [(b"key-%d" % number, b"%d" % number) for number in range(RECORDS)])
    arguments = [connection.bootstrap, f"{name}.in", f"{name}.out", str(tmp_path), str(RECORDS)]
    command = [sys.executable, "-c", "from tests.support.sink_cluster_job import main; main()", *arguments]
    with (tmp_path / "err").open("w") as err:
        job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=err, text=True)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(job.stdout), daemon=True)
    reader.start()
    killed = 0
    while job.poll() is None:
        time.sleep(0.5)
        if killed < KILLS and sum(line.startswith("batch") for line in lines) > 2 * killed:
            killed += kill_an_executor(job.pid)
    reader.join()
    job.stdout.close()
    assert job.returncode == 0, (tmp_path / "err").read_text()[-3000:]
    values = Counter(read(connection, f"{name}.out"))
    assert values == Counter(b"%d" % number for number in range(RECORDS))
    assert killed == KILLS
    stable, high = (end_offsets(connection, f"{name}.out", committed=committed) for committed in (True, False))
    assert stable == high


def kill_an_executor(driver: int) -> int:
    """SIGKILL one of this driver's executors; 1 if there was one."""
    for process in psutil.Process(driver).children(recursive=True):
        try:
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                process.send_signal(signal.SIGKILL)
                return 1
        except psutil.Error:
            continue
    return 0


def read(connection, topic):
    return [message.value() for message in committed(connection, topic)]
