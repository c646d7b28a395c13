import asyncio
import json
import threading

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.client.topics import delete, ensure_topic
from mainstem.core import UserError
from mainstem.dash import tails as module
from mainstem.dash.tails import Follower, News, Tails
from mainstem.dash.web import answering
from mainstem.web.threads import Overloaded
from tests.support.ports import free_port
from tests.support.serving import served


@pytest.fixture
def topic(shop, request):
    name = f"tail{abs(hash(request.node.name)) % 10**8}"
    ensure_topic(shop.connection, name, 2)
    append(shop.connection, name, [(b"before", b"0")])
    return name


def places(news):
    return sorted((record.partition, record.offset) for record in news.records)


def test_only_what_is_new_is_told_and_each_once(shop, topic):
    follower = Follower(shop.connection, topic)
    assert follower.look() == follower.look() == News()
    before = append(shop.connection, topic, [(b"%d" % n, b"%d" % n) for n in range(10)])
    first = follower.look()
    assert len(first.records) == 10
    assert first.skipped == 0
    append(shop.connection, topic, [(b"k", None)])
    second = follower.look()
    assert [record.kind for record in second.records] == ["tombstone"]
    assert second.records[0].offset >= before[second.records[0].partition]
    assert follower.look() == News()
    follower.close()


def test_what_comes_too_fast_is_counted(shop, topic, monkeypatch):
    monkeypatch.setattr(module, "MOST_RECORDS", 6)
    follower = Follower(shop.connection, topic)
    follower.look()
    ends = append(shop.connection, topic, [(b"%d" % n, b"v") for n in range(100)])
    news = follower.look()
    assert places(news) == sorted((p, offset) for p, end in ends.items() for offset in range(end - 3, end))
    assert news.skipped == 94
    follower.close()


def test_one_partition_is_followed(shop, topic):
    follower = Follower(shop.connection, topic, 1)
    follower.look()
    append(shop.connection, topic, [(b"%d" % n, b"v") for n in range(20)])
    assert {record.partition for record in follower.look().records} == {1}
    follower.close()
    with pytest.raises(UserError, match="expected a partition of it, found 7"):
        Follower(shop.connection, topic, 7).look()


def test_a_topic_that_is_deleted_is_told(shop, topic):
    follower = Follower(shop.connection, topic)
    follower.look()
    delete(shop.connection, [topic])
    with pytest.raises(UnknownTopic):
        follower.look()


@pytest.fixture
def http(shop, monkeypatch):
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.01)
    tails = Tails(shop.connection)
    app = Starlette(routes=[Route("/topics/{name}/live", answering(tails.answer))])
    with served(app, timeout_graceful_shutdown=1) as url, httpx.Client(base_url=url, timeout=60) as client:
        client.tails = tails
        yield client
        tails.leave()
    tails.close()


def test_pages_are_told_as_records_come(http, shop, topic):
    with http.stream("GET", f"/topics/{topic}/live") as events:
        lines = events.iter_lines()
        assert next(lines) == "retry: 1000"
        found = []
        for number in range(5):
            append(shop.connection, topic, [(b"k", b"%d" % number)])
            line = next(line for line in lines if line.startswith("data: "))
            found += [each["value"] for each in json.loads(line.removeprefix("data: "))["records"]]
    assert found == ["0", "1", "2", "3", "4"]


def test_too_many_pages_are_refused_until_one_goes(http, topic, monkeypatch):
    monkeypatch.setattr(module, "MOST_PAGES", 1)
    with http.stream("GET", f"/topics/{topic}/live") as events:
        lines = events.iter_lines()
        next(lines)
        assert http.get(f"/topics/{topic}/live").status_code == 429
    again = 429
    while again == 429:
        with http.stream("GET", f"/topics/{topic}/live") as events:
            again = events.status_code
    assert again == 200
    monkeypatch.setattr(module, "MOST_PAGES", 16)  # the last page is noticed to be gone a moment later
    assert http.get("/topics/none/live").status_code == 404
    assert http.get(f"/topics/{topic}/live?partition=x").status_code == 400


class Followers:
    """Counts those that are open."""

    def __init__(self, monkeypatch, look):
        self.open, self.closed = 0, threading.Event()
        monkeypatch.setattr(module, "Follower", self)
        self._look = look

    def __call__(self, *_):
        self.open += 1
        return self

    def look(self):
        return self._look()

    def close(self):
        self.open -= 1
        if self.open == 0:
            self.closed.set()


def test_pages_that_come_at_once_are_counted_before_they_are_waited_for(monkeypatch):
    """Fifty requests at once all passed the limit: each was counted when its stream began."""
    monkeypatch.setattr(module, "MOST_PAGES", 2)
    go_on = threading.Event()
    followers = Followers(monkeypatch, lambda: go_on.wait(30) and News())
    request = Request({"type": "http", "query_string": b"", "path_params": {"name": "ticks"}, "headers": []})

    async def work():
        tails = Tails(None)
        answers = [asyncio.ensure_future(tails.answer(request)) for _ in range(5)]
        done, pending = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert (len(pending), {type(each.exception()) for each in done}) == (2, {Overloaded})
        go_on.set()
        for answer in await asyncio.gather(*pending):  # who has asked leaves before anything was sent
            await answer({"type": "http"}, gone, unsent)
        assert tails._pages == 0
        assert await asyncio.to_thread(followers.closed.wait, 30)
        tails.close()

    async def gone():
        return {"type": "http.disconnect"}

    async def unsent(_):
        await asyncio.Event().wait()

    asyncio.run(work())


def test_a_topic_that_cannot_be_followed_is_not_counted(monkeypatch):
    def look():
        raise UserError("no such topic")

    followers = Followers(monkeypatch, look)
    request = Request({"type": "http", "query_string": b"", "path_params": {"name": "none"}, "headers": []})

    async def work():
        tails = Tails(None)
        with pytest.raises(UserError):
            await tails.answer(request)
        assert tails._pages == 0
        assert await asyncio.to_thread(followers.closed.wait, 30)
        tails.close()

    asyncio.run(work())


def test_all_end_when_the_gateway_stops(http, topic):
    with http.stream("GET", f"/topics/{topic}/live") as events:
        lines = events.iter_lines()
        next(lines)
        threading.Thread(target=http.tails._closed.set).start()
        assert [line for line in lines if line] == []


def test_a_log_that_does_not_answer_is_told(shop, topic, monkeypatch):
    tails = Tails(Connection(f"127.0.0.1:{free_port()}"))
    news = News(error="no answer")

    def look(_):
        raise UserError("no answer")

    monkeypatch.setattr(Follower, "look", look)

    assert asyncio.run(tails._look(Follower(shop.connection, topic))) == news
    tails.close()
