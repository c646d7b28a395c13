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


class Asked:
    """A driver of Spark, which is asked what its executors lack."""

    def __init__(self, directory):
        self.elsewhere = directory / "elsewhere"
        """A directory of this host, where a worker with mounts of its own has nothing."""
        self.data = directory / "data"
        self.elsewhere.mkdir()
        self.cluster = SparkCluster(directory / "cluster", cores=1)
        self.err = directory / "err"
        self._log = mainstem.embedded()
        self._has_worker = False
        command = [sys.executable, "-c", ASK, self.cluster.master, directory / "session"]
        with self.err.open("w") as err:
            self._driver = start(command, stderr=err, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        self._bootstrap = self._log.__enter__().bootstrap
        assert self._driver.stdout.readline() == "started\n", self.err.read_text()
        return self

    def __exit__(self, *_):
        self._driver.stdin.close()
        stop(self._driver)
        self._driver.stdout.close()
        self._log.__exit__(None, None, None)
        self.cluster.stop()

    def add_worker(self):
        if not self._has_worker:
            hides = shlex.join(["mount", "-t", "tmpfs", "none", str(self.elsewhere)])
            self.cluster.add_worker(within=(*MOUNTS, "sh", "-c", f'{hides} && exec "$@"', "sh") if _ISOLATED else ())
            self._has_worker = True

    def told(self, *, place=None, python=sys.executable, seconds=120):
        question = [self._bootstrap, str(place or self.data), str(python), seconds]
        self._driver.stdin.write(json.dumps(question) + "\n")
        self._driver.stdin.flush()
        return self._driver.stdout.readline()


_ISOLATED = subprocess.run([*MOUNTS, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    with Asked(tmp_path_factory.mktemp("executors")) as asked:
        yield asked


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
def test_what_executors_lack_is_told_in_one_line(asked, without_mainstem):
    line = asked.told(seconds=2)
    assert line.startswith(f"NoExecutor: {asked.cluster.master}: no executor within 2 s (has the cluster the cores")
    asked.add_worker()
    assert asked.told() == "fit\n"
    assert list(asked.data.iterdir()) == []
    line = asked.told(python=without_mainstem)
    assert line.startswith("ExecutorUnfit: executor on ")
    assert f": expected mainstem {version('mainstem')} in " in line
    assert ', found none ([spark.settings] "spark.pyspark.python" is the path' in line
    line = asked.told(python="/nowhere/python")
    assert line.startswith(f"ExecutorUnfit: {asked.cluster.master}: its executors cannot run Python: ")
    assert "/nowhere/python" in line


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not _ISOLATED, reason="what another host does not see is not tried: `unshare` makes no mounts of its own here"
)
def test_a_directory_that_the_executors_hosts_do_not_have_is_told(asked):
    asked.add_worker()
    line = asked.told(place=asked.elsewhere)
    assert f": expected {asked.elsewhere} as the driver has it: No such file or directory (what --data, " in line


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
