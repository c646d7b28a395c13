import pytest

from mainstem.core import MainstemError, UserError
from mainstem.core.backoff import HEALTHY_AFTER_SECONDS, WORKS_AFTER_SECONDS
from mainstem.core.clock import ManualClock
from mainstem.process.retries import Retries


@pytest.fixture
def clock():
    return ManualClock()


def test_a_job_is_tried_again_after_its_pause_and_starts_over_once_it_has_run_for_a_while(clock):
    retries = Retries(clock)
    assert retries.is_due("a@1")
    failure = retries.fail("a@1", MainstemError("no\n  answer"))
    assert (failure.name, failure.state, failure.error, failure.failures) == ("job a@1", "waiting", "no answer", 1)
    assert not retries.is_due("a@1")
    assert retries.is_due("b@1")
    clock.advance_ms(int(failure.retry_seconds * 1000))
    assert retries.is_due("a@1")
    retries.start("a@1")
    retries.see("a@1")
    assert retries.failed["a@1"].state == "running"
    assert retries.failed["a@1"].seen_at(clock.now_ms()).state == "waiting"
    assert retries.fail("a@1", MainstemError("no answer")).failures == 2
    retries.start("a@1")
    clock.advance_ms(int(HEALTHY_AFTER_SECONDS * 1000))
    retries.see("a@1")
    assert retries.failed == {}
    assert retries.fail("a@1", MainstemError("again")).failures == 1


def test_a_first_start_is_no_failure(clock):
    retries = Retries(clock)
    retries.start("a@1")
    retries.see("a@1")
    assert retries.failed == {}


def test_what_only_a_person_can_mend_is_tried_again_less_often(clock):
    retries = Retries(clock)
    failures = [retries.fail("a@1", UserError("rolled back", hint="bring it back")) for _ in range(2000)]
    assert (failures[0].needs_a_person, failures[0].hint) == (True, "bring it back")
    assert [each.retry_seconds for each in failures[:6]] == [5, 10, 20, 40, 60, 60]
    assert failures[-1].retry_seconds == 60  # it was an OverflowError after a day
    retries.forget("a@1")
    assert retries.is_due("a@1")


def test_a_job_whose_first_batch_takes_long_does_not_work_again_before_that_is_done(clock):
    """It was told to work again, and failed in that batch once more a moment later."""
    retries = Retries(clock)
    for failures in (1, 2):
        assert retries.fail("a@1", MainstemError("no number")).failures == failures
        retries.start("a@1")
        for _ in range(200):
            clock.advance_ms(1000)
            retries.see("a@1", works=lambda: False)
            assert retries.failed["a@1"].seen_at(clock.now_ms()).state == "waiting"
    retries.see("a@1", works=lambda: True)
    for _ in range(int(WORKS_AFTER_SECONDS)):
        clock.advance_ms(1000)
        retries.see("a@1", works=lambda: False)  # what it does now is another batch
    assert retries.failed["a@1"].seen_at(clock.now_ms()).state == "running"
    clock.advance_ms(int(HEALTHY_AFTER_SECONDS * 1000))
    retries.see("a@1", works=lambda: False)
    assert retries.failed == {}
