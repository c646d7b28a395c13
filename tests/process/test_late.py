"""Which rows are late is what Spark's own operators say, row by row."""

from datetime import UTC, datetime, timedelta
from textwrap import dedent

import pytest

from mainstem.process.analysis import analyse
from mainstem.process.late import Windows, is_late
from mainstem.process.project import load_project

pytestmark = pytest.mark.spark

HOUR = 3_600_000_000
START = datetime(2024, 5, 1, tzinfo=UTC)


def windows(spark, directory, grouping, emit="final"):
    from pyspark.sql.types import StructType

    (directory / "mainstem.toml").touch()
    (directory / "jobs.py").write_text(
        dedent(f"""
        from mainstem.process import table, topic
        from pyspark.sql import functions as F
        events = topic("events")

        @table(to="totals", key="n", watermark=("at", "10 minutes"), emit="{emit}")
        def job(events):
            renamed = events.where("n > 3").withColumn("m", F.col("n") + 1)
            return renamed.groupBy("n", {grouping}).agg(F.count("*").alias("c")).select("n", "c")
    """)
    )
    project = load_project(directory)
    types = {"events": StructType.fromDDL("n long, at timestamp")}
    return analyse(spark, project.jobs["job"], project.inputs["job"], types, {"events": None}, directory).windows


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        ('F.window("at", "1 hour")', Windows(HOUR, HOUR, 0)),
        ('F.window("at", "1 hour", "20 minutes")', Windows(HOUR, HOUR // 3, -HOUR // 3 * 0)),
        ('F.window("at", "1 hour", "1 hour", "15 minutes")', Windows(HOUR, HOUR, -HOUR * 3 // 4)),
        ('F.window("at", "7 days").alias("w")', Windows(7 * 24 * HOUR, 7 * 24 * HOUR, 0)),
        ('F.session_window("at", "30 minutes")', Windows(HOUR // 2, 1, 0)),
    ],
)
def test_windows_are_found_in_the_plan(spark, tmp_path, grouping, expected):
    assert windows(spark, tmp_path, grouping) == expected


def test_other_groups_have_none(spark, tmp_path):
    assert windows(spark, tmp_path, '"at"') is None
    assert windows(spark, tmp_path, '"m"', emit="changes") is None
    gap = 'F.session_window("at", F.when(F.col("n") > 5, "5 minutes").otherwise("1 hour"))'
    assert windows(spark, tmp_path, gap) is None  # it depends on the row


GROUPINGS = [
    ("window(at, '1 hour')", Windows(HOUR, HOUR, 0)),
    ("window(at, '1 hour', '20 minutes')", Windows(HOUR, HOUR // 3, 0)),
    ("window(at, '1 hour', '1 hour', '15 minutes')", Windows(HOUR, HOUR, -HOUR * 3 // 4)),
    ("session_window(at, '30 minutes')", Windows(HOUR // 2, 1, 0)),
    ("at", None),
]


@pytest.mark.parametrize(("grouping", "found"), GROUPINGS)
def test_what_is_late_is_what_sparks_operators_leave_out(spark, tmp_path, grouping, found):
    """Rows behind a watermark, one at a time and to the millisecond around each border: of those that are late nothing
    comes out, of the others everything does.
    """
    from pyspark.sql import functions as F

    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    rows, out = tmp_path / "rows", []
    rows.mkdir()
    stream = session.readStream.schema("n long, at timestamp").format("json").load(str(rows))
    counted = stream.withWatermark("at", "0 seconds").groupBy("n", F.expr(grouping)).count().select("n")
    query = (
        counted.writeStream.foreachBatch(lambda df, _: out.extend(row["n"] for row in df.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint")).outputMode("append").start()
    )  # fmt: skip
    watermark = START + timedelta(hours=2, minutes=10)
    edges = [START + timedelta(minutes=each) for each in (30, 45, 60, 75, 80, 90, 100, 115, 119, 120, 125, 130)]
    edges += [each + timedelta(milliseconds=shift) for each in edges for shift in (-1, 1)]
    try:
        put(rows, 0, [(-1, watermark)])
        query.processAllAvailable()
        put(rows, 1, list(enumerate(edges)))
        query.processAllAvailable()
        put(rows, 2, [(-2, START + timedelta(days=30))])
        query.processAllAvailable()
    finally:
        query.stop()
    frame = session.createDataFrame(list(enumerate(edges)), "n long, at timestamp")
    limit = int(watermark.timestamp() * 1000)
    late = {row["n"] for row in frame.filter(is_late(F.col("at"), found, limit)).collect()}
    assert {n for n in out if n >= 0} == set(range(len(edges))) - late
    assert 0 < len(late) < len(edges)


def put(directory, number, rows):
    lines = [f'{{"n": {n}, "at": "{at.isoformat(timespec="milliseconds")}"}}' for n, at in rows]
    (directory / f".{number}").write_text("\n".join(lines))
    (directory / f".{number}").rename(directory / f"{number}.json")
