"""What conformance/tools does besides asking Kafka's tools. `make conformance SUITE=tools` runs them."""

from contextlib import nullcontext

import pytest

from conformance.frame import Result, read_expected, run_each
from conformance.run import SUITES
from conformance.tools.kit import found, rows
from conformance.tools.suite import TESTS


def test_the_list_names_every_test():
    expected = read_expected(SUITES["tools"].expected)
    names = [test.__name__ for test in TESTS]
    assert sorted([*expected.passed, *(name for each in expected.otherwise for name in each.tests)]) == sorted(names)


def breaks(_: str) -> None:
    raise ValueError("found 2")


def does_not_hold(_: str) -> None:
    raise AssertionError("found 3")


def holds(_: str) -> None:
    pass


@pytest.mark.parametrize("only", [None, "breaks,does_not_hold,holds"])
def test_a_test_that_fails_in_any_way_has_failed_and_the_next_one_is_run(only):
    ran = [
        Result(each.name, each.outcome, 0.0, each.why)
        for each in run_each((breaks, does_not_hold, holds), nullcontext, only)
    ]
    assert ran == [
        Result("breaks", "failed", 0.0, "ValueError: found 2"),
        Result("does_not_hold", "failed", 0.0, "found 3"),
        Result("holds", "passed"),
    ]
    assert [each.name for each in run_each((breaks, holds), nullcontext, "holds")] == ["holds"]


def test_a_table_is_read_in_columns():
    assert rows("\nGROUP  TOPIC\ng      t\n\n") == [["GROUP", "TOPIC"], ["g", "t"]]
    assert found(r"^g +(\w)", "GROUP TOPIC\ng     t")[1] == "t"
    with pytest.raises(AssertionError, match=r"expected '\^x' in: GROUP"):
        found("^x", "GROUP")
