"""The replication connection gives the messages and confirms what it is told to, nothing else."""

import time

import pytest

from mainstem.connect.sources import postgres_catalog as catalog
from mainstem.connect.sources.postgres_catalog import DatabaseRefused, DatabaseUnavailable
from mainstem.connect.sources.postgres_pgoutput import Begin, Commit, Insert, decode
from mainstem.connect.sources.postgres_replication import ReplicationStream
from mainstem.connect.sources.postgres_snapshot import adopt, copy_table, create_slot, leave
from tests.support.postgres import Database, wait_until


@pytest.fixture
def database(postgres_server):
    database = Database(postgres_server.create_database("replication"))
    database.run("DROP PUBLICATION IF EXISTS p", "DROP TABLE IF EXISTS t")
    database.run("CREATE TABLE t (a int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    yield database
    wait_until(lambda: dropped(database), "the slot is dropped")


def dropped(database):
    database.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'r' AND active")
    database.run(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'r' AND NOT active"
    )
    return database.run("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'r'") == [(0,)]


@pytest.fixture
def replication(database):
    connection = catalog.connect(database.url, replication=True)
    yield connection
    connection.close()


def receive(stream, count):
    messages, deadline = [], time.monotonic() + 60
    while len(messages) < count:
        message = stream.receive()
        if message is None:
            assert time.monotonic() < deadline
            stream.wait(0.1)
        else:
            messages.append(decode(message))
    return messages


def confirmed(database):
    return database.run("SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = 'r'")[
        0
    ][0]


def test_messages_come_and_only_what_is_confirmed_is_confirmed(database, replication):
    lsn, _ = create_slot(replication, "r")
    stream = ReplicationStream(replication, slot="r", publication="p", lsn=lsn)
    assert stream.receive() is None
    database.run("INSERT INTO t VALUES (1)")
    messages = receive(stream, 4)
    assert [type(message) for message in messages if type(message) in (Begin, Insert, Commit)] == [
        Begin,
        Insert,
        Commit,
    ]
    end = messages[-1].end_lsn
    wait_until(lambda: stream.receive() is None and stream.wal_end >= end, "a keepalive says how far the server is")
    assert confirmed(database) == lsn
    stream.confirm(end)
    stream.confirm(lsn)  # never back
    wait_until(lambda: confirmed(database) == end, "the slot is confirmed")


def test_a_server_that_is_asked_says_how_far_its_wal_goes_without_us(database, replication):
    lsn, _ = create_slot(replication, "r")
    stream = ReplicationStream(replication, slot="r", publication="p", lsn=lsn)
    assert stream.receive() is None
    database.run("CREATE TABLE IF NOT EXISTS not_published (a int)", "INSERT INTO not_published VALUES (1)")
    end = database.run("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")[0][0]

    def told():
        stream.ask()
        stream.wait(0.1)
        while stream.receive() is not None:
            pass
        return stream.wal_end >= end

    wait_until(told, "the server says that it has read so far")
    answers, sent = [], stream._send_status
    stream._send_status = lambda **reply: answers.append(reply) or sent(**reply)
    for _ in range(1000):  # its answer ends a wait at once: each would be followed by the next question
        stream.ask()
    assert len(answers) <= 1


def test_the_snapshot_is_what_was_there_when_the_slot_began(database, replication):
    database.run("INSERT INTO t VALUES (1), (2)")
    reader = catalog.connect(database.url)
    reader.autocommit = True
    _, snapshot = create_slot(replication, "r")
    database.run("INSERT INTO t VALUES (3)", "DELETE FROM t WHERE a = 1")
    adopt(reader, snapshot)
    rows = []
    copy_table(reader, catalog.find_tables(reader, ["t"])[0].relation, rows.append)
    leave(reader)
    reader.close()
    assert sorted(rows) == [[b"1"], [b"2"]]


def test_the_end_of_the_connection_is_an_error_that_may_pass(database, replication):
    lsn, _ = create_slot(replication, "r")
    stream = ReplicationStream(replication, slot="r", publication="p", lsn=lsn)
    database.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'r'")
    with pytest.raises(DatabaseUnavailable, match=r"^replication: ") as found:
        receive(stream, 1)
    assert "\n" not in str(found.value)


def test_a_slot_that_is_in_use_may_become_free(database, replication):
    lsn, _ = create_slot(replication, "r")
    ReplicationStream(replication, slot="r", publication="p", lsn=lsn)
    second = catalog.connect(database.url, replication=True)
    with pytest.raises(DatabaseUnavailable, match="is active for PID"):
        ReplicationStream(second, slot="r", publication="p", lsn=lsn)
    second.close()


def test_a_slot_that_does_not_exist_is_refused(database, replication):
    with pytest.raises(DatabaseRefused, match="does not exist"):
        ReplicationStream(replication, slot="missing", publication="p", lsn=0)
