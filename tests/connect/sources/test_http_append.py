"""The appender against a real log: groups, duplicates, fences."""

import asyncio
import time
import uuid
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Producer

from mainstem.audit.report import audit
from mainstem.client.connection import Connection
from mainstem.client.errors import RecordRefused, UnknownTopic
from mainstem.client.topics import delete, end_offsets, ensure_internal_topics, ensure_topic, topic_ids
from mainstem.client.transaction import Appended
from mainstem.client.writer import read_source
from mainstem.connect.sources import http_append
from mainstem.connect.sources.http_append import Appender, LogUnavailable, NewRecord, Overloaded, Placed, TakenOver
from mainstem.connect.sources.http_window import ID_HEADER, content_hash
from mainstem.core import ManualClock, UserError
from tests.support.broker import running as broker_running
from tests.support.broker import until
from tests.support.records import committed
from tests.support.waiting import wait_until


@pytest.fixture
def topic(log_connection):
    name = f"append-{uuid.uuid4().hex[:8]}"
    ensure_topic(log_connection, name, 2)
    return name


@asynccontextmanager
async def running(connection, name, **settings):
    appender = Appender(connection, name, **settings)
    await appender.open()
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(swallow(appender))
        yield appender
        work.cancel()
    await appender.close()


async def swallow(appender):
    try:
        await appender.run()
    except TakenOver:
        assert appender.fenced


def record(topic, text, event_id=None, key=None, content=1):
    headers = [] if event_id is None else [(ID_HEADER, event_id.encode())]
    return NewRecord(topic, key, b"\0\0\0\0\1" + text.encode(), headers, event_id, content)


def texts(connection, topic):
    return sorted(message.value()[5:].decode() for message in committed(connection, topic))


def test_many_requests_share_few_transactions_and_each_hears_of_its_own(log_connection, topic):
    async def scenario():
        async with running(log_connection, topic) as appender:
            answers = await asyncio.gather(
                *(appender.append([record(topic, f"{n}-{i}", key=b"k%d" % n) for i in range(3)]) for n in range(50))
            )
            await appender.settled()
            return answers, appender.committed

    answers, transactions = asyncio.run(scenario())
    assert transactions < 10
    found = {(m.partition(), m.offset()): m.value()[5:].decode() for m in committed(log_connection, topic)}
    assert len(found) == 150
    for number, places in enumerate(answers):
        assert [found[place.partition, place.offset] for place in places] == [f"{number}-{i}" for i in range(3)]
    written = read_source(log_connection, topic).written[topic]
    assert sum(each.count for each in written.values()) == 150


def test_an_id_is_taken_once_also_in_one_request_and_after_a_restart(log_connection, topic):
    async def first():
        async with running(log_connection, topic) as appender:
            one, two = await appender.append([record(topic, "a", "1"), record(topic, "a", "1")])
            assert (one.status, two.status) == ("accepted", "duplicate")
            assert (one.partition, one.offset) == (two.partition, two.offset)
            both = await asyncio.gather(
                appender.append([record(topic, "b", "2")]), appender.append([record(topic, "b", "2")])
            )
            assert sorted(places[0].status for places in both) == ["accepted", "duplicate"]
            (reused,) = await appender.append([record(topic, "other", "1", content=2)])
            assert (reused.status, reused.offset) == ("reused", one.offset)
            before = appender.committed
            await appender.append([record(topic, "a", "1")])
            assert appender.committed == before  # nothing to write, no transaction
            return one

    async def second():
        async with running(log_connection, topic) as appender:
            (again,) = await appender.append([record(topic, "a", "1", content=content_hash(b"a"))])
            return again

    one, again = asyncio.run(first()), asyncio.run(second())
    assert (again.status, again.partition, again.offset) == ("duplicate", one.partition, one.offset)
    assert texts(log_connection, topic) == ["a", "b"]


def test_where_others_wrote_in_between_the_next_offset_is_that_after_all_records(log_connection, topic, monkeypatch):
    append = Appender._append

    def interleaved(self, group):
        return {lane: Appended(each.base, each.last + 3, each.count) for lane, each in append(self, group).items()}

    async def scenario():
        async with running(log_connection, topic) as appender:
            (first,) = await appender.append([record(topic, "a", "1", key=b"k")])
            assert first.next_offset == first.offset + 1
            monkeypatch.setattr(Appender, "_append", interleaved)
            new = [record(topic, text, text, key=b"k") for text in ("2", "2", "3")]
            return first, await appender.append(new), await appender.append([record(topic, "a", "1"), *new])

    first, placed, again = asyncio.run(scenario())
    end = first.offset + 2 + 1 + 3 + 1  # of two records, a transaction's marker before them and those of others
    assert [(each.offset, each.next_offset) for each in placed] == [(-1, end)] * 3
    assert again == [
        Placed("duplicate", first.partition, first.offset, first.next_offset),
        *(Placed("duplicate", first.partition, -1, end) for _ in range(3)),
    ]


