import asyncio

import pytest

from mainstem.serve.build import Build, NotReady, asked
from mainstem.serve.config import ViewConfig
from mainstem.serve.errors import IndexUnavailable
from mainstem.serve.keeper import Lost, Opened, Reached
from mainstem.serve.targets import Target
from mainstem.serve.waits import Overtaken
from mainstem.web.threads import Threads


def test_a_view_can_be_asked_once_it_is_as_new_as_the_log_was():
    async def run():
        view, index = Build("v", ViewConfig("sql", "t"), "v", Target({"t": "t"})), object()
        with pytest.raises(NotReady, match="view v: its topics are not known yet"):
            view.index()
        ready = asyncio.ensure_future(view.ready())
        view.see(Opened(index, {"t": {0: 2}}, {"t": {0: 5}}))
        with pytest.raises(NotReady):
            view.index()
        assert view.behind == {"t": {0: [2, 5]}}
        view.see(Reached({"t": {0: 5}}))
        await asyncio.wait_for(ready, 5)
        assert view.index() is index
        view.see(Lost())
        with pytest.raises(NotReady):
            view.index()
        view.see(Opened(index, {"t": {0: 3}}, {"t": {0: 9}}))  # it was restored, and is older than it was
        assert view.position == {"t": {0: 3}}
        assert not view.is_ready

    asyncio.run(run())


def test_an_index_that_is_closed_while_it_is_asked_is_unavailable():
    async def run():
        def closed():
            raise RuntimeError("DB already closed")

        with pytest.raises(IndexUnavailable, match="was closed while it was asked"):
            await asked(Threads("it", 1, 1), 10.0, closed)

    asyncio.run(run())


def test_who_waits_for_an_index_that_is_overtaken_is_told():
    async def run():
        build = Build("v", ViewConfig("sql", "t"), "v", Target({"t": "t"}))
        waiting = [asyncio.ensure_future(each) for each in (build.ready(), build.reached({"t": {0: 5}}))]
        await asyncio.sleep(0)
        build.overtake()
        for each in waiting:
            with pytest.raises(Overtaken):
                await each
        assert build.is_overtaken
        build.take_over()
        assert not build.is_overtaken

    asyncio.run(run())


def test_an_index_that_is_dropped_is_closed_when_nobody_asks_it_any_more():
    async def run():
        build = Build("v", ViewConfig("sql", "t"), "v", Target({"t": "t"}))
        with build.held(), build.held():
            build.drop()
            assert not build.stop.is_set()
        assert build.stop.is_set()

    asyncio.run(run())
