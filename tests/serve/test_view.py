import asyncio

import pytest

from mainstem.serve.config import ViewConfig
from mainstem.serve.errors import IndexUnavailable
from mainstem.serve.keeper import Lost, Opened, Reached
from mainstem.serve.view import NotReady, View, asked


def test_a_view_can_be_asked_once_it_is_as_new_as_the_log_was():
    async def run():
        view, index = View("v", ViewConfig("sql", "t")), object()
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
            await asked(closed)

    asyncio.run(run())
