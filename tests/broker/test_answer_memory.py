"""The budget of all answers: kept, and never the end of progress."""

from mainstem.broker.answer_memory import PATIENCE_SECONDS, AnswerMemory
from mainstem.core import ManualClock


class Connection:
    """Its client takes what the test says."""

    def __init__(self, unsent_bytes):
        self.unsent_bytes = unsent_bytes
        self.aborted = False

    def abort(self):
        self.aborted = True


def test_room_is_given_as_far_as_there_is_some():
    memory = AnswerMemory(10, ManualClock())
    assert memory.reserve(6) == 6
    assert memory.reserve(6) == 4
    assert memory.reserve(6) == 0
    memory.take(3)  # a first batch is read without room
    memory.give(6)
    assert (memory.reserve(6), memory.held) == (3, 10)


def test_who_takes_nothing_is_cut_off_where_room_is_wanted():
    clock = ManualClock()
    memory = AnswerMemory(10, clock)
    stuck, slow, done = (Connection(5) for _ in range(3))
    for each in (stuck, slow, done):
        memory.stopped(each)
    memory.goes_on(done)
    clock.advance_ms(int(PATIENCE_SECONDS * 1000))
    slow.unsent_bytes -= 1
    assert memory.reserve(10) == 10
    assert not stuck.aborted, "there was room"
    memory.reserve(1)
    assert [each.aborted for each in (stuck, slow, done)] == [True, False, False]
    memory.goes_on(stuck)
    clock.advance_ms(int(PATIENCE_SECONDS * 1000) - 1)
    memory.reserve(1)
    assert not slow.aborted, "it took something at the last look"
    clock.advance_ms(1000)
    memory.reserve(1)
    assert slow.aborted
