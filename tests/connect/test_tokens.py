"""Tokens of a source's position, against a writer that commits as a database source does."""

import asyncio
import threading
import time
import uuid
from contextlib import closing

import httpx
import msgspec
import pytest
from confluent_kafka import KafkaException
from starlette.applications import Starlette

from mainstem.client.append import append
from mainstem.client.basis import Basis, parse
from mainstem.client.internal import SOURCES
from mainstem.client.progress import Written
from mainstem.client.topics import cluster_id, end_offsets, ensure_internal_topics, ensure_topic
from mainstem.client.writer import SourceState, TransactionalWriter
from mainstem.connect import tokens
from mainstem.connect.gateway import Gateway
from mainstem.connect.gateway_config import CollectorConfig, GatewayConfig
from mainstem.connect.tokens import Tokens, has_appended
from tests.support.serving import served
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def url(log_connection):
    config = GatewayConfig(collector=CollectorConfig(name=f"tokens-{uuid.uuid4().hex[:8]}"))
    with served(Gateway(log_connection, config, on_taken_over=lambda: None).app) as url:
        yield url


@pytest.fixture
def topic(log_connection):
    ensure_internal_topics(log_connection)
    name = f"fleet-{uuid.uuid4().hex[:8]}"
    ensure_topic(log_connection, name, 2)
    return name


@pytest.fixture
def writer(log_connection):
    with closing(TransactionalWriter(log_connection, f"fleet{uuid.uuid4().hex[:8]}")) as writer:
        writer.open()
        yield writer


@pytest.mark.parametrize("error", [KafkaException("x"), BufferError("full"), RuntimeError("a bug")])
def test_a_thread_that_fails_for_a_reason_of_nobody_s_goes_on(log_connection, writer, topic, monkeypatch, error):
    failures, starts = [error], tokens.start_offsets

    def failing(*arguments):
        if failures:
            raise failures.pop()
        return starts(*arguments)

    monkeypatch.setattr(tokens, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(tokens, "start_offsets", failing)
    commit(writer, topic, 16)
    config = GatewayConfig(collector=CollectorConfig(name=f"tokens-{uuid.uuid4().hex[:8]}"))
    with served(Gateway(log_connection, config, on_taken_over=lambda: None).app) as url:
        assert ask(url, writer.source).status_code == 200
    assert not failures


def position(lsn, state="streaming"):
    return {"state": state, "slot": "s", "lsn": lsn}


def commit(writer, topic, lsn, *, rows=1, **more):
    writer.begin()
    for number in range(rows):
        writer.send(topic, lsn % 2, b"k%d" % number, b"v")
    return writer.commit(position(lsn, **more))


def ask(url, source, **query):
    return httpx.get(f"{url}/token", params={"source": source, **query}, timeout=60)


def test_what_is_appended_already_is_answered_at_once_with_all_of_the_source(url, log_connection, writer, topic):
    ends = commit(writer, topic, 16) | {}
    ends[topic] |= commit(writer, topic, 17)[topic]
    answer = ask(url, writer.source, lsn="0/10")
    body = answer.json()
    assert answer.status_code == 200, body
    assert body["basis"] == {topic: {str(partition): end for partition, end in ends[topic].items()}}
    assert (body["lsn"], body["log"]) == ("0/11", cluster_id(log_connection))
    assert parse(answer.headers["Mainstem-Basis"]) == parse(body["token"]) == Basis(body["log"], ends)
    stable = end_offsets(log_connection, topic, committed=True)
    assert all(stable[partition] >= end for partition, end in ends[topic].items())
    assert ask(url, writer.source).json()["basis"] == body["basis"]  # all that it has appended by now


def test_what_is_not_appended_yet_is_waited_for(url, writer, topic):
    commit(writer, topic, 16)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(url, writer.source, lsn=1000)))
    asking.start()
    commit(writer, topic, 999)
    commit(writer, topic, 998, rows=0, state="snapshot")  # a new snapshot: nothing of before counts
    commit(writer, topic, 2000, state="snapshot")
    assert not answers
    last = commit(writer, topic, 1001)
    asking.join(60)
    assert parse(answers[0].json()["token"]).positions[topic].items() >= last[topic].items()


def test_who_waits_for_nothing_is_answered_with_what_is_there(url, writer, topic):
    """A `timeout` of 0: what is not there yet is refused, and nothing else."""
    commit(writer, topic, 16)
    assert ask(url, writer.source, lsn=16).status_code == 200
    answer = ask(url, writer.source, lsn=16, timeout=0)
    assert answer.status_code == 200, answer.text
    assert (
        "the log has all up to 0/10 after 0 s" in ask(url, writer.source, lsn=17, timeout=0).json()["error"]["message"]
    )


