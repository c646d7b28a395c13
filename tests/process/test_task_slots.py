"""Places for tasks: what jobs may hold of them. With a job that hangs: test_batch_job."""

from textwrap import dedent

import pytest

from mainstem.process.project import load_project
from mainstem.process.project_config import JobConfig
from mainstem.process.task_slots import (
    TooFewTasks,
    check_tasks,
    crowding,
    most_tasks,
    room_of,
    tasks_of,
    without_room,
)

JOBS = """
    from mainstem.process import stream, table, topic
    from pyspark.sql import functions as F
    orders, clicks = topic("orders", event_time="at"), topic("clicks")

    @stream(to="copied")
    def copied(orders, clicks):
        return orders

    @table(to="sums", key="hour", watermark=("at", "1 minute"))
    def sums(orders):
        return orders.groupBy(F.window("at", "1 hour").alias("hour")).count()

    @stream(to="fast", latency="realtime")
    def fast(clicks):
        return clicks
"""
PARTITIONS = {"orders": 3, "clicks": 2}


@pytest.fixture
def project(tmp_path):
    """As `JOBS`, with settings of its jobs."""

    def write(settings=""):
        (tmp_path / "jobs.py").write_text(dedent(JOBS))
        (tmp_path / "mainstem.toml").write_text(settings)
        return load_project(tmp_path)

    return write


def test_a_job_has_a_third_of_the_places_that_it_shares_or_what_its_settings_say():
    assert [most_tasks(JobConfig(), room) for room in (None, 8, 3, 1)] == [None, 2, 1, 1]
    assert [most_tasks(JobConfig(tasks=6), room) for room in (None, 8, 3, 1)] == [6, 6, 6, 6]


def test_room_is_asked_for_all_jobs_together_and_one_more():
    check_tasks("b@1", {"a@1": 2, "b@1": 1}, 4)
    with pytest.raises(
        TooFewTasks, match=r"\(a@1 2, b@1 1\) .* expected room for 4 tasks at a time, found 3"
    ) as refused:
        check_tasks("b@1", {"a@1": 2, "b@1": 1}, 3)
    assert 'master = "local[4]"' in refused.value.hint


def test_each_partition_of_a_stream_has_a_task_where_nothing_bounds_them(project):
    assert tasks_of(PARTITIONS, project().inputs["copied"]) == 5


def test_jobs_whose_rows_are_written_as_they_come_have_to_have_room_all_at_once(project):
    found = project()
    assert without_room(found, PARTITIONS, 3) == []
    (line,) = without_room(found, PARTITIONS, 2)
    assert line.startswith("REFUSED: job fast: ")


def test_a_job_that_may_have_all_places_is_named(project):
    """One with eight partitions and a function that hung held all others up for an hour, with eight places."""
    many = PARTITIONS | {"orders": 8}
    assert crowding(project(), many, 8) == []
    assert [each.split(",")[0] for each in crowding(project(), many, 4)] == [
        "job sums keeps its state with 4 tasks",
    ]
    (line,) = crowding(project("[jobs.copied]\ntasks = 9\n"), many, 8)
    assert line == (
        "job copied reads with 9 tasks, and Spark has room for 8 at a time: while a batch of it takes long, 2 others "
        'wait; set master = "local[18]" under [spark], or give it an `application` of its own'
    )
    own = project('[jobs.copied]\ntasks = 9\napplication = "own"\n[spark.applications.own]\n')
    assert crowding(own, many, 8) == []


@pytest.mark.spark
def test_a_running_spark_says_how_much_room_it_has(spark):
    assert room_of(spark) == spark.sparkContext.defaultParallelism
