"""The budget of all requests: kept, and never the end of progress."""

from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.request_memory import RequestMemory


class Connection:
    """Receives a request in pieces, as far as it may read; what was received is held until it is answered."""

    def __init__(self, memory, pieces):
        self.memory = memory
        self.pieces = list(pieces)
        self.received = 0
        self.reading = True
        self.answered = False

    @property
    def unfinished(self):
        return bool(self.pieces) and self.received > 0

    def look_again(self):
        holds = 0 if self.answered else self.received
        self.reading = self.memory.admits(self, unfinished=self.unfinished, holds=holds)

    def receive(self):
        piece = self.pieces.pop(0)
        self.received += piece
        self.memory.take(piece)
        self.look_again()

    def answer(self):
        self.answered = True
        self.memory.give(self.received)
        self.look_again()


def test_whoever_waits_is_told_when_there_is_room():
    called = []
    memory = RequestMemory(10, called.append)
    first, second = Connection(memory, [10]), Connection(memory, [5])
    first.receive()
    second.look_again()
    assert not second.reading
    first.answer()
    assert called == [first.look_again, second.look_again]
    second.look_again()
    assert second.reading


def test_one_unfinished_request_goes_on_although_the_budget_is_used_up():
    memory = RequestMemory(10, lambda call: call())
    first, second = Connection(memory, [6, 6]), Connection(memory, [6, 6])
    first.receive()
    second.receive()
    assert [first.reading, second.reading] == [True, True], "nobody has asked since"
    first.look_again()
    second.look_again()
    assert [first.reading, second.reading].count(True) == 1
    memory.leave(first)
    second.look_again()
    assert second.reading, "the one that went on is gone"


def test_the_next_goes_on_when_the_one_before_it_is_answered():
    """As soon as one had arrived the next went on: all of them were held at once."""
    memory = RequestMemory(10, lambda call: call())
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
    assert [first.reading, third.reading].count(True) == 1


@given(
    requests=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=5), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_every_request_arrives_in_the_end(requests, order):
    calls = []
    limit = 30
    memory = RequestMemory(limit, calls.append)
    connections = [Connection(memory, pieces) for pieces in requests]
    while not all(each.answered for each in connections):
        moves = [each.receive for each in connections if each.pieces and each.reading]
        moves += [each.answer for each in connections if not each.pieces and not each.answered]
        moves += calls[:1]
        assert moves, "nobody can go on"
        move = order.choice(moves)
        if move in calls:
            calls.remove(move)
        move()
        # Each may read once more than it should before it asks, and one whole request goes on in any case.
        assert memory.held <= limit + 20 * len(connections) + 100
    assert memory.held == 0
