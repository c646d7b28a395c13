import pytest

from mainstem.core import MainstemError, UserError
from mainstem.core.clock import ManualClock
from mainstem.process.retries import HEALTHY_AFTER_SECONDS, WORKS_AFTER_SECONDS, Retries


@pytest.fixture
def clock():
    return ManualClock()


def test_a_job_is_tried_again_after_longer_and_longer_pauses_and_starts_over_once_it_has_run_for_a_while(clock):
    retries = Retries(clock)
    assert retries.is_due("a@1")
    pauses = []
    for _ in range(8):
        failure = retries.fail("a@1", MainstemError("no\n  answer"))
        assert not retries.is_due("a@1")
        assert retries.is_due("b@1")
        clock.advance_ms(int(failure.retry_seconds * 1000))
        assert retries.is_due("a@1")
        retries.start("a@1")
        retries.see("a@1")
        pauses.append(failure.retry_seconds)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (retries.failed["a@1"].error, retries.failed["a@1"].failures) == ("no answer", 8)
    clock.advance_ms(int(HEALTHY_AFTER_SECONDS * 1000))
    retries.see("a@1")
    assert retries.failed == {}
    assert retries.fail("a@1", MainstemError("again")).retry_seconds == 1


def test_a_job_works_again_when_it_has_run_for_longer_than_a_start_that_fails_takes(clock):
    """One that failed a second after each start was told to work again, every time."""
    retries = Retries(clock)
    assert retries.works("a@1")
    retries.fail("a@1", MainstemError("no answer"))
    assert not retries.works("a@1")
    retries.start("a@1")
    clock.advance_ms(5000)
    assert not retries.works("a@1")
    clock.advance_ms(int(WORKS_AFTER_SECONDS * 1000))
    assert retries.works("a@1")


def test_what_only_a_person_can_mend_is_tried_again_less_often(clock):
    retries = Retries(clock)
    failures = [retries.fail("a@1", UserError("rolled back", hint="bring it back")) for _ in range(2000)]
    assert (failures[0].needs_a_person, failures[0].hint) == (True, "bring it back")
    assert [each.retry_seconds for each in failures[:6]] == [5, 10, 20, 40, 60, 60]
    assert failures[-1].retry_seconds == 60  # it was an OverflowError after a day
    retries.forget("a@1")
    assert retries.is_due("a@1")
