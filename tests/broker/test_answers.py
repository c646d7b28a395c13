import asyncio
from datetime import timedelta

import pytest

from mainstem.broker.answers import Later, by_topic, milliseconds, then
from mainstem.core import TopicPartition
from mainstem.wire.errors import Code


def test_milliseconds_are_those_of_the_wire():
    assert milliseconds(timedelta(milliseconds=-1)) == -1
    assert milliseconds(timedelta(milliseconds=2**31 - 1)) == 2**31 - 1


@pytest.mark.parametrize("first", ["given", "asked"])
def test_who_waits_is_told_whichever_comes_first(first):
    told, later = [], Later()
    steps = [lambda: later.give(None), lambda: later.tell(told.append)]
    for step in steps if first == "given" else steps[::-1]:
        assert told == []
        step()
    assert told == [None]


def test_then_hands_on_results_errors_and_cancellation():
    async def story():
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(3)]
        made = [then(future, lambda number: number + 1) for future in futures]
        futures[0].set_result(1)
        futures[1].set_exception(ValueError("no"))
        futures[2].cancel()
        assert await made[0] == 2
        with pytest.raises(ValueError, match="no"):
            await made[1]
        with pytest.raises(asyncio.CancelledError):
            await made[2]
        unmakeable = loop.create_future()
        unmakeable.set_result(0)
        with pytest.raises(ZeroDivisionError):
            await then(unmakeable, lambda number: 1 / number)
        gone = loop.create_future()
        then(gone, str).cancel()
        gone.set_result(1)
        await asyncio.sleep(0)

    asyncio.run(story())


def test_answers_are_grouped_by_topic_in_order():
    codes = [
        (TopicPartition("a", 1), Code.none),
        (TopicPartition("b", 0), Code.invalid_request),
        (TopicPartition("a", 0), Code.none),
    ]
    assert by_topic(codes, name="n", partitions="p", index="i", code="c") == [
        {"n": "a", "p": [{"i": 1, "c": Code.none}, {"i": 0, "c": Code.none}]},
        {"n": "b", "p": [{"i": 0, "c": Code.invalid_request}]},
    ]
