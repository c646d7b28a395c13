"""A job passes on what is stated of its inputs, once it has processed what that speaks of."""

import uuid
from datetime import UTC, datetime

import pytest

from mainstem.client.append import append
from mainstem.client.heartbeats import statement_about, write_heartbeats
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.process.heartbeats import Follower
from mainstem.process.passing_on import PassingOn, last_look, windows_of
from tests.support.job_specs import STATEFUL, STATELESS, spec_of
from tests.support.waiting import wait_until

AT = "2026-03-01T12:00:00.500Z"
AT_MS = int(datetime(2026, 3, 1, 12, 0, 0, 500_000, UTC).timestamp() * 1000)


def progress(watermark=AT, kept=(2, 3)):
    return {
        "timestamp": AT,
        "eventTime": {"watermark": watermark} if watermark else {},
        "stateOperators": [{"numRowsTotal": rows} for rows in kept],
    }


@pytest.fixture
def stated(log_connection):
    """A topic with one record, of which its writer says that nothing follows, and who has heard of it."""
    ensure_internal_topics(log_connection)
    topic = f"passed-{uuid.uuid4().hex[:8]}"
    ensure_topic(log_connection, topic, 1)
    append(log_connection, topic, [(b"k", b"1")])
    follower = Follower(log_connection)
    follower.start()
    write_heartbeats(log_connection, [statement_about(log_connection, topic, AT_MS, end=True)])
    wait_until(lambda: follower.statement(topic), "the statement is read")
    yield topic, follower
    follower.stop()


def test_a_job_without_state_says_the_same_of_its_output(log_connection, stated, tmp_path):
    topic, follower = stated
    spec = spec_of(tmp_path, f"of-{topic}", "1", analysis=STATELESS, stream=topic)
    (output,) = spec.fixed.outputs
    ensure_topic(log_connection, output, 1)
    passing_on = PassingOn(spec, log_connection, follower)
    passing_on.beat({topic: {0: 0}}, lambda: None)
    assert follower.statement(output) is None  # it has not processed what the statement speaks of
    passing_on.beat({topic: {0: 1}}, lambda: None)
    wait_until(lambda: follower.statement(output), "it is passed on")
    assert follower.statement(output) == statement_about(log_connection, output, AT_MS, end=True)


def test_a_job_with_windows_moves_its_watermark_until_none_is_open(log_connection, stated, tmp_path):
    topic, follower = stated
    spec = spec_of(tmp_path, f"of-{topic}", "1", analysis=STATEFUL, stream=topic)
    (output,) = spec.fixed.outputs
    ensure_topic(log_connection, output, 1)
    passing_on, of_input = PassingOn(spec, log_connection, follower), {topic: {0: 1}}
    passing_on.injections.take_over()

    def injected():
        return list(passing_on.injections.directory.iterdir())

    passing_on.beat(of_input, lambda: None)  # it runs no batch without a row
    first = injected()
    assert len(first) == 1
    passing_on.beat(of_input, lambda: progress("2027-01-01T00:00:00.000Z", kept=(1,)))
    assert len(injected()) > len(first)
    assert follower.statement(output) is None
    passing_on.beat(of_input, lambda: progress("2027-01-01T00:00:00.000Z", kept=(0, 0)))
    wait_until(lambda: follower.statement(output), "nothing is open")
    assert follower.statement(output).end


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, (None, 1)),
        (progress(kept=()), (None, 1)),
        (progress(), (AT_MS, 5)),
        (progress(watermark=None), (0, 5)),
        (progress("+10000-01-01T00:00:00.000Z"), (1 << 53, 5)),
    ],
)
def test_what_a_batch_has_left_is_read_from_what_spark_says_of_it(found, told):
    assert windows_of(found) == told


def test_when_a_batch_began_to_look_is_known_once_there_was_one():
    assert last_look(None) == 0
    assert last_look(progress()) == AT_MS / 1000
