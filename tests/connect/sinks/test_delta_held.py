"""Tables that are left out: why, for how long, and until when they are told of."""

from mainstem.connect.sinks.delta_held import HeldTables
from mainstem.connect.sinks.delta_spark import TableHeld
from mainstem.core import Retriable
from mainstem.core.backoff import FOR_A_PERSON, HEALTHY_AFTER_SECONDS, PASSING, WORKS_AFTER_SECONDS
from mainstem.core.clock import ManualClock


def seen(held, clock):
    return [(each.name, each.state, each.error) for each in (s.seen_at(clock.now_ms()) for s in held.states)]


def test_a_table_is_left_out_until_its_next_try_and_told_of_until_it_is_written():
    clock = ManualClock()
    held = HeldTables("lake", clock)
    held.hold("flights", TableHeld("another type", hint="move it"))
    held.hold("planes", Retriable("no answer"))
    assert held.reasons == {"flights": "another type", "planes": "no answer"}
    flights, planes = held.states
    assert (flights.state, flights.hint, flights.retry_seconds) == ("failed", "move it", FOR_A_PERSON.first)
    assert (planes.state, planes.retry_seconds) == ("waiting", PASSING.first)
    assert not held.is_due
    clock.advance_ms(1000 * PASSING.first)
    assert held.is_due  # all of them are tried when the first is due

    held.try_again()
    held.opened(["flights", "planes"])
    assert held.reasons == {}
    assert not held.is_due
    assert [state for _, state, _ in seen(held, clock)] == ["failed", "waiting"]  # neither has been written yet
    held.hold("planes", Retriable("no answer"))
    assert held.states[1].retry_seconds == 2 * PASSING.first
    held.written("flights")
    clock.advance_ms(1000 * WORKS_AFTER_SECONDS)
    assert seen(held, clock)[0] == ("sink lake: table flights", "running", "")


def test_what_could_not_be_opened_works_again_when_it_can_be():
    clock = ManualClock()
    held = HeldTables("lake", clock)
    held.hold("flights", OSError("Permission denied"), unopened=True)
    held.try_again()
    held.opened(["flights"])
    assert held.states[0].state == "running"


def test_a_topic_that_is_gone_is_told_of_no_more():
    held = HeldTables("lake", ManualClock())
    held.hold("flights", Retriable("gone"))
    held.opened([])
    assert len(held.states) == 1  # still left out
    held.try_again()
    held.opened([])
    assert held.states == []


def test_a_table_that_is_written_again_and_again_works_and_is_told_of_no_more():
    """Each batch counted as a new start: a busy table was told as waiting for ever."""
    clock = ManualClock()
    held = HeldTables("lake", clock)
    held.hold("flights", OSError("full"))
    held.try_again()
    for second in range(0, int(HEALTHY_AFTER_SECONDS) + 2, 2):
        held.written("flights")
        states = [state for _, state, _ in seen(held, clock)]
        expected = ["waiting"] if second < WORKS_AFTER_SECONDS else ["running"]
        assert states == ([] if second >= HEALTHY_AFTER_SECONDS else expected)
        clock.advance_ms(2000)
