"""The budget of all requests: kept, shared, and never the end of progress."""

import pytest

from mainstem.broker.request_memory import PATIENCE_SECONDS, PROGRESS_BYTES, TURN_SECONDS, RequestMemory
from mainstem.core import ManualClock

MB = 1 << 20
HERE, THERE, ELSEWHERE = "/10.0.0.5", "/10.0.0.6", "/10.0.0.7"


class Calls:
    """What is to be called soon, and later."""

    def __init__(self):
        self.clock = ManualClock()
        self.soon = []
        self.later = []

    def memory(self, limit):
        return RequestMemory(limit, self.clock, self.soon.append, lambda _, call: self.later.append(call))

    def run(self):
        while self.soon:
            self.soon.pop(0)()

    def after(self, seconds):
        """Let time pass, a second at a time, and what was to be called by then be called."""
        while seconds > 0:
            self.pass_by(min(seconds, 1))
            seconds -= 1

    def pass_by(self, seconds):
        """The same, all at once: the process stood still meanwhile."""
        self.clock.advance_ms(round(seconds * 1000))
        calls, self.later = self.later, []
        for call in calls:
            call()
        self.run()


class Client:
    """One that asks for room for a request of `size` bytes, and holds it until it is answered."""

    def __init__(self, memory, size, host=HERE, *, is_first=True):
        self.memory, self.size, self.client_host, self.is_first = memory, size, host, is_first
        self.has_room = self.is_cut_off = self.is_held_up = self.is_busy = False
        self.arrived_bytes = 0

    def ask(self):
        if self.is_busy:
            self.memory.wait_no_more(self)
        elif not self.has_room:
            self.has_room = self.memory.reserve(self, self.size, may_have_turn=self.is_first)
            if self.has_room:
                self.memory.expect(self)
        return self.has_room

    look_again = ask

    def answer(self):
        self.memory.arrived(self)
        self._give()
        if self.memory.turn is self:
            self.memory.end_turn()

    def abort(self):
        assert not self.is_cut_off
        self.is_cut_off = True
        self.leave()

    def leave(self):
        self._give()
        self.memory.leave(self)

    def _give(self):
        if self.has_room:
            self.has_room = False
            self.memory.give(self.size, self.client_host)


def test_whoever_waits_is_told_when_there_is_room_for_all_of_its_request():
    calls = Calls()
    memory = calls.memory(10 * MB)
    held = [Client(memory, 2 * MB) for _ in range(4)]
    assert all(each.ask() for each in held)
    other = Client(memory, 30 * MB, THERE)
    assert other.ask(), "its turn"
    large, small = Client(memory, 4 * MB), Client(memory, MB)
    assert not large.ask()
    assert not small.ask()
    held[0].answer()
    calls.run()
    assert (large.has_room, small.has_room) == (False, True)
    for each in (*held[1:], small):
        each.answer()
    calls.run()
    assert large.has_room
    for each in (large, other):
        each.answer()
    assert memory.held == 0


def test_room_that_one_does_not_take_is_for_the_next():
    calls = Calls()
    memory = calls.memory(10 * MB)
    held = [Client(memory, 2 * MB) for _ in range(4)]
    assert all(each.ask() for each in held)
    first, second = (Client(memory, 2 * MB, is_first=False) for _ in range(2))
    assert (first.ask(), second.ask()) == (False, False)
    held[0].answer()
    first.is_busy = True  # it ends, for one
    calls.run()
    calls.after(1)
    assert second.has_room


def test_one_request_at_a_time_comes_in_beyond_the_budget():
    calls = Calls()
    memory = calls.memory(10 * MB)
    clients = [Client(memory, 100 * MB) for _ in range(3)]
    assert [each.ask() for each in clients] == [True, False, False]
    within = Client(memory, MB, THERE)
    assert within.ask(), "it takes no room of others"
    clients[0].answer()
    calls.run()
    assert [each.has_room for each in clients] == [False, True, False], "the oldest"
    clients[1].leave()
    calls.run()
    assert clients[2].has_room
    clients[2].answer()
    within.answer()
    assert memory.held == 0
    assert memory.turn is None


def test_addresses_have_the_turn_one_after_the_other():
    """Of forty connections of one address, each had its ten seconds before anybody else."""
    calls = Calls()
    memory = calls.memory(10 * MB)
    many = [Client(memory, 100 * MB) for _ in range(40)]
    others = [Client(memory, 100 * MB, THERE), Client(memory, 100 * MB, ELSEWHERE)]
    for each in (*many, *others):
        each.ask()
    turns = []
    while memory.turn is not None:
        turns.append(memory.turn)
        memory.turn.answer()
        calls.run()
    assert turns == [many[0], *others, *many[1:]]


