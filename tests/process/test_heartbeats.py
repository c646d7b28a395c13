"""Idle and finished inputs: the rules, step by step and against a model of a watermark."""

from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.connection import Connection
from mainstem.client.heartbeats import Statement, encode
from mainstem.process.heartbeats import (
    Follower,
    Inject,
    Inputs,
    State,
    StatefulRules,
    StatelessRules,
    inputs_covered,
)

HOUR = 3_600_000


def test_a_statement_counts_once_all_that_it_speaks_of_is_processed():
    statement = Statement("flights", {0: 10, 1: 7}, 5000, end=True)
    assert inputs_covered({"flights": None}, {}) is None
    assert inputs_covered({"flights": statement}, {"flights": {0: 10, 1: 6}}) is None
    assert inputs_covered({"flights": statement}, {"flights": {0: 10}}) is None
    assert inputs_covered({"flights": statement}, {"flights": {0: 12, 1: 7}}) == Inputs(5000, True)
    empty = Statement("flights", {0: 0, 1: 0}, 5000)
    assert inputs_covered({"flights": empty}, {}) == Inputs(5000, False)


def test_several_inputs_are_as_far_as_the_slowest():
    a, b = Statement("a", {0: 1}, 5000, end=True), Statement("b", {0: 1}, 4000)
    done = {"a": {0: 1}, "b": {0: 1}}
    assert inputs_covered({"a": a, "b": b}, done) == Inputs(4000, False)
    assert inputs_covered({"a": a, "b": None}, done) is None


def test_a_job_without_state_passes_the_news_on_once():
    rules = StatelessRules()
    assert rules.next_step(None, {}) is None
    assert rules.next_step(Inputs(5000, False), {0: 10}) == State(5000, False)
    assert rules.next_step(Inputs(5000, False), {0: 10}) is None
    assert rules.next_step(Inputs(5000, False), {0: 11}) == State(5000, False)  # more came, and it is idle again
    assert rules.next_step(Inputs(5000, True), {0: 11}) == State(5000, True)


def test_an_idle_input_moves_the_watermark_up_to_what_is_said():
    rules = StatefulRules(delay=2 * HOUR, horizon=6 * HOUR)
    step = rules.next_step(Inputs(100 * HOUR, False), 1, watermark=90 * HOUR, open_windows=4)
    assert step == Inject(102 * HOUR)  # minus the delay: the watermark is at 100 hours
    assert rules.next_step(Inputs(100 * HOUR, False), 1, 100 * HOUR, 4) is None


def test_a_finished_input_closes_every_window_then_the_output_is_finished():
    rules = StatefulRules(delay=2 * HOUR, horizon=6 * HOUR)
    end = Inputs(100 * HOUR, True)
    assert rules.next_step(end, 1, 95 * HOUR, 4) == Inject(108 * HOUR)
    assert rules.next_step(end, 1, 95 * HOUR, 4) is None  # on its way
    assert rules.next_step(end, 1, 106 * HOUR, 1) == Inject(126 * HOUR)  # a window of 24 hours: further
    assert rules.next_step(end, 1, 106 * HOUR, 1) is None
    assert rules.next_step(end, 1, 124 * HOUR, 0) == State(100 * HOUR, True)
    assert rules.next_step(end, 1, 124 * HOUR, 0) is None


def test_a_driver_that_starts_again_does_not_repeat_its_injections():
    rules = StatefulRules(delay=0, horizon=HOUR)
    rules.resume(101 * HOUR)
    end = Inputs(100 * HOUR, True)
    assert rules.next_step(end, 1, 90 * HOUR, 4) is None  # the query has not read the old one yet
    assert rules.next_step(end, 1, 101 * HOUR, 0) == State(100 * HOUR, True)


@given(
    delay=st.integers(0, 10 * HOUR), guess=st.integers(1, 10 * HOUR), last=st.integers(1, 10**13),
    length=st.integers(1, 1000 * HOUR), lag=st.integers(0, 3),
)  # fmt: skip
def test_whatever_the_window_it_closes_and_the_end_is_stated_once(delay, guess, last, length, lag):
    """A query that runs `lag` rounds behind: its watermark is the newest injection it has read, less the delay."""
    rules = StatefulRules(delay, guess)
    window_end, injections, stated = last + length, [], 0
    for _ in range(200):
        seen = injections[: len(injections) - lag] if lag and len(injections) < 3 else injections
        watermark = max([last - delay, *(each - delay for each in seen)])
        step = rules.next_step(Inputs(last, True), "p", watermark, int(window_end > watermark))
        if isinstance(step, Inject):
            assert not injections or step.event_time > injections[-1]
            injections.append(step.event_time)
        elif isinstance(step, State):
            assert window_end <= watermark
            stated += 1
        elif lag:
            lag -= 1
    assert stated == 1
    assert len(injections) <= 25


def test_the_follower_keeps_the_last_of_each():
    follower = Follower(Connection("127.0.0.1:1"))
    follower.apply(encode(Statement("flights", {0: 1}, 5)))
    follower.apply(encode(Statement("flights", {0: 2}, 6, end=True)))
    follower.apply(b"not a heartbeat")
    assert follower.statement("flights") == Statement("flights", {0: 2}, 6, end=True)
    assert follower.statement("weather") is None
