"""Who is answered when: futures of appends, of their repetitions, and after a failure."""

import asyncio

import pytest

from mainstem.log import AppendResult, Producer, StorageError
from mainstem.log.answers import Answers
from tests.log.support import run


def result(last_offset: int) -> AppendResult:
    return AppendResult(last_offset, last_offset, -1, 0)


def with_answers(test):
    async def story():
        await test(Answers(asyncio.get_running_loop()))

    run(story())


def test_what_is_below_the_high_watermark_is_acknowledged():
    async def test(answers):
        first, second = answers.add(result(0), ()), answers.add(result(1), ())
        again = answers.repeat(result(1), 0)
        answers.give(1)
        assert (first.done(), second.done(), again.done()) == (True, False, False)
        answers.give(2)
        assert (second.result(), again.result()) == (result(1), result(1))

    with_answers(test)


def test_a_repetition_of_what_is_durable_is_answered_at_once():
    async def test(answers):
        assert answers.repeat(result(3), 4).result() == result(3)

    with_answers(test)


def test_a_caller_that_is_gone_disturbs_nobody():
    async def test(answers):
        gone, stays = answers.add(result(0), ()), answers.add(result(1), ())
        gone.cancel()
        answers.give(2)
        assert stays.result() == result(1)

    with_answers(test)


def test_all_who_wait_are_told_and_the_way_back_is_known_until_it_is_taken():
    before = Producer(1, 0)

    async def test(answers):
        waiting = [answers.add(result(0), ((1, None),)), answers.add(result(1), ((1, before), (2, None)))]
        waiting.append(answers.repeat(result(1), 0))
        answers.fail(StorageError("full"))
        for each in waiting:
            with pytest.raises(StorageError, match="full"):
                each.result()
        assert list(answers.producers_before()) == [(1, before), (2, None), (1, None)]
        answers.forget()
        assert list(answers.producers_before()) == []
        answers.give(2)

    with_answers(test)
