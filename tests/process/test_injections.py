"""Rows that move a job's watermark: they do, none of them comes out, and they do not pile up."""

import os
import time
from pathlib import Path

import pytest

from mainstem.process import injections
from mainstem.process.injections import Injections, with_heartbeats


@pytest.mark.spark
@pytest.mark.parametrize("job_filter", ["tail is not null", "tail like 'N%' and seats > 2"])
def test_a_filter_of_the_job_does_not_take_the_heartbeats_away(spark, tmp_path, job_filter):
    """The optimizer pushes a filter on any other column below the watermark, into the source's scan. Heartbeats have
    nulls there, so none was left to move the watermark, and the last sessions never came out.
    """
    from pyspark.sql import functions as F

    rows, beats, out = tmp_path / "rows", tmp_path / "beats", []
    rows.mkdir()
    beats.mkdir()
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    schema = "tail string, seats int, at timestamp"
    stream = session.readStream.schema(schema).format("json").load(str(rows))
    beat = session.readStream.format("text").load(str(beats))
    beat = beat.select(F.timestamp_millis(F.col("value").cast("long")).alias("at"), F.lit(True).alias("_heartbeat"))
    guarded = with_heartbeats(stream, beat, "at", "10 minutes", "flights")
    sessions = guarded.filter(job_filter).groupBy("tail", F.session_window("at", "30 minutes")).count()
    query = (
        sessions.writeStream.foreachBatch(lambda df, _: out.extend(df.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint")).outputMode("append").start()
    )  # fmt: skip
    try:
        lines = ['{"tail":"N1","seats":9,"at":"2013-01-01T12:00:00Z"}', '{"seats":9,"at":"2013-01-01T12:00:00Z"}',
                 '{"tail":"N1","seats":9}']  # fmt: skip
        put(rows, "1.json", "\n".join(lines))
        query.processAllAvailable()
        assert out == []
        put(beats, "1.txt", f"{1357041600000 + 41 * 60_000}\n")
        query.processAllAvailable()
    finally:
        query.stop()
    assert [(row["tail"], row["count"]) for row in out] == [("N1", 1)]


def test_injections_that_spark_has_read_are_deleted_but_for_the_last_ones(tmp_path, monkeypatch):
    """A file that is planned and gone would fail its batch for ever;
    one that nobody deletes is listed for every batch.
    """
    monkeypatch.setattr(injections, "_KEPT", 2)
    found = Injections(tmp_path)
    found.take_over()
    for second in range(6):
        file = found.directory / f"{second}.txt"
        file.write_text("1")
        os.utime(file, (second, second))
    found.forget(0.0)
    assert len(list(found.directory.iterdir())) == 6
    found.forget(4.0)
    assert sorted(file.name for file in found.directory.iterdir()) == ["2.txt", "3.txt", "4.txt", "5.txt"]


def test_injections_of_older_runs_count_and_what_they_left_beside_goes(tmp_path, monkeypatch):
    """The counter began anew with each run: of a job that is often started again, none was ever deleted."""
    monkeypatch.setattr(injections, "_KEPT", 4)
    directory = tmp_path / "heartbeats"
    directory.mkdir()
    for number in range(7):
        put(directory, f"{number}.txt", "1")
    for name in ("4.txt", "5.txt.new", "job.json"):
        (tmp_path / name).write_text("1")
    found = Injections(tmp_path)
    found.take_over()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heartbeats", "job.json"]
    found.put(5, lambda: time.time() + 1)  # the eighth
    assert len(list(directory.iterdir())) == 4


def put(directory: Path, name: str, text: str) -> None:
    (directory.parent / name).write_text(text)
    (directory.parent / name).rename(directory / name)
