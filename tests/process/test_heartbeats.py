"""Idle and finished inputs: the rules, step by step and against a model of a watermark."""

import uuid

from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.heartbeats import Statement, encode, statement_about
from mainstem.client.internal import HEARTBEATS
from mainstem.client.topics import delete, ensure_topic, topic_ids
from mainstem.process.heartbeats import (
    Follower,
    Inject,
    Inputs,
    State,
    StatefulRules,
    StatelessRules,
    inputs_covered,
)
from tests.support.undecided import DECIDED, VISIBLE, WORDS, undecided
from tests.support.waiting import wait_until

HOUR = 3_600_000
YEAR_10000 = 253_402_300_800_000


def test_a_statement_counts_once_all_that_it_speaks_of_is_processed():
    statement = Statement("flights", {0: 10, 1: 7}, 5000, end=True)
    assert inputs_covered({"flights": None}, {}) is None
    assert inputs_covered({"flights": statement}, {"flights": {0: 10, 1: 6}}) is None
    assert inputs_covered({"flights": statement}, {"flights": {0: 10}}) is None
    assert inputs_covered({"flights": statement}, {"flights": {0: 12, 1: 7}}) == Inputs(5000, True)
    empty = Statement("flights", {0: 0, 1: 0}, 5000)
    assert inputs_covered({"flights": empty}, {}) == Inputs(5000, False)


def test_a_statement_about_a_topic_that_was_made_anew_counts_no_more(log_connection):
    """The end of the old one ended the new one as soon as that had as many records."""
    topic = f"heartbeats-{uuid.uuid4().hex[:8]}"
    ensure_topic(log_connection, topic, 1)
    statement = Statement(topic, {0: 1}, 5000, True, topic_ids(log_connection, [topic])[topic])
    of_older_version = Statement(topic, {0: 1}, 5000, True)
    follower = Follower(log_connection)
    assert follower.still_speak([statement, of_older_version])
    delete(log_connection, [topic])
    assert not follower.still_speak([statement])
    assert not follower.still_speak([of_older_version])
    ensure_topic(log_connection, topic, 1)
    assert not follower.still_speak([of_older_version, statement])
    assert follower.still_speak([of_older_version])


def test_an_end_after_which_more_came_counts_no_more(log_connection):
    """A version that was built then closed windows until none was open: what had come was too late for it."""
    topic = f"heartbeats-{uuid.uuid4().hex[:8]}"
    ensure_topic(log_connection, topic, 2)
    append(log_connection, topic, [(b"k", b"1")])
    follower = Follower(log_connection)
    idle, end = (statement_about(log_connection, topic, 5000, end=end) for end in (False, True))
    assert follower.still_speak([idle, end])
    producer = Producer(log_connection.confluent(transactional_id=topic, log_level=2))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"never", b"k")
    assert producer.flush(60) == 0
    producer.abort_transaction(60)  # leaves a marker, and no record
    assert follower.still_speak([end])
    append(log_connection, topic, [(b"k", b"2")])
    assert not follower.still_speak([idle, end])
    assert not follower.still_speak([end])
    assert follower.still_speak([idle])
    assert follower.still_speak([statement_about(log_connection, topic, 5000, end=True)])


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


def test_a_query_that_was_started_again_is_woken_once():
    """Spark runs no batch without a row then, even if the last one before has left windows to be closed."""
    rules = StatefulRules(delay=0, horizon=HOUR)
    rules.restart()
    end = Inputs(100 * HOUR, True)
    assert rules.next_step(end, 1, None, 1) == Inject(101 * HOUR)
    assert rules.next_step(end, 1, None, 1) is None
    assert rules.next_step(end, 1, 101 * HOUR, 0) == State(100 * HOUR, True)
    rules.restart()
    idle = Inputs(100 * HOUR, False)
    assert rules.next_step(idle, 1, None, 1) == Inject(100 * HOUR)  # not further than what was said
    assert rules.next_step(idle, 1, 100 * HOUR, 3) is None


def test_state_that_no_watermark_removes_does_not_hold_back_the_end_for_ever():
    """Event times grew fourfold until Spark's microseconds overflowed a long; their file was in the checkpoint, so that
    the job failed with it at every start.
    """
    end, watermark = Inputs(1_357_000_000_000, True), 0
    rules = StatefulRules(delay=2 * HOUR, horizon=6 * HOUR)
    for _ in range(30):
        step = rules.next_step(end, 1, watermark, open_windows=1)
        if not isinstance(step, Inject):
            break
        watermark = step.event_time - 2 * HOUR
    assert step == State(1_357_000_000_000, True)
    assert watermark == YEAR_10000 - 1 + 6 * HOUR  # what ends before was closed
    assert rules.next_step(end, 1, watermark, open_windows=1) is None


