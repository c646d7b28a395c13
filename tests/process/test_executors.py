"""What the executors of a cluster lack on their hosts is told before a job starts, in one line that says what to set.

Master and worker are real. The worker has mounts of its own, as another host has: another directory lies at a path of
this test's.
"""

import json
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pyspark
import pytest

import mainstem
from mainstem.process.executors import ExecutorUnfit, _check
from tests.support.processes import start, stop
from tests.support.spark_cluster import SparkCluster

ASK = """
import json, sys
from pathlib import Path
from mainstem.client.connection import Connection
from mainstem.core import MainstemError
from mainstem.process.executors import check_executors
from mainstem.process.session import SparkConfig, start_session, stop_session

settings = {"spark.executor.memory": "500m", "spark.driver.host": "127.0.0.1"}
spark = start_session("ask", SparkConfig(master=sys.argv[1], settings=settings), directory=Path(sys.argv[2]))
print("started", flush=True)
for line in sys.stdin:
    bootstrap, data, python, seconds = json.loads(line)
    spark.sparkContext.pythonExec = python
    try:
        check_executors(spark, Connection(bootstrap), [Path(data)], wait_seconds=seconds)
    except MainstemError as error:
        print(f"{type(error).__name__}: {error} ({error.hint})", flush=True)
    else:
        print("fit", flush=True)
stop_session(spark)
"""
MOUNTS = ("unshare", "--map-root-user", "--mount", "--propagation", "private")


@pytest.fixture
def without_mainstem(tmp_path):
    """A Python with all that this one has but mainstem."""
    own = Path(pyspark.__file__).parents[1]
    packages = tmp_path / "packages"
    packages.mkdir()
    for each in own.iterdir():
        if "mainstem" not in each.name:
            (packages / each.name).symlink_to(each)
    python = tmp_path / "bare-python"
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {base} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_executors_lack_is_told_in_one_line(tmp_path, without_mainstem):
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    hides = shlex.join(["mount", "-t", "tmpfs", "none", str(elsewhere)])
    isolated = subprocess.run([*MOUNTS, "true"], capture_output=True, check=False).returncode == 0
    within = (*MOUNTS, "sh", "-c", f'{hides} && exec "$@"', "sh") if isolated else ()
    cluster = SparkCluster(tmp_path / "cluster", cores=1)
    with mainstem.embedded() as log:
        command = [sys.executable, "-c", ASK, cluster.master, tmp_path / "session"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with (tmp_path / "err").open("w") as err:
            driver = start(command, stderr=err, **pipes)

        def told(*, place=data, python=sys.executable, seconds=120):
            driver.stdin.write(json.dumps([log.bootstrap, str(place), str(python), seconds]) + "\n")
            driver.stdin.flush()
            return driver.stdout.readline()

        try:
            assert driver.stdout.readline() == "started\n", (tmp_path / "err").read_text()
            line = told(seconds=2)
            assert line.startswith(f"NoExecutor: {cluster.master}: no executor within 2 s (has the cluster the cores")
            cluster.add_worker(within=within)
            assert told() == "fit\n"
            assert list(data.iterdir()) == []
            line = told(python=without_mainstem)
            assert line.startswith("ExecutorUnfit: executor on ")
            assert f": expected mainstem {version('mainstem')} in " in line
            assert ', found none ([spark.settings] "spark.pyspark.python" is the path' in line
            line = told(python="/nowhere/python")
            assert line.startswith(f"ExecutorUnfit: {cluster.master}: its executors cannot run Python: ")
            assert "/nowhere/python" in line
            if not isolated:
                pytest.skip("what another host does not see is not tried: `unshare` makes no mounts of its own here")
            line = told(place=elsewhere)
            assert f": expected {elsewhere} as the driver has it: No such file or directory (what --data, " in line
        finally:
            driver.stdin.close()
            stop(driver)
            driver.stdout.close()
            cluster.stop()


def test_an_address_that_an_executor_does_not_reach_is_told_with_what_gives_it():
    """A log of a laptop gives 127.0.0.1 to everybody, which is another machine for everybody."""
    found = {"host": "worker-7", "python": "python3", "mainstem": version("mainstem"), "unusable": {}}
    for name, mends in (("the log at 127.0.0.1:9092", "advertised_host"), ("the driver", "spark.driver.host")):
        with pytest.raises(
            ExecutorUnfit, match=f"^executor on worker-7: {name} cannot be reached from there: no"
        ) as told:
            _check({**found, "unreached": {name: "no route"}})
        assert mends in told.value.hint
    _check({**found, "unreached": {}})