def test_an_open_transaction_of_others_hides_no_id_after_a_restart(log_connection, topic):
    """The topic's end was read up to that transaction only: what was taken in behind it was taken in once more."""
    ensure_topic(log_connection, f"{topic}-other", 1)
    stranger = Producer(log_connection.confluent(transactional_id=f"{topic}-stranger"))
    stranger.init_transactions(60)

    def begin():
        stranger.begin_transaction()
        for partition in (0, 1):
            stranger.produce(topic, b"\0\0\0\0\1stranger", partition=partition)
        assert stranger.flush(60) == 0

    async def first():
        async with running(log_connection, topic) as appender:
            await appender.append([record(topic, "before", "0")])
            await asyncio.to_thread(begin)
            await appender.append([record(topic, "a", "1")])

    async def second():
        async with running(log_connection, topic) as appender:
            held, free = await asyncio.gather(
                appender.append([record(topic, "a", "1")]),
                appender.append([record(f"{topic}-other", "free", "1")]),
                return_exceptions=True,
            )
            assert isinstance(held, LogUnavailable)
            assert "the same ids" in held.hint
            assert free[0].status == "accepted"
            stranger.abort_transaction(60)
            ends = await asyncio.to_thread(end_offsets, log_connection, topic)
            await asyncio.to_thread(
                wait_until, lambda: end_offsets(log_connection, topic, committed=True) == ends, "ends"
            )
            (again,) = await appender.append([record(topic, "a", "1", content=content_hash(b"a"))])
            return again.status

    asyncio.run(first())
    assert asyncio.run(second()) == "duplicate"
    assert texts(log_connection, topic) == ["a", "before"]


def test_a_zombie_can_append_nothing(log_connection, topic):
    async def scenario():
        async with running(log_connection, topic) as zombie:
            await zombie.append([record(topic, "before")])
            async with running(log_connection, topic) as heir:
                with pytest.raises(TakenOver):
                    await zombie.append([record(topic, "zombie")])
                with pytest.raises(TakenOver):  # and it does not try again
                    await zombie.append([record(topic, "zombie again")])
                await heir.append([record(topic, "after")])

    asyncio.run(scenario())
    assert texts(log_connection, topic) == ["after", "before"]


def test_a_zombie_does_not_take_the_id_back_after_an_error(log_connection, topic):
    """After any failed commit it took the id unasked, and the newer gateway ended."""

    async def scenario():
        async with running(log_connection, topic) as zombie:
            await zombie.append([record(topic, "before")])
            async with running(log_connection, topic) as heir:
                await heir.append([record(topic, "heir")])
                zombie._holds_id = False  # its last commit has failed while the heir started
                with pytest.raises(TakenOver):
                    await zombie.append([record(topic, "zombie")])
                assert zombie.fenced
                await heir.append([record(topic, "after")])
                assert not heir.fenced

    asyncio.run(scenario())
    assert texts(log_connection, topic) == ["after", "before", "heir"]


def test_an_appender_that_nobody_replaced_goes_on_after_an_error(log_connection, topic):
    async def scenario():
        async with running(log_connection, topic) as appender:
            await appender.append([record(topic, "before", "1")])
            with pytest.raises(UserError):
                await appender.append([record(f"{topic}-gone", "lost")])
            await appender.append([record(topic, "after", "2")])

    asyncio.run(scenario())
    assert texts(log_connection, topic) == ["after", "before"]


@asynccontextmanager
async def a_week_later(directory, name):
    """A log that has forgotten the transactional id, and the appender that had it."""
    clock = ManualClock(int(time.time() * 1000))
    async with broker_running(directory, clock) as broker:
        connection = Connection(f"{broker.host}:{broker.port}")
        await asyncio.to_thread(ensure_internal_topics, connection)
        await asyncio.to_thread(ensure_topic, connection, name, 2)
        async with running(connection, name) as appender:
            await appender.append([record(name, "before", "1")])
            clock.advance_ms(8 * 86_400_000)
            broker.transactions.expire()
            await until(lambda: not broker.transactions.all_transactions(), "the transactional id has expired")
            yield connection, appender


def test_an_appender_that_was_idle_for_a_week_goes_on(tmp_path, topic):
    """The log had forgotten its transactional id: that was taken for a newer gateway, and the process ended."""

    async def scenario():
        async with a_week_later(tmp_path, topic) as (connection, appender):
            placed = await appender.append([record(topic, "before", "1"), record(topic, "after", "2")])
            assert [place.status == "accepted" for place in placed] == [False, True]
            assert not appender.fenced
            assert await asyncio.to_thread(texts, connection, topic) == ["after", "before"]

    asyncio.run(scenario())


