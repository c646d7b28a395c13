"""Expressions of consumer groups: nobody who lives waits for long until they are resolved."""

import asyncio
import threading

import pytest

from mainstem.broker import patterns
from mainstem.broker.groups.consumer import expressions
from mainstem.broker.groups.consumer.messages import JOIN, Heartbeat
from mainstem.broker.groups.modern.partitions import each
from mainstem.broker.groups.modern.subscriptions import InvalidExpression
from mainstem.core import SystemClock
from mainstem.wire.errors import Code
from tests.support.broker import running, until


class _Slow:
    """Names are not matched until `goes_on` is set; expressions are read all the same."""

    def __init__(self, monkeypatch):
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.read = []
        whole_match = patterns.whole_match

        def slow(expression):
            matches = whole_match(expression)
            self.read.append(expression)
            return lambda name: self.goes_on.wait() and matches(name)

        monkeypatch.setattr(patterns, "whole_match", slow)
        monkeypatch.setattr(expressions, "_PATIENCE_SECONDS", 0.05)


@pytest.fixture
def slow(monkeypatch):
    found = _Slow(monkeypatch)
    yield found
    found.goes_on.set()


def a_beat(member_id, epoch=JOIN, regex=None):
    return Heartbeat(
        member_id=member_id,
        epoch=epoch,
        rebalance_timeout_ms=60_000,
        topics=None,
        regex=regex,
        reported={} if epoch == JOIN else None,
        client_id="c",
        client_host="/h",
    )


def numbers(answer):
    return None if answer.assignment is None else sorted(number for _, number in each(answer.assignment))


def told(tmp_path, story):
    async def run():
        async with running(tmp_path, SystemClock()) as broker:
            await broker.topics.create("topic", 1, {})
            await story(broker, broker.groups.consumer)

    asyncio.run(run())


def test_members_live_on_while_expressions_are_resolved_and_get_their_part_with_a_heartbeat_after(tmp_path, slow):
    """No heartbeat was answered after a topic was made, as long as others' expressions took: sessions ended."""

    async def story(broker, consumer):
        one = await consumer.heartbeat("g", a_beat("one", regex="t.*"))
        assert (one.epoch, numbers(one)) == (2, [0])
        slow.goes_on.clear()
        await broker.topics.create("two", 2, {})
        for _ in range(3):
            assert (await consumer.heartbeat("g", a_beat("one", 2))).epoch == 2
        with pytest.raises(InvalidExpression) as refused:
            await consumer.heartbeat("g", a_beat("other", regex="("))
        assert refused.value.code is Code.invalid_regular_expression
        slow.goes_on.set()
        await until(lambda: consumer.get("g").epoch == 3, "it is resolved, without a heartbeat")
        one = await consumer.heartbeat("g", a_beat("one", 2))
        assert (one.epoch, numbers(one)) == (3, [0, 0, 1])

    told(tmp_path, story)


def test_who_joins_with_an_expression_that_lasts_gets_its_part_with_a_heartbeat_after(tmp_path, slow):
    async def story(broker, consumer):
        slow.goes_on.clear()
        one = await consumer.heartbeat("g", a_beat("one", regex="t.*"))
        assert (one.epoch, numbers(one)) == (2, [])
        slow.goes_on.set()
        await until(lambda: consumer.get("g").epoch == 3, "it is resolved, without a heartbeat")
        one = await consumer.heartbeat("g", a_beat("one", 2))
        assert (one.epoch, numbers(one)) == (3, [0])

    told(tmp_path, story)


def test_the_expressions_of_a_group_are_resolved_once_at_a_time(tmp_path, slow):
    """Each heartbeat had them resolved anew."""

    async def story(broker, consumer):
        await consumer.heartbeat("g", a_beat("one", regex="t.*"))
        slow.goes_on.clear()
        await broker.topics.create("two", 2, {})
        slow.read.clear()
        await asyncio.gather(*(consumer.heartbeat("g", a_beat("one", 2)) for _ in range(3)))
        assert slow.read == ["t.*"]
        slow.goes_on.set()
        await until(lambda: consumer.get("g").epoch == 3, "it is resolved")
        assert slow.read == ["t.*"]

    told(tmp_path, story)


def test_what_is_resolved_when_the_group_has_gone_is_nobodys(tmp_path, slow):
    async def story(broker, consumer):
        slow.goes_on.clear()
        one = await consumer.heartbeat("g", a_beat("one", regex="t.*"))
        await consumer.heartbeat("g", a_beat("one", -1))
        await broker.groups.delete_group("g")
        slow.goes_on.set()
        await until(lambda: not consumer._expressions._going_on, "it is resolved")
        assert "g" not in broker.groups.groups
        assert one.epoch == 2

    told(tmp_path, story)


def test_members_do_not_wait_for_clients_that_list_transactions(tmp_path, slow):
    async def story(broker, consumer):
        slow.goes_on.clear()
        lists = [asyncio.ensure_future(broker.id_patterns.matching(".*", ["id"])) for _ in range(2)]
        await until(lambda: len(slow.read) == 2, "both threads are busy")
        one = asyncio.ensure_future(consumer.heartbeat("g", a_beat("one", regex="t.*")))
        await until(lambda: "t.*" in slow.read, "it has a thread")
        slow.goes_on.set()
        assert (await one).epoch == 2
        assert await asyncio.gather(*lists) == [{"id"}, {"id"}]

    told(tmp_path, story)
