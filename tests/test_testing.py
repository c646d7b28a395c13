import pytest

from mainstem.core import UserError
from mainstem.process import analysis
from mainstem.testing import UnknownColumns, jobs_of
from tests.support.tested_jobs import COLUMNS, order, write_jobs

pytestmark = pytest.mark.spark


def test_columns_that_are_said_nowhere_are_asked_for(spark, tmp_path):
    jobs = jobs_of(write_jobs(tmp_path), spark, columns={"orders": COLUMNS["orders"]})
    with pytest.raises(UnknownColumns, match="topic customers: expected a schema") as refused:
        jobs.start("by_region")
    assert 'columns={"customers": "id long, name string"}' in refused.value.hint


def test_a_job_is_analysed_once_for_each_code_and_what_is_said_of_its_inputs(spark, tmp_path, monkeypatch):
    analysed = []
    monkeypatch.setattr(
        analysis, "analyse", lambda *given, analyse=analysis.analyse: analysed.append(given) or analyse(*given)
    )
    project = write_jobs(tmp_path)
    with (project / "jobs.py").open("a") as jobs:
        jobs.write("# code that no other test of this session has\n")

    def result(columns):
        with jobs_of(project, spark, columns=columns).start("hourly") as job:
            job.feed(paid=[order(1, "ann", 0)])
            return job.finish()

    (row,) = result(COLUMNS)
    assert (result(COLUMNS), len(analysed)) == ([row], 2), "paid, which it reads, and itself"
    result(COLUMNS | {"orders": COLUMNS["orders"] + ", note string"})
    assert len(analysed) == 4
    (project / "jobs.py").write_text(
        (project / "jobs.py").read_text().replace('F.sum("cents")', 'F.sum(F.col("cents") + 1)')
    )
    (changed,) = result(COLUMNS)
    assert (changed["cents"], len(analysed)) == (row["cents"] + 1, 6)


def test_a_job_that_is_not_there_is_refused(spark, tmp_path):
    jobs = jobs_of(write_jobs(tmp_path), spark, columns=COLUMNS)
    with pytest.raises(UserError, match="job payed: expected one of paid, "):
        jobs.start("payed")
