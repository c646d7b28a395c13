"""The budgets of all answers: kept, and never the end of progress."""

import pytest

from mainstem.broker.answer_memory import PATIENCE_SECONDS, AnswerMemory
from mainstem.core import ManualClock


class Connection:
    """Its client takes what the test says."""

    def __init__(self, memory, size=0, host="/127.0.0.1"):
        self.memory = memory
        self.client_host = host
        self.unsent_bytes = 0
        self.aborted = False
        if size:
            memory.hold(self, size)
            self.unsent_bytes = size

    def takes(self, size):
        """As the socket takes it; it is let go only when all has left."""
        self.unsent_bytes -= size

    def abort(self):
        self.aborted = True
        self.memory.leave(self)


def test_room_is_given_as_far_as_there_is_some():
    memory = AnswerMemory(10, ManualClock())
    assert memory.reserve(6) == 6
    assert memory.reserve(6) == 4
    assert memory.reserve(6) == 0
    memory.take(3)  # a first batch is read without room
    memory.give(6)
    assert (memory.reserve(6), memory.held) == (3, 10)


def test_what_a_client_has_taken_is_room_again():
    memory = AnswerMemory(10, ManualClock())
    client = Connection(memory, 6)
    memory.hold(client, 3)
    memory.let_go(client, 6)
    assert memory.held == 3
    memory.let_go(client, 3)
    memory.leave(client)
    assert memory.held == 0


def test_who_takes_nothing_is_cut_off_where_room_is_wanted():
    clock = ManualClock()
    memory = AnswerMemory(100, clock)
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
    clock.advance_ms(1000)
    memory.reserve(1)
    assert slow.aborted


def test_an_answer_that_waits_behind_a_request_of_its_own_client_is_not_taken_either():
    """Only clients whose sockets were full were cut off; these held what they had for as long as they liked."""
    clock = ManualClock()
    memory = AnswerMemory(100, clock)
    behind = Connection(memory)
    memory.hold(behind, 100)
    for _ in range(2):  # the first look finds that it is not sent yet
        clock.advance_ms(int(PATIENCE_SECONDS * 1000))
        memory.reserve(1)
    assert behind.aborted


def test_without_patience_it_is_the_address_with_most_whose_clients_make_room():
    clock = ManualClock()
    memory = AnswerMemory(800, clock, patience=0)
    other = Connection(memory, 150, host="/10.0.0.1")
    many = [Connection(memory, 100) for _ in range(6)]
    clock.advance_ms(1)
    many[0].takes(1)
    latest = Connection(memory, 100)
    assert [each.aborted for each in many] == [False, True, True, False, False, False], "an eighth is free"
    assert not any(each.aborted for each in (other, latest))
    assert memory.held == 650


@pytest.mark.parametrize("patience", [0, PATIENCE_SECONDS])
def test_one_answer_may_be_larger_than_all_the_room(patience):
    clock = ManualClock()
    memory = AnswerMemory(100, clock, patience=patience)
    large = Connection(memory, 1000)
    assert not large.aborted
    assert not memory.has_room