def test_an_appender_that_was_idle_for_a_week_ends_where_a_newer_one_is_at_work(tmp_path, topic):
    async def scenario():
        async with a_week_later(tmp_path, topic) as (connection, zombie), running(connection, topic) as heir:
            with pytest.raises(TakenOver):
                await zombie.append([record(topic, "zombie")])
            await heir.append([record(topic, "after")])
            assert await asyncio.to_thread(texts, connection, topic) == ["after", "before"]

    asyncio.run(scenario())


def test_a_group_of_which_one_is_refused_ends_where_the_id_is_gone(log_connection, topic):
    """The requests of such a group are tried one by one: the first that finds the id gone speaks for all."""

    async def scenario():
        async with running(log_connection, topic) as zombie, running(log_connection, topic) as heir:
            answers = await asyncio.gather(
                *(zombie.append([record(name, "x")]) for name in (f"{topic}-gone", topic, topic)),
                return_exceptions=True,
            )
            assert [type(answer) for answer in answers[1:]] == [TakenOver, TakenOver]
            await heir.append([record(topic, "after")])

    asyncio.run(scenario())
    assert texts(log_connection, topic) == ["after"]


def test_one_request_that_cannot_be_appended_does_not_spoil_the_others(log_connection, topic):
    gone, small = f"{topic}-gone", f"{topic}-small"
    ensure_topic(log_connection, small, 1, {"max.message.bytes": "1000"})

    async def scenario():
        async with running(log_connection, topic) as appender:
            good = [appender.append([record(topic, f"good {n}")]) for n in range(3)]
            answers = await asyncio.gather(
                *good,
                appender.append([record(gone, "lost")]),
                appender.append([record(small, "x" * 5000)]),
                return_exceptions=True,
            )
            assert isinstance(answers[3], UserError)
            assert isinstance(answers[4], RecordRefused)
            assert [places[0].status for places in answers[:3]] == ["accepted"] * 3

    asyncio.run(scenario())
    assert texts(log_connection, topic) == ["good 0", "good 1", "good 2"]
    delete(log_connection, [small])


def test_an_error_that_nobody_foresaw_stays_with_its_topic(log_connection, topic, monkeypatch):
    """All requests of its transaction were answered with it, those to other topics too."""
    read_tail = http_append.read_tail

    def broken(connection, name, size):
        if name == f"{topic}-broken":
            raise AssertionError("a bug")
        return read_tail(connection, name, size)

    monkeypatch.setattr(http_append, "read_tail", broken)
    ensure_topic(log_connection, f"{topic}-broken", 1)

    async def scenario():
        async with running(log_connection, topic) as appender:
            return await asyncio.gather(
                appender.append([record(topic, "a", "1")]),
                appender.append([record(f"{topic}-broken", "b", "1")]),
                appender.append([record(topic, "c", "2")]),
                return_exceptions=True,
            )

    first, bug, last = asyncio.run(scenario())
    assert isinstance(bug, AssertionError)
    assert (first[0].status, last[0].status) == ("accepted", "accepted")
    assert texts(log_connection, topic) == ["a", "c"]


def test_a_topic_that_is_made_anew_is_another_one(log_connection, topic):
    """Its ids were those of what was deleted, and keys went to partitions that it did not have."""
    events = [record(topic, f"{n}", str(n), key=b"k%d" % n) for n in range(10)]

    async def scenario():
        async with running(log_connection, topic) as appender:
            await appender.append(events)
            await asyncio.to_thread(delete, log_connection, [topic])
            with pytest.raises(UserError):
                await appender.append(events)
            await asyncio.to_thread(ensure_topic, log_connection, topic, 1)
            return [(place.status, place.partition) for place in await appender.append(events)]

    assert asyncio.run(scenario()) == [("accepted", 0)] * 10


@pytest.mark.parametrize("restarted", [False, True])
def test_the_books_of_a_topic_that_is_made_anew_begin_anew(log_connection, topic, restarted):
    """What was posted to the old one counted on: the audit called the new one wrong for ever."""

    async def post(*texts):
        async with running(log_connection, topic) as appender:
            for text in texts:
                if text is None:
                    await asyncio.to_thread(delete, log_connection, [topic])
                    await asyncio.to_thread(ensure_topic, log_connection, topic, 1)
                else:
                    await appender.append([record(topic, text)])

    for texts in [["a", "b"], [None, "c"]] if restarted else [["a", "b", None, "c"]]:
        asyncio.run(post(*texts))
    assert [line for line in audit(log_connection, [topic]) if line.expected != line.found] == []
    assert sum(each.count for each in read_source(log_connection, topic).written[topic].values()) == 1


