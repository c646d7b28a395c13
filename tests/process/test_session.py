"""The session's rules hold, and nobody switches them off by accident."""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkConf
from pyspark.sql import SparkSession

from mainstem.process.project_config import JobConfig
from mainstem.process.session import (
    _DEFAULTS,
    JOB_RULES,
    RULES,
    ApplicationConfig,
    BadSparkSetting,
    SparkConfig,
    check_rules,
    driver_place,
    is_local,
    job_session,
    scratch_directory,
    session_settings,
    start_session,
    tasks_at_once,
    workers_python,
)
from tests.support.repository import ROOT


def test_a_setting_that_breaks_the_promise_is_refused():
    with pytest.raises(ValueError, match=r"spark\.speculation = 'true' would break"):
        SparkConfig(settings={"spark.speculation": "true"})


def test_a_master_that_is_none_of_sparks_is_refused():
    for good in ("local", "local[2]", "local[*]", "local[2, 3]", "local-cluster[2,1,600]", "spark://a:7077", "yarn"):
        assert SparkConfig(master=good).master == good
    for bad in ("", "bogus", "local[", "localhost:7077", "spark://"):
        with pytest.raises(ValueError, match=r"expected local\[N\]"):
            SparkConfig(master=bad)


def test_an_application_has_its_settings_over_the_common_ones():
    config = SparkConfig(
        master="spark://a:7077",
        settings={"spark.cores.max": "4", "spark.x": "y"},
        applications={
            "big": ApplicationConfig(master="spark://b:7077", settings={"spark.cores.max": "16"}),
            "fat": ApplicationConfig(driver_memory="4g"),
        },
    )
    big, fat, other = (config.of(name) for name in ("big", "fat", ""))
    assert (big.master, big.driver_memory, big.settings) == (
        "spark://b:7077",
        "1g",
        {"spark.cores.max": "16", "spark.x": "y"},
    )
    assert (fat.master, fat.driver_memory) == ("spark://a:7077", "4g")
    assert (other.master, other.settings) == (config.master, config.settings)
    assert {config.of(name, "local[2]").master for name in ("big", "fat", "")} == {"local[2]"}
    with pytest.raises(ValueError, match=r"spark\.speculation = 'true' would break"):
        ApplicationConfig(settings={"spark.speculation": "true"})
    with pytest.raises(ValueError, match=r"expected local\[N\]"):
        ApplicationConfig(master="bogus")


def test_workers_of_a_cluster_are_the_python_that_is_named_for_them():
    """That of the driver's machine was taken, which an image does not have there."""
    cluster, named = SparkConfig(master="k8s://https://a"), {"spark.pyspark.python": "/opt/venv/bin/python"}
    there = SparkConfig(master="k8s://https://a", settings=named)
    assert workers_python(there, {"PYSPARK_PYTHON": "/usr/bin/python3"}) == "/opt/venv/bin/python"
    assert workers_python(cluster, {"PYSPARK_PYTHON": "/usr/bin/python3"}) == "/usr/bin/python3"
    assert workers_python(cluster, {}) == sys.executable
    assert workers_python(SparkConfig(settings=named), {"PYSPARK_PYTHON": "/usr/bin/python3"}) == sys.executable


@pytest.mark.spark
def test_a_setting_of_a_job_that_spark_refuses_is_named(spark):
    for name, value in {"spark.sql.shuffle.partitions": "many", "spark.sql.warehouse.dir": "/elsewhere"}.items():
        with pytest.raises(BadSparkSetting, match=rf"^\[jobs\.hourly\] spark: {name}: \S"):
            job_session(spark, "hourly", JobConfig(spark={name: value}))