def test_an_address_has_one_turn_for_one_of_the_others():
    """Two, where the other asked again a moment after its own was over."""
    calls = Calls()
    memory = calls.memory(10 * MB)
    many, other = [Client(memory, 100 * MB) for _ in range(10)], Client(memory, 100 * MB, THERE)
    for each in (*many, other):
        each.ask()
    turns = []
    for _ in range(6):
        turns.append(memory.turn.client_host)
        before = memory.turn
        before.answer()
        if before is other:
            other.ask()
        calls.run()
    assert turns == [HERE, THERE] * 3


def test_who_waits_for_an_answer_has_no_turn():
    """Behind a fetch that waits for an hour a request would be held for as long, and nobody else would have his."""
    calls = Calls()
    memory = calls.memory(10 * MB)
    behind, other = Client(memory, 100 * MB, is_first=False), Client(memory, 100 * MB, THERE)
    assert not behind.ask()
    assert other.ask()
    other.answer()
    calls.run()
    assert not behind.has_room
    behind.is_first = True
    assert behind.ask(), "it is answered"


@pytest.mark.parametrize("goes", [True, False])
def test_a_turn_is_passed_on_by_who_does_not_want_it_any_more(goes):
    calls = Calls()
    memory = calls.memory(10 * MB)
    clients = [Client(memory, 100 * MB) for _ in range(3)]
    for each in clients:
        each.ask()
    if not goes:
        clients[1].is_busy = True  # over its quota, perhaps
    clients[0].answer()
    assert memory.turn is clients[1]
    if goes:
        clients[1].leave()
    calls.run()
    assert clients[2].has_room