class Query:
    """What Spark does with injections: a batch for what is new, then one without rows if the watermark has moved since.

    A batch closes windows by the watermark that those before it have found. What a run has done is lost with it, but
    for the watermark; a new run starts with no batch.
    """

    def __init__(self, last, delay, window_end):
        self.unread, self.delay, self.window_end = [], delay, window_end
        self.next_watermark = last - delay
        self.is_open = True
        self.progress = None

    def batch(self):
        if not self.unread and (self.progress is None or self.progress == self.next_watermark):
            return
        self.progress = self.next_watermark
        self.is_open = self.is_open and self.window_end > self.progress
        self.next_watermark = max([self.next_watermark, *(each - self.delay for each in self.unread)])
        self.unread = []

    def restart(self):
        self.progress = None


@given(
    delay=st.integers(0, 10 * HOUR), guess=st.integers(1, 10 * HOUR), last=st.integers(1, 10**13),
    length=st.integers(1, 1000 * HOUR), restarts=st.sets(st.integers(0, 60)), slow=st.sets(st.integers(0, 60)),
)  # fmt: skip
def test_whatever_the_window_it_closes_and_the_end_is_stated(delay, guess, last, length, restarts, slow):
    """A query that runs no batch in some rounds and starts again in others, also between two batches."""
    rules, query = StatefulRules(delay, guess), Query(last, delay, last + length)
    query.progress = query.next_watermark
    injections = stated = 0
    for number in range(200):
        if number in restarts:
            rules.restart()
            query.restart()
        step = rules.next_step(Inputs(last, True), "p", query.progress, int(query.is_open))
        if isinstance(step, Inject):
            injections += 1
            query.unread.append(step.event_time)
        elif isinstance(step, State):
            assert not query.is_open
            stated += 1
        if number not in slow:
            query.batch()
    assert 1 <= stated <= 1 + len(restarts)
    assert injections <= 25 + len(restarts)


def test_the_follower_keeps_the_last_of_each():
    follower = Follower(Connection("127.0.0.1:1"))
    follower.apply(encode(Statement("flights", {0: 1}, 5)))
    follower.apply(encode(Statement("flights", {0: 2}, 6, end=True)))
    follower.apply(b"not a heartbeat")
    assert follower.statement("flights") == Statement("flights", {0: 2}, 6, end=True)
    assert follower.statement("weather") is None


def test_the_follower_shows_nothing_of_an_aborted_or_open_transaction(log_connection):
    run = uuid.uuid4().hex[:8]

    def statement(word):
        about = Statement(f"{word}-{run}", {0: 1}, 5)
        return [(HEARTBEATS, about.key, encode(about))]

    def known():
        return tuple(word for word in WORDS if follower.statement(f"{word}-{run}"))

    follower = Follower(log_connection)
    with undecided(log_connection, run, statement) as commit:
        follower.start()
        try:
            wait_until(lambda: "between" in known(), "it has read past what was aborted")
            assert known() == VISIBLE
            commit()
            wait_until(lambda: "after" in known(), "it goes on")
            assert known() == DECIDED
        finally:
            follower.stop()


def test_a_follower_outlives_what_nobody_has_foreseen(log_connection):
    """Its thread ended, and nothing said so: the last windows of finished inputs stayed open."""
    topic, failures = f"after-{uuid.uuid4().hex[:8]}", [ValueError("never seen before")]

    class Surprised(Follower):
        def apply(self, value):
            if failures:
                raise failures.pop()
            super().apply(value)

    follower = Surprised(log_connection)
    follower.start()
    try:
        statements = [Statement(name, {0: 1}, 5) for name in (f"first-{topic}", topic)]
        append(log_connection, HEARTBEATS, [(each.key, encode(each)) for each in statements])
        wait_until(lambda: follower.statement(topic), "it has read past what it could not take in")
        assert failures == []
    finally:
        follower.stop()


def test_a_follower_that_never_started_can_be_stopped():
    """What failed before it started was hidden by the failure of stopping it."""
    Follower(Connection("127.0.0.1:1")).stop()
