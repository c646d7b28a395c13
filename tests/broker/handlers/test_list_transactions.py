"""ListTransactions: transactional ids that pass the filters."""

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from mainstem.broker import patterns
from mainstem.core import SystemClock
from mainstem.wire.errors import Code
from tests.support.broker import CONFIG, Client, running, until
from tests.support.raw import producer_of


@pytest.mark.parametrize("version", range(3))
def test_every_version(raw, topic, version):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    raw.add(name, producer, topic, 0)
    answer = raw.call(66, version, state_filters=["Ongoing", "Sleeping", "Dead"], producer_id_filters=[producer[0]])
    assert (answer.error_code, answer.unknown_state_filters) == (Code.none, ("Sleeping",))
    assert [(each.transactional_id, each.transaction_state) for each in answer.transaction_states] == [
        (name, "Ongoing")
    ]


def test_by_duration_those_that_began_before_and_as_in_kafka_those_that_never_did(raw, topic):
    idle, open_now, ended = names = [uuid.uuid4().hex for _ in range(3)]
    raw.init(idle)
    for name in (open_now, ended):
        producer = producer_of(raw.init(name))
        raw.add(name, producer, topic, 0)
    raw.end(ended, producer, commit=True)
    for duration, expected in ((-1, set(names)), (3_600_000, {idle})):
        found = raw.call(66, 1, duration_filter=duration).transaction_states
        assert {each.transactional_id for each in found} & set(names) == expected


def test_a_pattern_that_is_none(raw):
    for pattern in ("(", r"(a)\1"):  # RE2 has no references to what was matched
        assert raw.call(66, 2, transactional_id_pattern=pattern).error_code is Code.invalid_regular_expression


def test_a_pattern_takes_time_that_grows_with_the_text_alone(raw):
    """Python's `re` doubled its time with each letter: 40 of them stopped the log for good."""
    name = "a" * 40 + "!"
    raw.init(name)
    answer = raw.call(66, 2, transactional_id_pattern="(a+)+")
    assert (answer.error_code, answer.transaction_states) == (Code.none, ())
    answer = raw.call(66, 2, transactional_id_pattern="(a+)+!")
    assert [each.transactional_id for each in answer.transaction_states] == [name]


def test_a_pattern_is_for_the_whole_id_and_beside_the_other_filters(raw):
    one, other = (f"{uuid.uuid4().hex}-{place}" for place in ("berlin", "bern"))
    producer = producer_of(raw.init(one))
    raw.init(other)
    for filters, expected in (({}, {one, other}), ({"producer_id_filters": [producer[0]]}, {one})):
        answer = raw.call(66, 2, transactional_id_pattern=".*-ber.+", **filters)
        assert {each.transactional_id for each in answer.transaction_states} == expected
    assert raw.call(66, 2, transactional_id_pattern="-ber").transaction_states == ()


class _Slow:
    """A pattern that takes until it is told to go on."""

    def __init__(self, monkeypatch):
        self.looked_at = []
        self.goes_on = threading.Event()
        monkeypatch.setattr(patterns, "whole_match", lambda _: self.matches)

    def matches(self, name):
        self.looked_at.append(name)
        self.goes_on.wait()
        return True


@asynccontextmanager
async def _with_transactions(tmp_path, count):
    users = {"protocol": "SASL_PLAINTEXT", "sasl_enabled_mechanisms": ("PLAIN",), "users": {"alice": "wonderland"}}
    async with running(tmp_path, SystemClock(), replace(CONFIG, **users)) as broker:
        clients = []

        async def known():
            client = await Client.connect(broker)
            clients.append(client)
            await client.call(17, 1, mechanism="PLAIN")
            assert (await client.call(36, 1, auth_bytes=b"\0alice\0wonderland")).error_code is Code.none
            return client

        client = await known()
        for number in range(count):
            made = await client.call(22, 4, transactional_id=f"t{number}", transaction_timeout=60_000)
            assert made.error_code is Code.none
        try:
            yield broker, known
        finally:
            for each in clients:
                each.close()


def test_who_logs_in_does_not_wait_for_the_patterns_of_others(tmp_path, monkeypatch):
    slow = _Slow(monkeypatch)

    async def check() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        async with _with_transactions(tmp_path, 1) as (_, known):
            clients = [await known() for _ in range(4)]
            try:
                answers = [asyncio.ensure_future(each.call(66, 2, transactional_id_pattern=".*")) for each in clients]
                await until(lambda: len(slow.looked_at) == 2, "as many patterns as there are threads")
                await asyncio.wait_for(known(), 30)
            finally:
                slow.goes_on.set()
            assert [len((await each).transaction_states) for each in answers] == [1, 1, 1, 1]

    asyncio.run(check())


def test_once_the_client_has_gone_its_pattern_is_tried_on_no_further_id(tmp_path, monkeypatch):
    slow = _Slow(monkeypatch)
    monkeypatch.setattr(patterns, "_TURN_SECONDS", 0)

    async def check() -> None:
        async with _with_transactions(tmp_path, 5) as (broker, known):
            client = await known()
            before = len(broker.connections)
            client.send(66, 2, transactional_id_pattern=".*")
            await until(lambda: len(slow.looked_at) == 1, "the first")
            client.close()
            await until(lambda: len(broker.connections) < before, "it has gone")
            slow.goes_on.set()
            await until(lambda: all(each.get_name() != "api 66" for each in asyncio.all_tasks()), "it is over")

    asyncio.run(check())
    assert len(slow.looked_at) == 1