def test_what_does_not_come_in_time_is_answered_with_how_far_it_is(url, writer, topic):
    commit(writer, topic, 16)
    began = time.monotonic()
    answer = ask(url, writer.source, lsn="1/0", timeout=0.3)
    assert time.monotonic() - began < 20
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert "expected lsn 1/0, the log has all up to 0/10 after 0.3 s" in answer.json()["error"]["message"]


def test_the_token_has_what_the_request_brought(url, writer, topic):
    commit(writer, topic, 16)
    log = ask(url, writer.source).json()["log"]
    brought = Basis(log, {"elsewhere": {0: 7}}).token
    answer = httpx.get(f"{url}/token", params={"source": writer.source}, headers={"Mainstem-Basis": brought})
    assert parse(answer.json()["token"]).positions["elsewhere"] == {0: 7}


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ({}, 400, "expected ?source=NAME"),
        ({"source": ["a", "b"]}, 400, "source: expected it once, found it 2 times"),
        ({"source": "nobody"}, 404, "no such source has written to this log"),
        ({"source": "SOURCE", "lsn": "x"}, 400, "expected a position as PostgreSQL prints it"),
        ({"source": "SOURCE", "lsn": "0/x"}, 400, "expected a position as PostgreSQL prints it"),
        ({"source": "SOURCE", "lsn": "-1"}, 400, "expected a position as PostgreSQL prints it"),
        ({"source": "SOURCE", "lsn": str(2**64)}, 400, "expected a position as PostgreSQL prints it"),
        ({"source": "SOURCE", "timeout": "nan"}, 400, "timeout: expected 0 to 300 seconds"),
        ({"source": "SOURCE", "timeout": "1e9"}, 400, "timeout: expected 0 to 300 seconds"),
    ],
)
def test_bad_questions_are_answered_in_a_line(url, writer, topic, query, status, told):
    commit(writer, topic, 16)
    assert ask(url, writer.source).status_code == 200
    query = {name: writer.source if text == "SOURCE" else text for name, text in query.items()}
    answer = httpx.get(f"{url}/token", params=query)
    assert (answer.status_code, told in answer.json()["error"]["message"]) == (status, True), answer.text


def test_an_lsn_of_a_source_that_has_none_is_refused(url, writer, topic):
    writer.begin()
    writer.send(topic, 0, b"k", b"v")
    ends = writer.commit({"inode": 1, "position": 5})
    answer = ask(url, writer.source, lsn="0/1")
    assert answer.status_code == 400
    assert "expected a database for an lsn" in answer.json()["error"]["message"]
    assert parse(ask(url, writer.source).json()["token"]).positions == ends


def test_a_source_that_does_not_say_where_its_records_end_has_no_token(url, log_connection, writer, topic):
    """The collector: a token of its state stood for nothing."""
    commit(writer, topic, 16)
    state = SourceState({"topics": {}}, {topic: {0: Written(1)}})
    name = f"collector-{uuid.uuid4().hex[:8]}"
    append(log_connection, SOURCES, [(name.encode(), msgspec.json.encode(state))])
    wait_until(lambda: ask(url, name).status_code != 404, "it is read")
    answer = ask(url, name)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request"), answer.text
    assert "the answer to each post has the token" in answer.json()["error"]["hint"]
    there = ask(url, "nobody").json()["error"]["hint"]
    assert writer.source in there
    assert name not in there


def test_who_waits_is_told_as_soon_as_the_gateway_stops(log_connection, writer, topic):
    commit(writer, topic, 16)

    async def run():
        tokens = Tokens(log_connection)
        await tokens.open()
        try:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(Starlette(routes=tokens.routes())), base_url="http://test", timeout=60
            ) as client:
                question = {"source": writer.source, "lsn": "1/0", "timeout": 300}
                asking = asyncio.ensure_future(client.get("/token", params=question))
                while not tokens._waiters:
                    await asyncio.sleep(0.01)
                tokens.leave()
                return await asyncio.wait_for(asking, 10)
        finally:
            await tokens.close()

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
    assert answer.headers["Retry-After"] == "1"


def test_nothing_of_a_database_is_there_before_its_snapshot():
    assert not has_appended(SourceState(position(20, state="snapshot")), 10)
    assert has_appended(SourceState(position(20)), 20)
    assert not has_appended(SourceState(position(20)), 21)
