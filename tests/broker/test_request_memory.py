"""The budget of all requests: kept, and never the end of progress."""

from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.request_memory import (
    ANSWER_SECONDS,
    PATIENCE_SECONDS,
    PROGRESS_BYTES,
    SHARE,
    SMALL_BYTES,
    RequestMemory,
)
from mainstem.core import ManualClock

UNIT = SMALL_BYTES  # pieces and limits are so many of these: none is small


class Calls:
    """What is to be called soon, and later."""

    def __init__(self):
        self.clock = ManualClock()
        self.soon = []
        self.later = []

    def memory(self, limit):
        """A budget of which one address may have `limit`."""
        of_all = limit * (SHARE + 1) // SHARE
        return RequestMemory(of_all, self.clock, self.soon.append, lambda _, call: self.later.append(call))

    def run(self):
        while self.soon:
            self.soon.pop(0)()

    def after(self, seconds):
        """Let time pass, and what was to be called by then be called."""
        self.clock.advance_ms(round(seconds * 1000))
        calls, self.later = self.later, []
        for call in calls:
            call()
        self.run()


class Connection:
    """Receives a request in pieces, as far as it may read; what was received is held until it is answered."""

    def __init__(self, memory, pieces, *, needs_room=False, host="/127.0.0.1"):
        self.memory = memory
        self.client_host = host
        self.pieces = [piece * UNIT for piece in pieces]
        self.needs_room = needs_room  # for the next piece, before it reads on
        self.received = 0
        self.reading = True
        self.answered = False
        self.asks = False  # a request before this one has no answer yet
        self.is_cut_off = False
        self.unread = 0

    @property
    def unfinished(self):
        return bool(self.pieces) and self.received > 0

    @property
    def arrived_bytes(self):
        return self.received if self.unfinished else 0

    @property
    def missing_bytes(self):
        return sum(self.pieces) if self.unfinished else 0

    @property
    def unread_bytes(self):
        return self.unread

    def look_again(self):
        holds = 0 if self.answered else self.received
        needs = self.pieces[0] if self.unfinished and self.needs_room else 0
        self.reading = self.memory.admits(self, unfinished=self.unfinished, holds=holds, needs=needs, asks=self.asks)

    def abort(self):
        self.is_cut_off = True
        self.memory.give(self.received, self.client_host)
        self.memory.leave(self)

    def receive(self):
        piece = self.pieces.pop(0)
        self.received += piece
        self.memory.take(piece, self.client_host)
        self.look_again()

    def answer(self):
        self.answered = True
        self.memory.give(self.received, self.client_host)
        self.look_again()


def test_whoever_waits_is_told_when_there_is_room():
    calls = Calls()
    memory = calls.memory(3 * UNIT)
    first, second = Connection(memory, [3]), Connection(memory, [1])
    first.receive()
    second.look_again()
    assert not second.reading
    first.answer()
    calls.run()
    assert second.reading


def test_one_unfinished_request_goes_on_although_the_budget_is_used_up():
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    first, second = Connection(memory, [6, 6]), Connection(memory, [6, 6])
    first.receive()
    second.receive()
    first.look_again()
    second.look_again()
    assert [first.reading, second.reading].count(True) == 1
    going_on, waiting = (first, second) if first.reading else (second, first)
    memory.leave(going_on)
    waiting.look_again()
    assert waiting.reading, "the one that went on is gone"


def test_the_next_goes_on_when_the_one_before_it_is_answered():
    """As soon as one had arrived the next went on: all of them were held at once."""
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    connections = [Connection(memory, [6, 6]) for _ in range(3)]
    for each in connections:
        each.receive()
    first, second, third = connections
    first.look_again()
    assert [each.reading for each in connections] == [False, True, False]
    second.receive()
    third.look_again()
    assert [each.reading for each in connections] == [False, False, False]
    second.answer()
    calls.run()
    assert [first.reading, third.reading].count(True) == 1


def test_who_waits_for_an_answer_has_no_turn():
    """Behind a fetch that waited for an hour a request of the whole budget waited too; nobody else was read from."""
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    waits, other = Connection(memory, [10, 20]), Connection(memory, [2, 2], host="/10.0.0.9")
    waits.asks = True
    waits.receive()
    assert not waits.reading
    for _ in range(5):
        memory.take(UNIT, other.client_host)
    other.receive()
    assert other.reading
    other.receive()
    memory.give(5 * UNIT, other.client_host)
    other.answer()
    waits.asks = False
    waits.look_again()
    assert waits.reading


