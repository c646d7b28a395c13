"""The budgets of all answers: kept, and never the end of progress."""

import pytest

from mainstem.broker.answer_memory import PATIENCE_SECONDS, AnswerMemory
from mainstem.core import ManualClock

HERE, THERE = "/10.0.0.1", "/10.0.0.2"


class Connection:
    """Its client takes what the test says."""

    def __init__(self, memory, size=0, host=HERE):
        self.memory = memory
        self.client_host = host
        self.untaken_bytes = size
        self.aborted = False
        if size:
            memory.hold(self, size)

    def takes(self, size):
        """As the socket takes it; it is let go only when all has left."""
        self.untaken_bytes -= size

    def ask_again(self):
        """It would, where it waits."""

    def abort(self):
        self.aborted = True
        self.memory.leave(self)


def memory_of(limit, clock=None, call_soon=lambda _: None, call_later=lambda *_: None, *, is_asked=True):
    return AnswerMemory(limit, clock or ManualClock(), call_soon, call_later, is_asked=is_asked)


def test_room_is_given_as_far_as_there_is_some():
    memory = memory_of(10)
    assert memory.reserve(6) == 6
    assert memory.reserve(6) == 4
    assert memory.reserve(6) == 0
    memory.take(3)  # a first batch is read without room
    memory.give(6)
    assert (memory.reserve(6), memory.held) == (3, 10)


def test_what_a_client_has_taken_is_room_again():
    memory = memory_of(10)
    client = Connection(memory, 6)
    memory.hold(client, 3)
    memory.let_go(client, 6)
    assert memory.held == 3
    memory.let_go(client, 3)
    memory.leave(client)
    assert memory.held == 0


def test_who_takes_nothing_is_cut_off_where_room_is_wanted():
    clock = ManualClock()
    memory = memory_of(100, clock)
    stuck, slow = (Connection(memory, 50) for _ in range(2))
    clock.advance_ms(int(PATIENCE_SECONDS * 1000))
    slow.takes(1)
    assert not stuck.aborted, "nobody wants the room"
    assert memory.reserve(1) == 0
    assert [each.aborted for each in (stuck, slow)] == [True, False]
    assert memory.reserve(50) == 50
    clock.advance_ms(int(PATIENCE_SECONDS * 1000) - 1)
    memory.reserve(1)
    assert not slow.aborted, "it took something at the last look"
    clock.advance_ms(3000)
    memory.reserve(1)
    assert slow.aborted


def test_an_answer_that_waits_behind_a_request_of_its_own_client_is_not_taken_either():
    """Only clients whose sockets were full were cut off; these held what they had for as long as they liked."""
    clock = ManualClock()
    memory = memory_of(100, clock)
    behind = Connection(memory, 100)
    clock.advance_ms(int(PATIENCE_SECONDS * 1000))
    memory.reserve(1)
    assert behind.aborted


def test_who_takes_nothing_of_an_address_that_holds_most_makes_room_for_what_nobody_asked_for():
    clock = ManualClock()
    memory = memory_of(800, clock, is_asked=False)
    other = Connection(memory, 150, host=THERE)
    many = [Connection(memory, 100) for _ in range(6)]
    clock.advance_ms(1000)
    many[0].takes(1)
    latest = Connection(memory, 100)
    assert [each.aborted for each in many] == [False, True, True, False, False, False], "an eighth is free"
    assert not any(each.aborted for each in (other, latest))
    assert memory.held == 650


def test_an_address_that_holds_some_of_what_is_used_up_waits_for_more_but_not_for_long():
    """Clients that asked at once, and read as fast as they could, were cut off: 287 of 600."""
    clock, soon, later = ManualClock(), [], []
    memory = memory_of(800, clock, soon.append, lambda _, callback: later.append(callback), is_asked=False)
    readers = [Connection(memory, 400) for _ in range(2)]
    here, there = Connection(memory), Connection(memory, host=THERE)
    soon.clear()
    assert not memory.may_make(here)
    assert memory.may_make(there)
    for _ in range(9):
        clock.advance_ms(500)
        for reader in readers:
            reader.takes(1)
        later.pop()()
        assert soon == []
        assert not memory.may_make(here)
    clock.advance_ms(500)
    for reader in readers:
        reader.takes(1)
    later.pop()()
    assert soon == [here.ask_again], "it has waited for five seconds"
    assert memory.may_make(here)
    assert not memory.may_make(here), "once"
    assert not any(each.aborted for each in readers), "they go on"
    soon.clear()
    clock.advance_ms(1000)
    later.pop()()
    assert [each.aborted for each in readers] == [True, False]
    assert soon == [here.ask_again]
    assert memory.may_make(here)
    later.pop()()
    assert later == [], "nobody waits"


