"""What a job whose rows are written as they come cannot have is refused before it runs, with its line."""

from textwrap import dedent

import pytest

from mainstem.core import UserError
from mainstem.process.declare import BadDeclaration
from mainstem.process.plan import plan
from mainstem.process.project import load_project
from mainstem.process.realtime_rules import guarantee_of, without_realtime
from tests.support.shop import ORDERS

HEAD = """\
from mainstem.process import changelog, stream, topic
from pyspark.sql import functions as F
orders = topic("orders", schema="orders.avsc", event_time="at")
others = topic("others", schema="orders.avsc")
names = changelog("names", key="id", schema="orders.avsc")

@stream(to="fast", key="customer", latency="realtime")
"""


def planned(spark, directory, function, settings="", room=None):
    directory.mkdir(exist_ok=True)
    (directory / "orders.avsc").write_text(ORDERS)
    (directory / "mainstem.toml").write_text("[topics.orders]\npartitions = 3\n" + settings)
    (directory / "jobs.py").write_text(HEAD + dedent(function))
    return plan(load_project(directory), spark, topics={}, room=room)


@pytest.mark.spark
@pytest.mark.parametrize(
    "function",
    [
        'def fast(orders):\n    return orders.filter("cents > 0").withColumn("x", F.explode(F.array("id", "cents")))',
        'def fast(orders, others):\n    return orders.select("customer", "cents").union(others.select("customer", "id"))',
        'def fast(orders):\n    return "WITH paid AS (SELECT * FROM orders WHERE cents > 0) SELECT customer FROM paid"',
        'def fast(orders):\n    return orders.unpivot("customer", ["id", "cents"], "k", "v")',
    ],
    ids=["explode", "union", "sql", "unpivot"],
)
def test_what_it_may_have_is_planned_with_what_is_promised_of_it(spark, tmp_path, function):
    (job,) = planned(spark, tmp_path, function, '[jobs.fast]\nrealtime_batch = "1 minute"\n').jobs
    assert job.guarantee == "at least once: after a crash or a stop the rows of up to 1 minute come again"
    assert (job.keeps_order, job.slices, job.determinism) == (True, False, "prefix-deterministic")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("function", "found"),
    [
        (
            'def fast(orders, names):\n    return orders.join(names.select("id"), "id")',
            "the table names, which is pinned",
        ),
        (
            "def fast(orders):\n    return orders.withColumn('x', F.udf(lambda n: n, 'long')('id'))",
            "a function of Python",
        ),
        (
            "def fast(orders):\n    return orders.mapInArrow(lambda rows: rows, 'customer string')",
            "a function of Python",
        ),
        ('def fast(orders):\n    return orders.withColumn("_rejected", F.lit("no"))', "the column _rejected"),
        (
            'def fast(orders):\n    return orders.select("customer").union(orders.select("customer"))',
            "a stream that is used twice",
        ),
        (
            'def fast(orders):\n    return "WITH o AS (SELECT * FROM orders) SELECT * FROM o UNION ALL SELECT * FROM o"',
            "a stream that is used twice",
        ),
        ("def fast(orders):\n    return orders.repartition(2)", "repartition or coalesce"),
        ('def fast(orders):\n    return orders.repartition(2, "id")', "repartition"),
        ("def fast(orders):\n    return orders.coalesce(1)", "repartition or coalesce"),
        ("def fast(orders):\n    return orders.sample(0.5, seed=1)", "Sample"),
        ('def fast(orders):\n    return "SELECT * FROM orders WHERE id IN (SELECT 1)"', "a subquery"),
        (
            'def fast(orders):\n    few = orders.sparkSession.range(3)\n    return orders.join(F.broadcast(few), "id")',
            "a join",
        ),
    ],
)
def test_what_it_cannot_have_is_refused_with_its_line(spark, tmp_path, function, found):
    with pytest.raises(BadDeclaration) as refused:
        planned(spark, tmp_path, function)
    told = str(refused.value)
    assert told.startswith(
        f'{tmp_path / "jobs.py"}:7: fast: latency="realtime": expected projections, filters and unions'
    )
    assert f"found {found}" in told
    assert refused.value.hint


@pytest.mark.spark
def test_what_keeps_state_is_refused(spark, tmp_path):
    with pytest.raises(BadDeclaration, match="keeps state"):
        planned(spark, tmp_path, 'def fast(orders):\n    return orders.dropDuplicates(["id"])')


@pytest.mark.spark
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ('every = "on demand"', "expected no every, found 'on demand'"),
        ("max_offsets_per_trigger = 5", "expected no max_offsets_per_trigger, found 5"),
        ("checkpoint_in_log = true", "expected no checkpoint_in_log, found True"),
        ("batch_timeout_seconds = 60", "expected no batch_timeout_seconds, found 60"),
        ('realtime_batch = "4 seconds"', "expected a realtime_batch of 5 seconds or more, found '4 seconds'"),
    ],
)
def test_settings_that_mean_nothing_to_it_are_refused(spark, tmp_path, settings, told):
    with pytest.raises(BadDeclaration) as refused:
        planned(spark, tmp_path, "def fast(orders):\n    return orders", f"[jobs.fast]\n{settings}\n")
    assert str(refused.value) == f'{tmp_path / "jobs.py"}:7: fast: latency="realtime": [jobs.fast]: {told}'
    assert refused.value.hint


@pytest.mark.spark
def test_plan_says_that_spark_has_too_little_room(spark, tmp_path):
    function = "def fast(orders, others):\n    return orders.unionByName(others)"
    assert not [each for each in planned(spark, tmp_path, function, room=5).changes if "REFUSED" in each]
    (line,) = [each for each in planned(spark, tmp_path, function, room=4).changes if "REFUSED" in each]
    assert "(fast 4)" in line
    assert 'set master = "local[5]"' in line


@pytest.mark.spark
def test_other_jobs_promise_what_they_did(spark, tmp_path):
    plain = 'def fast(orders):\n    return orders\n\n@stream(to="slow")\ndef slow(orders):\n    return orders'
    project_plan = planned(spark, tmp_path, plain)
    assert [job.guarantee.partition(":")[0] for job in project_plan.jobs] == ["at least once", "exactly once"]
    project = load_project(tmp_path)
    assert guarantee_of(project.jobs["slow"], project.job_config("slow")) == "exactly once"


def test_what_needs_other_versions_names_the_one_that_is_none():
    without_realtime([("a@1", False)], "expected something")
    with pytest.raises(UserError, match=r'^job b@2: latency="realtime": expected something$'):
        without_realtime([("a@1", False), ("b@2", True)], "expected something")
