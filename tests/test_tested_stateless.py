"""Rows in, rows out, as on a log."""

import pytest

from mainstem.core import UserError
from mainstem.process.declare import BadDeclaration
from tests.support.tested_jobs import jobs, order

pytestmark = pytest.mark.spark
__all__ = ["jobs"]  # a fixture


def test_a_job_without_state_gives_its_results_and_what_it_rejects(jobs):
    job = jobs.start("paid")
    out = job.feed(orders=[order(1, "ann", 0), order(2, "bob", 0, -5) | {"_record": {"key": b"k"}}, order(3, None, 0)])
    assert [(row["id"], row["customer"], row["cents"]) for row in out] == [(1, "ann", 100)]
    assert job.also["refunds"] == [{"id": 2, "key": b"k"}]
    assert [(row["id"], row["_rejected"]) for row in job.rejected] == [(3, "no customer")]


def test_tables_are_as_they_are_when_the_rows_come(jobs):
    job = jobs.start("by_region")
    paid = order(1, "ann", 0)
    assert job.feed(paid=[paid]) == [{"id": 1, "region": None}]
    assert job.feed(customers=[{"customer": "ann", "region": "north"}]) == []
    assert job.feed(paid=[paid], customers=[{"customer": "ann", "region": "south"}]) == [{"id": 1, "region": "south"}]
    assert job.feed(customers=[{"customer": "ann", "_deleted": True}], paid=[paid]) == [{"id": 1, "region": None}]


def test_what_fails_in_spark_is_told(jobs):
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        jobs.start("halves").feed(orders=[order(1, "ann", 0)])
    assert issubclass(BadDeclaration, UserError)