def test_who_was_told_to_ask_again_and_does_not_waits_no_more():
    soon, later = [], []
    memory = memory_of(800, None, soon.append, lambda _, callback: later.append(callback))
    client = Connection(memory, 100)
    soon.clear()
    memory.wait(client)
    memory.wait(client)
    later.pop()()
    assert soon == [client.ask_again]
    later.pop()()
    assert (soon, later) == ([client.ask_again], [])


def test_who_goes_on_is_cut_off_only_where_twice_as_much_is_held_and_after_who_takes_nothing():
    clock = ManualClock()
    memory = memory_of(800, clock, is_asked=False)
    readers = [Connection(memory, 200, host=THERE) for _ in range(4)]
    others = []
    for number in range(8):
        clock.advance_ms(100)
        for reader in readers:
            reader.takes(10)
        others.append(Connection(memory, 100, host=f"/10.0.1.{number}"))
    assert not any(each.aborted for each in (*readers, *others))
    clock.advance_ms(100)
    for reader in readers:
        reader.takes(10)
    others.append(Connection(memory, 100, host="/10.0.2.1"))
    assert [each.aborted for each in others] == [True] * 4 + [False] * 5
    assert not any(each.aborted for each in readers)


def test_what_is_made_in_a_turn_of_the_loop_is_bounded():
    """Nothing of it can be taken meanwhile: 120 answers of 14 MB were made at once."""
    turns = []
    memory = memory_of(800, call_soon=turns.append, is_asked=False)
    client = Connection(memory, 100)
    assert not memory.turn_is_full
    memory.hold(client, 1)
    assert memory.turn_is_full
    (turn,) = turns
    turn()
    assert not memory.turn_is_full


def test_who_has_many_answers_made_at_once_is_cut_off_too():
    """They had been asked for before any of them was made."""
    memory = memory_of(800, is_asked=False)
    client = Connection(memory, 1000)
    memory.hold(client, 600)
    assert not client.aborted
    memory.hold(client, 600)
    assert client.aborted
    assert memory.held == 0


@pytest.mark.parametrize("is_asked", [False, True])
def test_one_answer_may_be_larger_than_all_the_room(is_asked):
    memory = memory_of(100, is_asked=is_asked)
    large = Connection(memory, 1000)
    assert not large.aborted
    assert not memory.has_room


def test_while_the_room_is_used_up_only_the_answer_that_was_begun_first_is_made():
    """Those of twelve connections were: 3 GB."""
    memory = memory_of(800, is_asked=False)
    first, second = Connection(memory), Connection(memory, host=THERE)
    for each in (first, second, first):
        assert memory.may_go_on_making(each)
        memory.make(each, 300)
    assert memory.may_go_on_making(first)
    assert not memory.may_go_on_making(second)
    memory.end_making(first)
    assert memory.held == 300
    memory.hold(first, 399)
    memory.make(second, 300)
    assert memory.may_go_on_making(second), "it is the first one now"
    memory.leave(second)
    memory.end_making(second)
    assert memory.held == 399


def test_an_answer_is_gone_on_with_when_those_before_it_are_taken_but_not_for_long():
    """Else they would be made sooner than clients can read them."""
    clock = ManualClock()
    memory = memory_of(800, clock, is_asked=False)
    reader, other, waits = Connection(memory, 400), Connection(memory), Connection(memory)
    clock.advance_ms(60_000)
    reader.takes(1)
    memory.make(other, 400)
    memory.make(waits, 200)
    memory.leave(other)
    memory.make(waits, 200)
    for _ in range(5):
        assert not memory.may_go_on_making(waits)
        clock.advance_ms(999)
        reader.takes(1)
    assert not memory.may_go_on_making(waits)
    clock.advance_ms(5)
    reader.takes(1)
    assert memory.may_go_on_making(waits)
    assert not reader.aborted
    for _ in range(2):  # it is seen that it has taken some, and that it takes no more
        clock.advance_ms(1001)
        assert memory.may_go_on_making(waits)
    assert reader.aborted


