import pytest

from mainstem.core.backoff import HEALTHY_AFTER_SECONDS, WORKS_AFTER_SECONDS
from mainstem.core.clock import ManualClock
from mainstem.core.task import Attempts, TaskState


@pytest.fixture
def clock():
    return ManualClock()


def test_pauses_grow_and_start_over_after_a_long_run(clock):
    attempts, pauses = Attempts("source fleet", clock), []
    for _ in range(8):
        pauses.append(attempts.fail("no answer").retry_seconds)
        assert not attempts.is_due
        clock.advance_ms(int(pauses[-1] * 1000))
        assert attempts.is_due
        attempts.start()
        assert not attempts.is_healthy
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert (attempts.state.failures, attempts.state.error) == (8, "no answer")
    clock.advance_ms(int(HEALTHY_AFTER_SECONDS * 1000))
    assert attempts.is_healthy
    again = attempts.fail("no answer")
    assert (again.failures, again.retry_seconds) == (1, 0.5)


def test_a_long_wait_is_no_long_run(clock):
    attempts = Attempts("job a@1", clock)
    attempts.fail("no answer")
    clock.advance_ms(int(HEALTHY_AFTER_SECONDS * 1000))
    assert attempts.fail("no answer").failures == 2


def test_what_a_person_has_to_mend_is_tried_again_less_often(clock):
    attempts = Attempts("source fleet", clock)
    pauses = [attempts.fail("wrong", "mend it", needs_a_person=True).retry_seconds for _ in range(5)]
    assert pauses == [5, 10, 20, 40, 60]
    assert (attempts.state.state, attempts.state.needs_a_person, attempts.state.hint) == ("failed", True, "mend it")


def test_what_has_only_just_been_started_again_is_seen_to_wait_until_it_has_run_for_a_while(clock):
    """One that failed a second after each start was told to work again, every time."""
    attempts = Attempts("source fleet", clock)
    attempts.fail("no answer")
    attempts.start()
    works_at = attempts.state.since_ms + int(WORKS_AFTER_SECONDS * 1000)
    assert attempts.state.state == "running"
    before, after = attempts.state.seen_at(works_at - 1), attempts.state.seen_at(works_at)
    assert (before.state, before.error, before.retry_seconds) == ("waiting", "no answer", 0)
    assert (after.state, after.failures, after.error) == ("running", 1, "")
    healthy = attempts.state.seen_at(attempts.state.since_ms + int(HEALTHY_AFTER_SECONDS * 1000))
    assert (healthy.state, healthy.failures) == ("running", 0)
    attempts.fail("wrong", needs_a_person=True)
    attempts.start()
    assert attempts.state.seen_at(attempts.state.since_ms).state == "failed"


def test_what_is_given_up_has_no_next_try(clock):
    attempts = Attempts("source fleet", clock)
    given_up = attempts.give_up("another process runs it", "stop that one")
    assert (given_up.state, given_up.retry_seconds, given_up.failures) == ("failed", 0, 1)
    assert given_up.told == "another process runs it (stop that one)"


def test_what_is_told_has_the_next_try():
    assert TaskState("a", "waiting", 1, "no answer", retry_seconds=2.0).told == "no answer; retry in 2 s"
    assert TaskState("a").told == ""


def test_a_stopped_one_keeps_its_last_error(clock):
    attempts = Attempts("source fleet", clock)
    attempts.fail("no answer")
    attempts.stop()
    assert (attempts.state.state, attempts.state.error, attempts.state.retry_seconds) == ("stopped", "no answer", 0)
