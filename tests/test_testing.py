import pytest

from mainstem.core import UserError
from mainstem.testing import UnknownColumns, jobs_of
from tests.support.tested_jobs import COLUMNS, write_jobs

pytestmark = pytest.mark.spark


def test_columns_that_are_said_nowhere_are_asked_for(spark, tmp_path):
    jobs = jobs_of(write_jobs(tmp_path), spark, columns={"orders": COLUMNS["orders"]})
    with pytest.raises(UnknownColumns, match="topic customers: expected a schema") as refused:
        jobs.start("by_region")
    assert 'columns={"customers": "id long, name string"}' in refused.value.hint


def test_a_job_that_is_not_there_is_refused(spark, tmp_path):
    jobs = jobs_of(write_jobs(tmp_path), spark, columns=COLUMNS)
    with pytest.raises(UserError, match="job payed: expected one of paid, "):
        jobs.start("payed")