def test_who_fills_it_from_one_address_leaves_room_for_others():
    memory = Calls().memory(10 * MB)
    greedy = [Client(memory, MB) for _ in range(40)]
    assert [each.ask() for each in greedy].count(True) == 8 + 1, "and one's turn"
    others = [Client(memory, MB, THERE) for _ in range(3)]
    assert [each.ask() for each in others].count(True) == 1
    assert Client(memory, MB // 4, ELSEWHERE).ask()


def test_a_small_budget_is_one():
    for limit in range(1, 20):
        memory = Calls().memory(limit)
        assert Client(memory, 1).ask()
        assert Client(memory, MB).ask()


def crowd(memory, count=8):
    """Some that have all the room that is an address's, one that has the turn, and one that wants some of the room."""
    clients = [Client(memory, MB) for _ in range(count)]
    assert all(each.ask() for each in clients)
    turn = Client(memory, 100 * MB, "/10.0.0.9")
    assert turn.ask()
    turn.is_held_up = True
    wanting = Client(memory, 3 * MB)
    assert not wanting.ask()
    return clients, wanting


def test_who_does_not_use_the_room_that_others_want_is_cut_off():
    calls = Calls()
    memory = calls.memory(10 * MB)
    clients, wanting = crowd(memory)
    for number, each in enumerate(clients):
        each.arrived_bytes = PROGRESS_BYTES - (number > 3)
    calls.after(PATIENCE_SECONDS - 0.1)
    assert not any(each.is_cut_off for each in clients)
    calls.after(0.2)
    assert [each.is_cut_off for each in clients] == [False] * 4 + [True] * 4
    assert wanting.has_room


def test_where_nobody_wants_the_room_nobody_is_cut_off():
    calls = Calls()
    memory = calls.memory(10 * MB)
    clients, wanting = crowd(memory)
    wanting.leave()
    calls.after(10 * PATIENCE_SECONDS)
    assert not any(each.is_cut_off for each in clients)
    wanting.ask()
    calls.after(1)
    assert all(each.is_cut_off for each in clients)


def test_nobody_is_cut_off_for_an_address_that_has_more():
    calls = Calls()
    memory = calls.memory(10 * MB)
    slow = Client(memory, MB // 2, THERE)
    assert slow.ask()
    clients, _ = crowd(memory, 7)
    calls.after(PATIENCE_SECONDS)
    assert all(each.is_cut_off for each in clients)
    assert not slow.is_cut_off
    memory.take(9 * MB, HERE)
    assert not Client(memory, 2 * MB, ELSEWHERE).ask(), "of one that has less"
    calls.after(1)
    assert slow.is_cut_off


@pytest.mark.parametrize(("size", "is_first"), [(99 * MB, True), (MB, False)])
def test_who_waits_for_something_else_wants_nobodys_room(size, is_first):
    """Four bytes that announced a hundred megabytes, behind a long poll, had all that were slow cut off."""
    calls = Calls()
    memory = calls.memory(10 * MB)
    clients, wanting = crowd(memory)
    wanting.leave()
    assert not Client(memory, size, is_first=is_first).ask()
    calls.after(PATIENCE_SECONDS)
    assert not any(each.is_cut_off for each in clients)


def test_a_request_that_has_room_is_whole_within_half_a_minute_where_others_want_that():
    """A connection with a quarter of a megabyte each ten seconds had a turn for most of an hour."""
    calls = Calls()
    memory = calls.memory(10 * MB)
    slow, wanting = Client(memory, 100 * MB), Client(memory, 100 * MB, THERE)
    assert slow.ask()
    for _ in range(3):
        wanting.ask()
        assert not slow.is_cut_off
        slow.arrived_bytes += PROGRESS_BYTES
        calls.after(PATIENCE_SECONDS)
    assert slow.is_cut_off
    assert wanting.has_room


def test_who_is_held_up_by_us_is_not_late():
    calls = Calls()
    memory = calls.memory(10 * MB)
    clients, wanting = crowd(memory)
    clients[0].is_held_up = True
    wanting.size = 8 * MB
    wanting.ask()
    memory.take(MB, ELSEWHERE)
    calls.after(PATIENCE_SECONDS)
    clients[0].is_held_up = False
    calls.after(PATIENCE_SECONDS - 1)
    assert [each.is_cut_off for each in clients] == [False] + [True] * 7
    calls.after(1)
    assert clients[0].is_cut_off


def test_who_has_its_turn_and_does_not_use_it_is_cut_off_however_little_it_has():
    """It was late, and kept since others had more; so it had its turn for ever."""
    calls = Calls()
    memory = calls.memory(10 * MB)
    memory.take(7 * MB, HERE)
    stalled, large = Client(memory, 3 * MB, THERE), Client(memory, 20 * MB)
    assert stalled.ask()
    assert not large.ask()
    calls.after(TURN_SECONDS)
    assert (stalled.is_cut_off, large.has_room) == (True, True)


def test_after_a_pause_of_the_process_everybody_has_his_time_again():
    """Timers run before the sockets are read."""
    calls = Calls()
    memory = calls.memory(10 * MB)
    clients, _ = crowd(memory)
    calls.after(1)
    calls.pass_by(5 * TURN_SECONDS)
    assert not any(each.is_cut_off for each in clients)
    calls.after(PATIENCE_SECONDS)
    assert all(each.is_cut_off for each in clients)


def test_a_pause_while_nobody_waits_is_left_out_too():
    calls = Calls()
    memory = calls.memory(10 * MB)
    holds = Client(memory, 7 * MB)
    assert holds.ask()
    for _ in range(3):
        calls.after(1)
        holds.arrived_bytes += MB
    calls.pass_by(5 * TURN_SECONDS)
    assert Client(memory, 7 * MB, THERE).ask(), "it has its turn"
    assert not Client(memory, 7 * MB, ELSEWHERE).ask()
    calls.after(2)
    assert not holds.is_cut_off


def test_who_has_gone_has_its_turn_until_what_it_sent_is_done():
    calls = Calls()
    memory = calls.memory(10 * MB)
    large, waits = Client(memory, 100 * MB), Client(memory, 100 * MB)
    assert large.ask()
    assert not waits.ask()
    large.is_held_up = True  # as it says from then on
    memory.leave(large, at_work=90 * MB)
    memory.give(10 * MB, HERE)
    calls.after(2 * TURN_SECONDS)
    assert memory.turn is large
    assert memory.has_room(7 * MB, THERE), "of what it holds nothing is others'"
    assert not memory.has_room(9 * MB, THERE)
    memory.give(90 * MB, HERE)
    memory.leave(large)
    calls.run()
    assert waits.has_room


def test_a_request_that_has_its_turn_is_answered_in_time_or_its_client_is_cut_off():
    calls = Calls()
    memory = calls.memory(10 * MB)
    large, waits = Client(memory, 100 * MB), Client(memory, 100 * MB)
    assert large.ask()
    memory.arrived(large)
    assert not waits.ask()
    calls.after(TURN_SECONDS - 1)
    assert not large.is_cut_off
    calls.after(1)
    assert (large.is_cut_off, waits.has_room) == (True, True)


def test_the_time_of_a_turn_begins_with_it():
    """Who had waited for as long as others may be silent was cut off when it was read from at last."""
    calls = Calls()
    memory = calls.memory(10 * MB)
    first, second, third = (Client(memory, 100 * MB) for _ in range(3))
    for each in (first, second, third):
        each.ask()
    calls.after(PATIENCE_SECONDS)
    assert first.is_cut_off
    assert second.has_room
    calls.after(PATIENCE_SECONDS - 1)
    assert not second.is_cut_off
    calls.after(1)
    assert second.is_cut_off
    assert third.has_room
