"""Edits are told apart by what their plans mean, not by their text."""

from textwrap import dedent

import pytest

from mainstem.process.analysis import analyse
from mainstem.process.project import load_project
from mainstem.process.upgrade import MEANING, Shape, Upgrade, upgrade

HEAD = """\
from mainstem.process import stream, table, topic
from pyspark.sql import functions as F
orders = topic("orders")
returns = topic("returns")
"""
BEFORE = """
    @table(to="sums", key=["customer", "hour"], watermark=("at", "1 hour"))
    def job(orders):
        sums = orders.where("cents > 0").groupBy("customer", F.window("at", "1 hour")).agg(F.sum("cents").alias("cents"))
        return sums.select("customer", F.col("window.start").alias("hour"), "cents")
"""
AGGREGATION = BEFORE.splitlines()[3].strip()


def shape(spark, directory, jobs, types="customer string, cents long, at timestamp"):
    from pyspark.sql.types import StructType

    directory.mkdir(exist_ok=True)
    (directory / "mainstem.toml").touch()
    (directory / "jobs.py").write_text(HEAD + dedent(jobs))
    project = load_project(directory)
    inputs = project.inputs["job"]
    rows = {each.parameter: StructType.fromDDL(types) for each in inputs}
    times = {each.parameter: None for each in inputs}
    return analyse(spark, project.jobs["job"], inputs, rows, times, directory).shape


@pytest.mark.spark
@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("def job(orders):\n", "def job(orders):  # a comment\n        sums = None\n", Upgrade.TRANSPARENT),
        ('orders.where("cents > 0")', "orders.filter(F.col('cents') > 0)", Upgrade.TRANSPARENT),
        ("cents > 0", "cents > 100", Upgrade.SELECTION),
        ("F.sum", "F.max", Upgrade.COMPUTATION),
        ("1 hour\")).agg", "2 hours\")).agg", Upgrade.COMPUTATION),
        ('"hour"), "cents")', '"hour"), F.col("cents").cast("double").alias("cents"))', Upgrade.SCHEMA),
        ('"hour"), "cents")', '"hour"), "cents", F.lit(1).alias("n"))', Upgrade.SCHEMA),
        ('to="sums"', 'to="totals"', Upgrade.SCHEMA),
        ("def job(orders):", "def job(returns):\n        orders = returns", Upgrade.SOURCE),
        (AGGREGATION, 'sums = orders.dropDuplicates(["customer", "at"]).withColumn("window", F.struct(F.col("at").alias("start")))',
         Upgrade.TOPOLOGY),
        ('sums = orders.where("cents > 0").groupBy("customer", F.window("at", "1 hour")).agg(F.sum("cents").alias("cents"))\n',
         'return orders.selectExpr("customer", "at as hour", "cents")\n', Upgrade.TOPOLOGY),
    ],
)  # fmt: skip
def test_an_edit_is_of_a_kind(spark, tmp_path, old, new, kind):
    assert BEFORE.count(old) == 1
    edited = BEFORE.replace(old, new)
    assert upgrade(shape(spark, tmp_path / "a", BEFORE), shape(spark, tmp_path / "b", edited)) is kind


@pytest.mark.spark
def test_of_python_functions_their_code_is_all_that_is_known(spark, tmp_path):
    job = """
        from pyspark.sql.types import LongType

        @F.udf(LongType())
        def cost(cents):
            return cents * 2

        @stream(to="costs")
        def job(orders):
            return orders.select(cost("cents").alias("cost"))
    """
    before, same = shape(spark, tmp_path / "a", job), shape(spark, tmp_path / "b", job)
    assert upgrade(before, same) is Upgrade.TRANSPARENT
    assert upgrade(before, shape(spark, tmp_path / "c", job.replace("* 2", "* 3"))) is Upgrade.COMPUTATION


@pytest.mark.spark
def test_an_input_with_other_columns_is_another_input(spark, tmp_path):
    wider = "customer string, cents long, at timestamp, note string"
    before, after = shape(spark, tmp_path / "a", BEFORE), shape(spark, tmp_path / "a", BEFORE, wider)
    assert upgrade(before, after) is Upgrade.SOURCE


def test_every_kind_has_its_meaning():
    assert MEANING.keys() == set(Upgrade)
    assert upgrade(Shape({}, {}, [], [], ""), Shape({}, {}, [], [], "")) is Upgrade.TRANSPARENT
