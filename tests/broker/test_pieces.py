"""Answers of very many items: others have their turns while they are made, and nobody makes what nobody takes."""

import asyncio
from collections import Counter

import pytest

from mainstem.broker.handlers import create_topics, describe_configs
from mainstem.broker.pieces import AT_ONCE
from mainstem.core import SystemClock
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
