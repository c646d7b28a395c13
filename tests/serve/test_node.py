"""What a read waits for, and what it says that it has shown; the rest of a node is tested over HTTP (test_app.py)."""

import asyncio
import threading
import uuid

import pytest

from mainstem.client.basis import Basis, OtherLog
from mainstem.client.catalog import write_catalog
from mainstem.client.internal import CATALOG
from mainstem.client.progress import Marker, Progress
from mainstem.client.topics import end_offsets, ensure_topic
from mainstem.serve import builds
from mainstem.serve.control import Learned
from mainstem.serve.node import Node
from tests.support.waiting import wait_until


def test_a_read_waits_for_the_catalog_as_far_as_its_token_has_seen_it(fleet, tmp_path):
    async def run():
        node = Node("n", fleet.config(), fleet.connection, tmp_path)
        await node.open()
        try:
            view = node.views["planes"]
            async with asyncio.timeout(60):
                seen = node.seen(node.shown(await node.covers(view, Basis(node.log))))
                assert seen[CATALOG][0] >= end_offsets(fleet.connection, CATALOG)[0] - 1
                ahead = end_offsets(fleet.connection, CATALOG)[0] + 1
                waiting = asyncio.ensure_future(node.covers(view, Basis(node.log, {CATALOG: {0: ahead}})))
                await asyncio.sleep(0)
                assert not waiting.done()
                assert "the catalog is read up to" in node.how_far(view, Basis(node.log, {CATALOG: {0: ahead}}))
                await asyncio.to_thread(write_catalog, fleet.connection, {"topic:other": {}, "topic:another": {}})
                await waiting
            with pytest.raises(OtherLog):
                await node.covers(view, Basis("other"))
        finally:
            await node.close()
        assert {state.name for state in node.states} == {"view planes@n", "view names@n", "view flights@n"}

    asyncio.run(run())


def test_what_a_view_waits_for_is_told_until_it_is_there(fleet, tmp_path):
    topic, told = f"later-{uuid.uuid4().hex[:8]}", []
    config = fleet.config(later={"kind": "sql", "topics": topic})

    async def run():
        node = Node("n", config, fleet.connection, tmp_path, on_change=told.append)
        await node.open()
        try:
            async with asyncio.timeout(60):
                await asyncio.to_thread(wait_until, lambda: any(is_waiting(each) for each in told), "it is told")
                ensure_topic(fleet.connection, topic, 1)
                write_catalog(fleet.connection, {f"topic:{topic}": {"kind": "stream"}})
                await node.covers(node.views["later"], Basis(node.log))
        finally:
            await node.close()
        assert told[-1][0].state == "stopped"

    def is_waiting(states):
        return [(each.state, each.error) for each in states] == [
            ("idle", f"topic {topic} is not in the catalog yet: nothing has written it")
        ]

    asyncio.run(run())


def test_an_answer_is_of_a_known_position_of_the_catalog_from_the_first_on(fleet, tmp_path, monkeypatch):
    go_on, save = threading.Event(), builds.save

    def slow(*given):
        go_on.wait(60)
        save(*given)

    monkeypatch.setattr(builds, "save", slow)

    async def run():
        node = Node("n", fleet.config(), fleet.connection, tmp_path)
        await node.open()
        try:
            async with asyncio.timeout(60):
                view = node.views["planes"]
                asking = asyncio.ensure_future(node.covers(view, Basis(node.log)))
                while view.current is None:
                    await node._changes.next()
                await view.current.ready()
                await node._changes.next()
                assert not asking.done()
                go_on.set()
                assert node.shown(await asking)[CATALOG][0] > 0
        finally:
            go_on.set()
            await node.close()

    asyncio.run(run())


def test_batches_that_are_told_with_the_last_commit_are_known_one_by_one(fleet, tmp_path):
    """All that was there at the start may come at once."""
    node = Node("n", fleet.config(), fleet.connection, tmp_path)
    catalog = {"job:j": {"versions": {"1": {"output": "out", "inputs": {"in": "in"}}}}}
    progress = [
        Progress("j", "1", number, {"in": {0: number + 1}}, {}, {"out": {0: number + 1}}) for number in range(3)
    ]
    marker = Marker("j", "1", "id", 2, {"in": progress[2].basis}, ends=progress[2].ends)
    node._learn(Learned(catalog, progress, [marker], position=1, caught_up=False))
    for number in range(3):
        assert node.lineage.needed("out", {"in": {0: number + 1}}) == {0: number + 1}