def test_the_turn_ends_with_the_answer_whatever_else_keeps_its_client_from_reading():
    """The turn of who paused was over: one after the other became whole, and all were held."""
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    connections = [Connection(memory, [6, 20]) for _ in range(5)]
    for each in connections:
        each.receive()
    connections[0].look_again()  # there was room when it began
    (turn,) = (each for each in connections if each.reading)
    turn.receive()
    memory.pause(turn, unfinished=False, holds=turn.received)  # as many requests as it may have
    calls.run()
    for each in connections:
        if each is not turn:
            each.look_again()
            assert not each.reading
    assert memory.held <= (5 * 6 + 20) * UNIT
    turn.answered = True
    memory.give(turn.received, turn.client_host)
    memory.pause(turn, unfinished=False, holds=0)
    calls.run()
    assert [each.reading for each in connections].count(True) == 1 + turn.reading


def test_what_follows_a_request_that_had_a_turn_has_none():
    """Behind it a client could send a fetch that waits for an hour, and sixty more requests of a hundred megabytes."""
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    first, other = Connection(memory, [12, 1]), Connection(memory, [2, 2])
    first.receive()
    other.receive()
    first.receive()  # it is whole, and has no answer yet
    first.pieces = [1, 1]
    first.look_again()
    assert not first.reading
    assert memory.room(first, UNIT) == 0
    first.answered = True
    first.look_again()  # what follows is held still
    calls.run()
    assert other.reading
    calls.after(ANSWER_SECONDS)
    assert not first.is_cut_off


def test_a_request_that_holds_all_is_answered_in_time_or_its_client_is_cut_off():
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    large, waits = Connection(memory, [12, 20]), Connection(memory, [2, 2])
    large.receive()
    waits.receive()
    assert (large.reading, waits.reading) == (True, False)
    large.receive()
    waits.unread = waits.missing_bytes
    calls.after(ANSWER_SECONDS - 1)
    assert not large.is_cut_off
    calls.after(1)
    assert (large.is_cut_off, waits.reading) == (True, True)


def test_the_next_is_the_one_that_lacks_least():
    """Forty clients with fifty megabytes announced, and a byte now and then, had their ten seconds each before it."""
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    trickling = [Connection(memory, [3, 3_000]) for _ in range(5)]
    honest = Connection(memory, [2, 20])
    honest.unread = 20 * UNIT
    for each in (*trickling, honest):
        each.receive()
        each.unread = each.unread or 20
    assert [each.reading for each in (*trickling, honest)].count(True) == 4, "room for three, and one's turn"
    assert not honest.reading
    calls.after(PATIENCE_SECONDS)
    assert honest.reading
    assert [each.is_cut_off for each in (*trickling, honest)] == [True] * 5 + [False]


def test_who_has_much_more_to_give_is_not_cut_off_because_nobody_goes_on():
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    stalled, alive = Connection(memory, [12, 1_000]), Connection(memory, [2, 1_000])
    stalled.receive()
    alive.receive()
    alive.unread = 65_536
    assert not alive.reading
    calls.after(PATIENCE_SECONDS)
    assert (stalled.is_cut_off, alive.is_cut_off, alive.reading) == (True, False, True)


def test_small_requests_are_read_although_the_budget_is_used_up_but_not_without_an_end():
    """Where unfinished requests held all of it nobody could log in, or say that it lives."""
    memory = Calls().memory(8 * UNIT)
    Connection(memory, [20, 1]).receive()
    small = [Connection(memory, [0.5, 0.25]) for _ in range(4)]
    for each in small:
        each.look_again()
    assert [each.reading for each in small] == [True, True, False, False]
    for each in small[:2]:
        each.receive()
        assert each.reading
        each.receive()
    assert memory.held == 21.5 * UNIT
    memory.leave(small[0])
    small[2].look_again()
    assert small[2].reading


def test_who_leaves_a_request_unfinished_is_cut_off_where_others_want_the_room():
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    stalled = [Connection(memory, [4, 4]) for _ in range(2)]
    for each in stalled:
        each.receive()
    calls.after(10 * PATIENCE_SECONDS)
    assert not any(each.is_cut_off for each in stalled), "nobody wants the room"
    other = Connection(memory, [6, 1])
    other.receive()
    third = Connection(memory, [2, 2])
    third.receive()
    assert (other.reading, third.reading) == (True, False)
    calls.after(1)
    assert [each.is_cut_off for each in stalled] == [True, True]
    assert (other.reading, third.reading) == (True, True)


