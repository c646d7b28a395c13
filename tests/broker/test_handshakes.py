"""Handshakes: bounded, each has its turn, and no address can keep another one out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker import handshakes
from mainstem.broker.handshakes import PATIENCE_SECONDS, Handshakes
from mainstem.core import ManualClock

MOST, MOST_WAITING = 4, 6


@pytest.fixture(autouse=True, scope="module")
def few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handshakes, "MOST", MOST)
        patch.setattr(handshakes, "MOST_WAITING", MOST_WAITING)
        yield


class Arrival:
    def __init__(self, host):
        self.host, self.descriptor = host, 3
        self.state = "waits"

    def begin(self):
        assert self.state == "waits"
        self.state = "begun"

    def cut_off(self):
        assert self.state in ("waits", "begun")
        self.state = "cut off"


class Door:
    def __init__(self):
        self.clock, self.later, self.all = ManualClock(), [], []
        self.handshakes = Handshakes(self.clock, lambda _, call: self.later.append(call))

    def comes(self, host):
        arrival = Arrival(host)
        self.all.append(arrival)
        self.handshakes.arrive(arrival)
        return arrival

    def after(self, seconds):
        self.clock.advance_ms(round(seconds * 1000))
        calls, self.later = self.later, []
        for call in calls:
            call()

    def states(self, host):
        return [each.state for each in self.all if each.host == host]


def test_more_than_can_begin_at_once_wait_and_all_have_their_turn():
    """Of a burst of good clients, those that were accepted first were cut off before they had any turn."""
    door = Door()
    for _ in range(MOST + MOST_WAITING):
        door.comes("a")
    assert door.states("a") == ["begun"] * MOST + ["waits"] * MOST_WAITING
    for arrival in door.all:
        assert arrival.state == "begun"
        arrival.state = "done"
        door.handshakes.leave(arrival)
    assert not list(door.handshakes)


def test_who_says_nothing_keeps_no_other_address_out():
    door = Door()
    silent = [door.comes("a") for _ in range(MOST + MOST_WAITING + 5)]
    assert door.states("a") == ["begun"] * MOST + ["waits"] * MOST_WAITING + ["cut off"] * 5
    assert door.comes("b").state == "begun"
    assert silent[0].state == "cut off"
    assert door.comes("c").state == "begun"


def test_who_says_nothing_keeps_his_own_address_out_for_a_second():
    door = Door()
    for _ in range(MOST):
        door.comes("a")
    good = door.comes("a")
    door.after(PATIENCE_SECONDS - 0.1)
    assert good.state == "waits"
    door.after(0.2)
    assert good.state == "begun"
    assert door.states("a").count("cut off") == 1  # the others may go on: nobody wants their place


def test_two_addresses_do_not_take_each_others_place_in_turn():
    door = Door()
    for host in "aabb":
        door.comes(host)
    assert door.comes("a").state == "waits"
    assert door.comes("b").state == "waits"
    assert "cut off" not in door.states("a") + door.states("b")


@given(st.lists(st.one_of(st.sampled_from("abc"), st.integers(0, 20), st.just(None))))
def test_whatever_comes_is_bounded_and_who_waits_is_never_forgotten(moves):
    """A move: somebody comes, one that is under way or waits is over or goes, or time passes."""
    door = Door()
    for move in moves:
        there = list(door.handshakes)
        if isinstance(move, str):
            door.comes(move)
        elif move is None:
            door.after(0.4)
        elif there:
            arrival = there[move % len(there)]
            arrival.state = "done"
            door.handshakes.leave(arrival)
        states = [each.state for each in door.handshakes]
        assert set(door.handshakes) == {each for each in door.all if each.state in ("waits", "begun")}
        assert states.count("begun") <= MOST
        assert states.count("waits") <= MOST_WAITING
        assert "waits" not in states or states.count("begun") == MOST
    for _ in range(60):
        door.after(0.4)
    assert all(each.state != "waits" for each in door.all)


def test_room_is_made_of_one_that_waits_then_of_one_of_a_greedier_address_then_of_an_old_one():
    door = Door()
    assert not door.handshakes.make_room("b")
    first, second, _, _, waits = (door.comes("a") for _ in range(5))
    assert door.handshakes.make_room("b")
    assert waits.state == "cut off"
    assert door.handshakes.make_room("b")
    assert first.state == "cut off"
    assert not door.handshakes.make_room("a")
    door.after(PATIENCE_SECONDS)
    assert door.handshakes.make_room("a")
    assert second.state == "cut off"
    door.handshakes.close()
    assert door.states("a") == ["cut off"] * 5
