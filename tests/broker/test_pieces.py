"""Answers of very many items: others have their turns while they are made, and nobody makes what nobody takes."""

import asyncio
from collections import Counter

import pytest

from mainstem.broker.config import BrokerConfig
from mainstem.broker.handlers import create_topics, describe_configs
from mainstem.broker.pieces import AT_ONCE
from mainstem.core import ManualClock, SystemClock
from mainstem.wire.errors import Code
from tests.support.broker import Client, running, until

GROUP = 32
MANY = 20 * AT_ONCE
SETTINGS = (
    32,
    4,
    {"resources": [{"resource_type": GROUP, "resource_name": f"g{number}"} for number in range(MANY)]},
)
DRY_RUN = (
    19,
    7,
    {
        "topics": [{"name": f"t{number}", "num_partitions": 1, "replication_factor": 1} for number in range(MANY)],
        "timeout": 1000,
        "validate_only": True,
    },
)
both = pytest.mark.parametrize(
    ("asked", "module", "makes"),
    [(SETTINGS, describe_configs, "_describe"), (DRY_RUN, create_topics, "_partition_count")],
    ids=["settings", "dry run"],
)


class _Turns:
    """Of the loop; `called` is in which of them a function was called, once for each call."""

    def __init__(self, monkeypatch, module, name):
        self.number = 0
        self.called = []
        self.then = lambda: None
        makes = getattr(module, name)

        def make(*args, **named):
            self.called.append(self.number)
            if len(self.called) == 1:
                self.then()
            return makes(*args, **named)

        monkeypatch.setattr(module, name, make)
        self._next()

    def _next(self):
        self.number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def end(self):
        self._handle.cancel()


@both
def test_others_have_their_turns_meanwhile(tmp_path, monkeypatch, asked, module, makes):
    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            client = await Client.connect(broker)
            turns = _Turns(monkeypatch, module, makes)
            api_key, version, fields = asked
            answer = await client.call(api_key, version, **fields)
            turns.end()
            items = answer.results if api_key == 32 else answer.topics
            assert [each.error_code for each in items] == MANY * [Code.none]
            assert all(each.configs for each in items)
            assert max(Counter(turns.called).values()) <= AT_ONCE
            assert broker.unasked_memory.held == 0
            client.close()

    asyncio.run(check())


@both
def test_nothing_more_is_made_once_the_client_has_gone(tmp_path, monkeypatch, asked, module, makes):
    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            client = await Client.connect(broker)
            turns = _Turns(monkeypatch, module, makes)
            turns.then = client.close
            api_key, version, fields = asked
            client.send(api_key, version, **fields)
            await until(lambda: bool(turns.called), "it has begun")
            await until(lambda: not broker.connections, "the client has gone")
            await until(lambda: all(each.get_name() != f"api {api_key}" for each in asyncio.all_tasks()), "it is over")
            turns.end()
            assert len(turns.called) < MANY
            assert broker.unasked_memory.held == 0

    asyncio.run(check())


def test_what_is_made_counts_as_memory_of_answers_before_it_is_whole(tmp_path, monkeypatch):
    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            client = await Client.connect(broker)
            held = []
            describe = describe_configs._describe

            def describe_and_note(*args, **named):
                held.append(broker.unasked_memory.held)
                return describe(*args, **named)

            monkeypatch.setattr(describe_configs, "_describe", describe_and_note)
            api_key, version, fields = SETTINGS
            await client.call(api_key, version, **fields)
            assert held == sorted(held)
            assert len(set(held)) == MANY // AT_ONCE
            client.close()

    asyncio.run(check())


def _with_room_for(answers, of_bytes):
    """A budget for answers that is so many times so much."""
    return BrokerConfig(port=0, queued_max_request_bytes=max(int(answers * of_bytes) // 2, 1))


class Other:
    """A connection from another address that has an answer, and has taken nothing of it yet."""

    client_host = "/10.0.0.1"
    untaken_bytes = 1
    aborted = False

    def abort(self):
        self.aborted = True


async def _bytes_of_settings(tmp_path):
    async with running(tmp_path, SystemClock()) as broker:
        held, end_making = [], broker.unasked_memory.end_making

        def ends(taker):
            held.append(broker.unasked_memory.held)
            end_making(taker)

        broker.unasked_memory.end_making = ends
        client = await Client.connect(broker)
        await client.call(*SETTINGS[:2], **SETTINGS[2])
        client.close()
        return held[0]


def test_while_the_room_is_used_up_answers_are_made_one_after_the_other(tmp_path):
    async def check() -> None:
        size = await _bytes_of_settings(tmp_path / "a")
        async with running(tmp_path / "b", SystemClock(), _with_room_for(2, size)) as broker:
            memory, most = broker.unasked_memory, 0
            make = memory.make

            def made(taker, more):
                nonlocal most
                make(taker, more)
                most = max(most, memory.held)

            memory.make = made
            clients = [await Client.connect(broker) for _ in range(6)]
            for client in clients:
                client.send(*SETTINGS[:2], **SETTINGS[2])
            leaves = clients.pop()
            await until(lambda: not memory.has_room, "the room is used up")
            leaves.close()
            for client in clients:
                answer = await client.answer(*SETTINGS[:2])
                assert [each.error_code for each in answer.results] == MANY * [Code.none]
                client.close()
            assert most < 4.1 * size
            assert memory.held == 0

    asyncio.run(check())


def test_who_asks_for_far_more_than_there_is_room_for_is_cut_off_and_nobody_else(tmp_path):
    """All clients of other addresses were, and it went on."""

    async def check() -> None:
        size = await _bytes_of_settings(tmp_path / "a")
        async with running(tmp_path / "b", ManualClock(), _with_room_for(0.3, size)) as broker:
            other = Other()
            broker.unasked_memory.hold(other, size // 10)
            client = await Client.connect(broker)
            client.send(*SETTINGS[:2], **SETTINGS[2])
            with pytest.raises(asyncio.IncompleteReadError):
                await client.answer(*SETTINGS[:2])
            await until(lambda: not broker.connections, "it has gone")
            assert not other.aborted
            assert broker.unasked_memory.held == size // 10
            client.close()

    asyncio.run(check())