def test_the_books_of_a_topic_that_is_made_anew_between_two_questions_are_its_own(log_connection, topic, monkeypatch):
    """As a quarantine is, by another request: with the books of the old one, those of what was posted went too."""

    def made_meanwhile(connection, names):
        found = topic_ids(connection, names)
        if topic not in found:
            ensure_topic(connection, topic, 1)
        return found

    async def scenario():
        async with running(log_connection, topic) as appender:
            await appender.append([record(topic, "a")])
            await asyncio.to_thread(delete, log_connection, [topic])
            monkeypatch.setattr(http_append, "topic_ids", made_meanwhile)
            with pytest.raises(UnknownTopic):
                await appender.append([record(topic, "b")])
            for text in ("b", "c"):
                await appender.append([record(topic, text)])

    asyncio.run(scenario())
    assert [line for line in audit(log_connection, [topic]) if line.expected != line.found] == []
    assert read_source(log_connection, topic).written[topic][0].count == 2


def test_books_do_not_grow_with_every_topic_that_ever_was(log_connection, topic, monkeypatch):
    """Some 16,000 partitions were more than the record of the books may hold, and no post was taken any more."""
    monkeypatch.setattr(http_append, "FEW_TOPICS", 2)
    names = [f"{topic}-{number}" for number in range(5)]

    async def scenario():
        async with running(log_connection, topic) as appender:
            for name in names:
                await asyncio.to_thread(ensure_topic, log_connection, name, 1)
                await appender.append([record(name, "x")])
                await asyncio.to_thread(delete, log_connection, [name])
            assert len(read_source(log_connection, topic).written) <= 3

    asyncio.run(scenario())

    async def restarted():
        async with running(log_connection, topic) as appender:
            await appender.append([record(topic, "x")])

    asyncio.run(restarted())
    state = read_source(log_connection, topic)
    assert list(state.written) == list(state.position["topics"]) == [topic]


def test_ids_of_many_topics_take_no_more_memory_than_those_of_some(log_connection, topic, monkeypatch):
    """Every topic, and every quarantine, kept 100,000 of them for as long as the gateway ran."""
    monkeypatch.setattr(http_append, "MAX_IDS", 10)
    topics = [f"{topic}-{number}" for number in range(5)]

    async def scenario():
        async with running(log_connection, topic) as appender:
            for name in topics:
                ensure_topic(log_connection, name, 1)
                await appender.append([record(name, f"{n}", f"{n}", content=content_hash(b"%d" % n)) for n in range(4)])
                await appender.append([record(topics[0], "0", "0", content=content_hash(b"0"))])
            assert sorted(appender._windows) == [topics[0], topics[-1]], "those used last"
            for name in topics:
                (again,) = await appender.append([record(name, "3", "3", content=content_hash(b"3"))])
                assert (again.status, again.offset) == ("duplicate", 3)

    asyncio.run(scenario())
    assert [len(texts(log_connection, name)) for name in topics] == [4] * 5


def test_what_was_appended_is_waited_for_and_not_what_others_append(log_connection, topic):
    """A heartbeat waited until nobody posted anything, to any topic."""

    async def scenario():
        async with running(log_connection, topic, group_bytes=1) as appender, asyncio.TaskGroup() as tasks:

            async def post():
                while True:
                    await appender.append([record(topic, "x")])

            busy = [tasks.create_task(post()) for _ in range(8)]
            await asyncio.sleep(0.1)
            committed_before = appender.committed
            try:
                await asyncio.wait_for(appender.settled(), 10)
            finally:
                for task in busy:
                    task.cancel()
            assert appender.committed >= committed_before + 7

    asyncio.run(scenario())


def test_more_than_may_wait_is_refused_at_once(log_connection, topic):
    async def scenario():
        appender = Appender(log_connection, topic, waiting_bytes=1000)
        first = asyncio.ensure_future(appender.append([record(topic, "x" * 5000)]))  # alone it may be of any size
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="bytes are waiting"):
            await appender.append([record(topic, "y")])
        await appender.close()
        with pytest.raises(Exception, match="stopping"):
            await first

    asyncio.run(scenario())


def test_headers_count_among_what_waits(log_connection, topic):
    async def scenario():
        appender = Appender(log_connection, topic, waiting_bytes=1000)
        large = record(topic, "x")
        large.headers.append(("mainstem.id", b"y" * 5000))
        first = asyncio.ensure_future(appender.append([large]))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=r"5[0-9]{3} bytes are waiting"):
            await appender.append([record(topic, "y")])
        await appender.close()
        with pytest.raises(Exception, match="stopping"):
            await first

    asyncio.run(scenario())