def test_a_java_that_does_not_start_is_told_in_one_line(tmp_path):
    """In a process of its own: a JVM that runs already would be taken. It was a stack, and tried again for ever."""
    code = (
        "from pathlib import Path; from mainstem.process.session import SparkConfig, start_session; "
        f"start_session('x', SparkConfig(driver_memory='lots'), directory=Path({str(tmp_path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    told = done.stderr.splitlines()[-1]
    assert told.startswith("mainstem.process.session.SparkNotStarted: Spark did not start: [JAVA_GATEWAY_EXITED]"), told


def test_a_users_setting_wins_over_a_default(tmp_path):
    found = session_settings(SparkConfig(settings={"spark.scheduler.mode": "FIFO", "spark.x": "y"}), tmp_path, [])
    assert (found["spark.scheduler.mode"], found["spark.x"]) == ("FIFO", "y")
    assert found.items() >= RULES.items()


def test_what_a_value_claims_to_be_is_limited_whatever_the_project_sets(tmp_path):
    limit = "-Dorg.apache.avro.limits.bytes.maxLength=67108864"
    for master in ("local[4]", "spark://host:7077"):
        for own in ({}, {f"spark.{which}.extraJavaOptions": "-Dx=y" for which in ("driver", "executor")}):
            found = session_settings(SparkConfig(master=master, settings=own), tmp_path, [])
            for which in ("driver", "executor"):
                options = found[f"spark.{which}.extraJavaOptions"].split()
                assert limit in options
                assert ("-Dx=y" in options) == bool(own)


def test_workers_import_what_they_are_shown_first_and_never_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, path in ({}, f"{tmp_path}/imports"), ({"PYTHONPATH": "/more"}, f"{tmp_path}/imports:/more"):
        settings = {f"spark.executorEnv.{name}": value for name, value in given.items()}
        found = session_settings(SparkConfig(settings=settings), Path(), [])
        assert found["spark.executorEnv.PYTHONPATH"] == path
        assert found["spark.executorEnv.PYTHONSAFEPATH"] == "1"


def test_a_session_started_by_somebody_else_is_checked():
    check_rules(RULES.get)
    with pytest.raises(BadSparkSetting, match=r"expected spark\.task\.maxFailures = 1, found 4"):
        check_rules((RULES | {"spark.task.maxFailures": "4"}).get)


def test_local_masters_are_told_from_clusters():
    assert [is_local(m) for m in ("local", "local[2]", "local-cluster[1,1,512]", "spark://a:7077")] == [
        True,
        True,
        False,
        False,
    ]


def test_tasks_find_the_driver_where_the_settings_say():
    def place(master, **settings):
        conf = SparkConf(loadDefaults=False).setMaster(master)
        for name, value in settings.items():
            conf.set(f"spark.{name.replace('_', '.')}", value)
        return driver_place(SimpleNamespace(sparkContext=SimpleNamespace(master=master, getConf=lambda: conf)))

    assert place("local[2]", driver_host="ignored") == ("127.0.0.1", "127.0.0.1", 0)
    assert place("spark://a:7077", driver_host="b") == ("b", "b", 0)
    behind = {"driver_host": "shop.svc", "driver_bindAddress": "0.0.0.0", "mainstem_claims_port": "40000"}
    assert place("k8s://https://a", **behind) == ("shop.svc", "0.0.0.0", 40_000)


def test_a_master_says_how_many_tasks_run_at_a_time():
    masters = ["local", "local[3]", "local[ 5, 2]", "local[*]", "spark://host:7077", "yarn"]
    assert [tasks_at_once(master) for master in masters] == [1, 3, 5, os.cpu_count(), None, None]


def test_what_a_killed_jvm_left_is_deleted_by_the_next_start(tmp_path, monkeypatch):
    left = scratch_directory(tmp_path) / "blockmgr-1" / "0c" / "shuffle_0_0_0.data"
    left.parent.mkdir(parents=True)
    left.touch()

    def start(*_):
        raise KeyboardInterrupt  # no JVM is needed for this

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")  # what it sets is undone
    with pytest.raises(KeyboardInterrupt):
        start_session("test", SparkConfig(), directory=tmp_path)
    assert [path.name for path in scratch_directory(tmp_path).iterdir()] == []


@pytest.mark.spark
def test_a_jvm_unpacks_what_it_needs_among_its_scratch_files(spark):
    """Each one that was killed left three directories in /tmp."""
    assert Path(spark._jvm.java.lang.System.getProperty("java.io.tmpdir")).name == "scratch"


@pytest.mark.spark
def test_each_job_has_settings_of_its_own(spark):
    one = job_session(spark, "one", JobConfig(state_partitions=2, spark={"spark.sql.ansi.enabled": "false"}))
    two = job_session(spark, "two", JobConfig())
    assert (one.conf.get("spark.sql.shuffle.partitions"), two.conf.get("spark.sql.shuffle.partitions")) == ("2", "4")
    assert (one.conf.get("spark.sql.ansi.enabled"), two.conf.get("spark.sql.ansi.enabled")) == ("false", "true")
    assert one.conf.get("spark.sql.session.timeZone") == "UTC"
    with pytest.raises(BadSparkSetting, match=r"\[jobs.three\] spark: spark.sql.session.timeZone"):
        job_session(spark, "three", JobConfig(spark={"spark.sql.session.timeZone": "Europe/Berlin"}))


@pytest.mark.spark
def test_a_batch_that_is_run_again_replaces_what_its_first_try_left_of_the_state(spark, tmp_path):
    """Spark's other way to write checkpoints leaves the file that is there, and says nothing.
    Of a batch that failed and came back with more rows, only the first ones were in the state.
    """
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as F

    session = job_session(spark, "again", JobConfig(state_partitions=1))
    rows, checkpoint, found, fails = tmp_path / "rows", tmp_path / "checkpoint", {}, []
    rows.mkdir()

    def batch(frame, _):
        found.update({row["key"]: row["total"] for row in frame.collect()})
        if fails:
            raise RuntimeError(fails.pop())

    def run(value):
        (tmp_path / "row.json").write_text(f'{{"key": "a", "value": {value}}}')
        (tmp_path / "row.json").rename(rows / f"{value}.json")
        stream = session.readStream.name("rows").schema("key string, value long").json(str(rows))
        totals = stream.groupBy("key").agg(F.sum("value").alias("total"))
        writer = totals.writeStream.outputMode("update").foreachBatch(batch).trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()

    run(1)
    fails.append("after its state is written")
    with pytest.raises(StreamingQueryException):
        run(10)
    for log in ("offsets", "sources/rows"):  # the plan is lost, and comes back larger
        for name in ("1", ".1.crc"):
            (checkpoint / log / name).unlink()
    run(100)
    run(1000)
    assert found == {"a": 1111}


@pytest.mark.spark
def test_a_job_of_many_tasks_holds_up_no_other_pool(spark):
    """Each job has a pool of its own. First come, first served, the other one would wait until all tasks had begun."""
    context = spark.sparkContext
    places = context.defaultParallelism

    def run(pool, tasks, seconds):
        context.setLocalProperty("spark.scheduler.pool", pool)
        context.parallelize(range(tasks), tasks).foreach(lambda _: time.sleep(seconds))

    with ThreadPoolExecutor(2) as threads:
        long = threads.submit(run, "long", 12 * places, 0.25)
        tracker = context.statusTracker()
        while not tracker.getActiveStageIds():
            time.sleep(0.01)
        (stage,) = tracker.getActiveStageIds()
        threads.submit(run, "short", 1, 0).result()
        assert tracker.getStageInfo(stage).numCompletedTasks < 6 * places, "of twelve for each place"
        long.result()


def test_the_page_of_settings_has_each_with_its_value():
    page = (ROOT / "docs" / "decisions" / "spark-settings.md").read_text()
    rows = dict(re.findall(r"^\| `([a-zA-Z._]+)` \|[^|]*\| `?([^|`]+?)`? \|", page, re.MULTILINE))
    assert rows == RULES | JOB_RULES | _DEFAULTS
