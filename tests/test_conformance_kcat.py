"""What conformance/kcat.py does besides asking kcat. `make conformance` runs it."""

import io
import shutil

import pytest

from conformance import kcat
from conformance.frame import Result, Unavailable, read_expected
from conformance.kcat import Kcat
from conformance.run import SUITES

SAID = """\
% Waiting for group rebalance
% Group g rebalanced (memberid rdkafka-1): assigned: t [0], t [1], t [2], t [3]
% Group g rebalanced (memberid rdkafka-1): revoked: t [0], t [1], t [2], t [3]
% Group g rebalanced (memberid rdkafka-1): assigned: t [2], t [3]
"""


def test_a_member_has_what_it_was_assigned_last():
    assert kcat.assigned(io.StringIO(SAID)) == {"2", "3"}
    assert kcat.assigned(io.StringIO(SAID.splitlines()[0])) == set()


@pytest.fixture
def nothing_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(kcat, "home", lambda: tmp_path / "none")
    kcat.program.cache_clear()
    yield
    kcat.program.cache_clear()


@pytest.mark.usefixtures("nothing_fetched")
def test_without_apt_the_machines_own_is_taken(monkeypatch):
    monkeypatch.setattr(shutil, "which", {"kafkacat": "/opt/kafkacat"}.get)
    Kcat().prepare()
    assert str(kcat.program()[0]) == "/opt/kafkacat"


@pytest.mark.usefixtures("nothing_fetched")
def test_without_either_one_line_says_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(Unavailable, match="expected kcat on PATH, found none"):
        Kcat().prepare()


def test_a_test_that_does_not_hold_fails_and_the_next_one_is_run(tmp_path, monkeypatch):
    def breaks(_: kcat.Client) -> None:
        raise AssertionError("found 2")

    def holds(_: kcat.Client) -> None:
        pass

    monkeypatch.setattr(kcat, "TESTS", (breaks, holds))

    class Nowhere:
        bootstrap = "127.0.0.1:1"

    ran = [Result(each.name, each.outcome, 0.0, each.why) for each in Kcat().run(Nowhere(), tmp_path, None)]
    assert ran == [Result("breaks", "failed", 0.0, "found 2"), Result("holds", "passed")]
    assert [each.name for each in Kcat().run(Nowhere(), tmp_path, "holds")] == ["holds"]


def test_the_list_names_every_test():
    assert set(read_expected(SUITES["kcat"].expected).passed) == {test.__name__ for test in kcat.TESTS}
