"""The plan of a batch is read from the file that Spark wrote."""

import pytest

from mainstem.core import CorruptData
from mainstem.process.offsets import NOTHING, BatchPlan, read_plan

REAL = """v1
{"batchWatermarkMs":1577843400000,"batchTimestampMs":1795245923064,"conf":{"spark.sql.shuffle.partitions":"4"}}
{"logOffset":3}
{"flights":{"0":5,"1":1}}"""


def plan(directory, text, batch=3):
    (directory / "offsets").mkdir()
    (directory / "offsets" / str(batch)).write_text(text)
    return read_plan(directory, batch)


def test_a_file_of_spark_4_2_is_read(tmp_path):
    assert plan(tmp_path, REAL) == BatchPlan(1577843400000, {"flights": {"flights": {0: 5, 1: 1}}}, 3, 4)


def test_a_source_without_offsets_has_none(tmp_path):
    assert plan(tmp_path, 'v1\n{}\n-\n{"t":{"0":7}}\n') == BatchPlan(0, {"t": {"t": {0: 7}}})


def test_before_the_first_batch_there_is_nothing(tmp_path):
    assert read_plan(tmp_path, -1) is NOTHING


@pytest.mark.parametrize(
    "text", ["", "v1", "v2\n{}\n{}", "v1\nnot json", "v1\n{}\nflights", 'v1\n{}\n{"a":{"x":1}}', "v1\n{}\n7"]
)
def test_anything_else_is_corrupt(tmp_path, text):
    with pytest.raises(CorruptData, match="offsets/3"):
        plan(tmp_path, text)


def test_a_missing_plan_is_told(tmp_path):
    with pytest.raises(CorruptData, match="expected the plan of a batch"):
        read_plan(tmp_path, 4)
