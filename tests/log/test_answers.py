"""Who is told when: of appends, of their repetitions, and after a failure."""

from mainstem.log import AppendResult, Producer, StorageError
from mainstem.log.answers import Answers


def result(last_offset: int) -> AppendResult:
    return AppendResult(last_offset, last_offset, -1, 0)


class Caller:
    """Keeps what it was told."""

    def __init__(self):
        self.told = []

    def __call__(self, appended, error):
        self.told.append((appended.last_offset, error))


def test_what_is_below_the_high_watermark_is_acknowledged():
    answers, first, second, again = Answers(), Caller(), Caller(), Caller()
    answers.add(result(0), (), first)
    answers.add(result(1), (), second)
    answers.repeat(result(1), 0, again)
    answers.give(1)
    assert (first.told, second.told, again.told) == ([(0, None)], [], [])
    answers.give(2)
    assert (first.told, second.told, again.told) == ([(0, None)], [(1, None)], [(1, None)])


def test_a_repetition_of_what_is_durable_is_answered_at_once():
    answers, again = Answers(), Caller()
    answers.repeat(result(3), 4, again)
    assert again.told == [(3, None)]


def test_a_caller_that_fails_disturbs_nobody():
    answers, stays = Answers(), Caller()
    answers.add(result(0), (), lambda appended, error: 1 / 0)
    answers.add(result(1), (), stays)
    answers.give(2)
    assert stays.told == [(1, None)]


def test_all_who_wait_are_told_once_and_the_way_back_is_known_until_it_is_taken():
    before = Producer(1, 0)
    answers, callers, full = Answers(), [Caller(), Caller(), Caller()], StorageError("full")
    answers.add(result(0), ((1, None),), callers[0])
    answers.add(result(1), ((1, before), (2, None)), callers[1])
    answers.repeat(result(1), 0, callers[2])
    answers.fail(full)
    assert [each.told for each in callers] == [[(0, full)], [(1, full)], [(1, full)]]
    assert list(answers.producers_before()) == [(1, before), (2, None), (1, None)]
    answers.fail(StorageError("again"))
    answers.give(1)  # what was queued is written all the same
    assert list(answers.producers_before()) == [(1, before), (2, None)]
    answers.forget()
    assert list(answers.producers_before()) == []
    answers.give(2)
    assert [len(each.told) for each in callers] == [1, 1, 1]
