"""What conformance/connect.py does besides running workers. `make conformance SUITE=connect` runs them."""

from conformance.connect import LOCK, TESTS
from conformance.frame import read_expected
from conformance.run import SUITES
from mainstem.process.jars import read_lock


def test_the_list_names_every_test():
    expected = read_expected(SUITES["connect"].expected)
    names = [test.__name__ for test in TESTS]
    assert sorted([*expected.passed, *(name for each in expected.otherwise for name in each.tests)]) == sorted(names)


def test_the_lock_has_a_worker_and_the_connectors_of_files():
    versions = {jar.name: jar.version for jar in read_lock(LOCK)}
    assert versions["connect-runtime"] == versions["connect-file"] == versions["kafka-clients"] == "4.3.0"