def test_who_goes_on_is_not_cut_off_nor_who_waits_for_it():
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    progress = PROGRESS_BYTES // UNIT
    busy, waits = Connection(memory, [12] + [progress] * 5), Connection(memory, [2, 2])
    busy.receive()
    waits.receive()
    assert (busy.reading, waits.reading) == (True, False)
    for _ in range(4):
        busy.receive()
        calls.after(PATIENCE_SECONDS)
        assert not busy.is_cut_off
        assert not waits.is_cut_off


def test_where_nobody_goes_on_what_waits_is_cut_off_too():
    """Each of two thousand would have had its turn, and its ten seconds."""
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    stalled = [Connection(memory, [6, 6]) for _ in range(10)]
    for each in stalled:
        each.receive()
    calls.after(PATIENCE_SECONDS)
    assert all(each.is_cut_off for each in stalled)
    assert memory.held == 0


def test_who_needs_more_room_than_there_is_waits_for_it_or_for_its_turn():
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    first, second = (Connection(memory, [3, 5, 1], needs_room=True) for _ in range(2))
    first.receive()
    second.receive()
    assert first.reading, "there was room"
    assert second.reading, "it is its turn"
    first.look_again()
    assert not first.reading, "only four are left"
    assert memory.room(first, 8 * UNIT) == 4 * UNIT
    assert memory.room(second, 8 * UNIT) == 8 * UNIT
    second.receive()
    second.receive()
    second.answer()
    calls.run()
    assert first.reading


def test_who_fills_it_from_one_address_leaves_room_for_others():
    """Thirty clients of one address kept everybody from logging in, eighty held up everybody's large requests."""
    calls = Calls()
    memory = calls.memory(80 * UNIT)
    greedy = [Connection(memory, [1, 8, 8], host="/10.0.0.5", needs_room=True) for _ in range(40)]
    for each in greedy:
        each.receive()
    for each in greedy * 2:
        each.look_again()
        if each.reading and each.pieces:
            each.receive()
    assert memory.held <= 80 * UNIT + sum(max(each.pieces, default=0) for each in greedy[:1]), "and one's turn"
    quiet = [Connection(memory, [], host="/10.0.0.5") for _ in range(100)]
    for each in quiet:
        each.look_again()
    good = Connection(memory, [1, 1, 1], host="/10.0.0.6", needs_room=True)
    other = Connection(memory, [0.5, 0.25], host="/10.0.0.7")
    for _ in range(3):
        good.look_again()
        assert good.reading
        good.receive()
    other.look_again()
    assert other.reading


def test_a_wait_ends_for_those_alone_for_whom_there_is_room_now():
    calls = Calls()
    memory = calls.memory(10 * UNIT)
    held = [Connection(memory, [1]) for _ in range(10)]
    for each in held:
        each.receive()
    waiting = [Connection(memory, [2, 1], needs_room=True) for _ in range(5)]
    for each in waiting:
        each.received = 2 * UNIT
        each.look_again()
    assert [each.reading for each in waiting] == [True, False, False, False, False], "it is the first one's turn"
    for each in held[:5]:
        each.answer()
    assert len(calls.soon) == 1, "all that became free in a turn is looked at once"
    calls.run()
    assert [each.reading for each in waiting] == [True, True, True, False, False]


def test_a_small_budget_is_one():
    for limit in range(1, 20):
        memory = RequestMemory(limit, ManualClock(), [].append, lambda *_: None)
        first = Connection(memory, [1])
        first.look_again()
        assert first.reading


@given(
    requests=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=5), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
    needs_room=st.booleans(),
    addresses=st.integers(1, 3),
)
def test_every_request_arrives_in_the_end(requests, order, needs_room, addresses):
    calls = Calls()
    limit = 30
    memory = calls.memory(limit * UNIT)
    connections = [
        Connection(memory, pieces, needs_room=needs_room, host=f"/10.0.0.{number % addresses}")
        for number, pieces in enumerate(requests)
    ]
    while not all(each.answered for each in connections):
        moves = [each.receive for each in connections if each.pieces and each.reading]
        moves += [each.answer for each in connections if not each.pieces and not each.answered]
        moves += calls.soon[:1]
        assert moves, "nobody can go on"
        move = order.choice(moves)
        if move in calls.soon:
            calls.soon.remove(move)
        move()
        # Each may read once more than it should before it asks, and one whole request goes on in any case.
        assert memory.held <= (limit + 20 * len(connections) + 100) * UNIT
    assert memory.held == 0