def test_nobody_waits_for_more_than_one_answer_of_an_address_however_many_are_being_made():
    """Another address waited for five seconds for each of them, and so did all that it asked for meanwhile."""
    clock = ManualClock()
    memory = memory_of(800, clock, is_asked=False)
    readers, many = [Connection(memory, 400) for _ in range(2)], [Connection(memory) for _ in range(12)]
    waits = Connection(memory, host=THERE)
    for each in (*many, waits):
        memory.make(each, 1)
    assert memory.may_make(Connection(memory, host=THERE))
    for _ in range(5):
        assert not any(map(memory.may_go_on_making, (*many, waits)))
        clock.advance_ms(1000)
        for reader in readers:
            reader.takes(1)
    assert [memory.may_go_on_making(each) for each in (*many, waits)] == [True] + 12 * [False]
    memory.end_making(many.pop(0))
    assert [memory.may_go_on_making(each) for each in (*many, waits)] == 11 * [False] + [True]
    memory.end_making(waits)
    assert not any(map(memory.may_go_on_making, many)), "its next one waits, as any that has just come"
    assert not any(each.aborted for each in readers)


def test_of_an_address_one_answer_is_begun_while_the_room_is_used_up():
    memory = memory_of(800, is_asked=False)
    first, waits = Connection(memory), Connection(memory)
    assert memory.may_begin(first)
    memory.make(first, 900)
    assert not memory.may_begin(waits)
    assert memory.may_begin(Connection(memory, host=THERE))
    memory.make(waits, 0)
    assert not memory.may_go_on_making(waits)
    assert memory.held == 900
    memory.leave(first)
    memory.end_making(waits)
    assert memory.held == 0


def test_addresses_take_turns_and_the_answers_of_one_come_in_their_order():
    memory = memory_of(800, is_asked=False)
    making = {name: Connection(memory, host=f"/10.0.0.{name[0]}") for name in ("1a", "1b", "2a", "1c", "2b")}
    for each in making.values():
        memory.make(each, 200)
    order = []
    while making:
        (name,) = (name for name, each in making.items() if memory.may_go_on_making(each))
        order.append(name)
        held = memory.held
        memory.end_making(making.pop(name))
        for each in list(making.values())[-1:]:  # so that there is never room
            memory.make(each, held - memory.held)
    assert order == ["1a", "2a", "1b", "2b", "1c"]


def test_the_address_of_a_large_answer_waits_for_more_once_it_is_whole():
    memory = memory_of(800, is_asked=False)
    memory.make(Connection(memory), 900)
    assert memory.may_make(Connection(memory))
    memory.hold(Connection(memory), 900)
    assert not memory.may_make(Connection(memory))
    assert memory.may_make(Connection(memory, host=THERE))


def test_who_waits_for_its_answer_to_be_made_is_not_cut_off_for_not_taking_it():
    clock = ManualClock()
    memory = memory_of(800, clock, is_asked=False)
    waits, stuck = Connection(memory), Connection(memory, 600, host=THERE)
    memory.make(waits, 200)
    clock.advance_ms(1000)
    memory.make(waits, 200)
    assert [each.aborted for each in (waits, stuck)] == [False, True]


def test_who_has_taken_nothing_of_an_answer_before_is_cut_off_although_the_next_one_is_made():
    clock = ManualClock()
    memory = memory_of(800, clock, is_asked=False)
    client = Connection(memory, 600)
    memory.make(client, 200)
    clock.advance_ms(1000)
    memory.make(client, 200)
    assert client.aborted
    assert memory.held == 0


@pytest.mark.parametrize("of", [HERE, THERE], ids=["of its address", "of another"])
def test_an_answer_in_the_making_that_has_most_of_the_room_goes_before_others(of):
    """All others were cut off instead, of whatever address."""
    memory = memory_of(800, is_asked=False)
    reader, latest = Connection(memory, 300, host=of), Connection(memory, 300, host=of)
    reader.takes(1)
    large = Connection(memory)
    for _ in range(10):
        memory.make(large, 100)
        assert not large.aborted
    memory.make(large, 100)
    assert [each.aborted for each in (large, reader, latest)] == [True, False, False]
    assert memory.held == 600


def test_an_answer_in_the_making_of_an_address_that_has_little_goes_last():
    memory = memory_of(800, is_asked=False)
    many = [Connection(memory, 300) for _ in range(5)]
    for each in many:
        each.takes(1)
    small = Connection(memory, host=THERE)
    memory.make(small, 200)
    assert not small.aborted
    assert [each.aborted for each in many] == [True, True, False, False, False]
