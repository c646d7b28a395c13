import msgspec
import pytest

from mainstem import embedded
from mainstem.audit.books import Verdict
from mainstem.audit.report import audit
from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.internal import AUDIT
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.client.writer import TransactionalWriter
from mainstem.core import UserError
from mainstem.records import fingerprint


@pytest.fixture
def connection():
    with embedded() as log:
        connection = Connection(log.bootstrap)
        ensure_internal_topics(connection)
        ensure_topic(connection, "orders", 1)
        yield connection


def write(connection, rows):
    writer = TransactionalWriter(connection, "shop")
    writer.open()
    writer.begin()
    for key, value in rows:
        writer.send("orders", None, key, value)
    writer.commit({"row": len(rows)})
    writer.close()


def report(connection, rows, to, **fields):
    total = sum(fingerprint(key, value) for key, value in rows) % 2**64
    said = {"reader": "table", "topic": "orders", "partition": 0, "from": 0, "to": to, "rows": len(rows), "hash": total}
    append(connection, AUDIT, [(b"table", msgspec.json.encode(said | fields))])


ROWS = [(b"%d" % n, b"v%d" % n) for n in range(10)]


def test_the_books_of_a_source_and_a_reader_balance(connection):
    write(connection, ROWS)
    report(connection, ROWS, to=10)
    lines = audit(connection)
    assert [(line.tier, line.verdict) for line in lines] == [
        ("log", Verdict.BALANCED),
        ("writer", Verdict.BALANCED),
        ("reader", Verdict.BALANCED),
    ]


def test_a_record_that_a_reader_lost_is_found(connection):
    write(connection, ROWS)
    report(connection, ROWS[1:], to=10)
    (line,) = [line for line in audit(connection, ["orders"]) if line.tier == "reader"]
    assert (line.verdict, line.missing) == (Verdict.WRONG, 1)


def test_records_that_no_writer_speaks_of_are_found(connection):
    write(connection, ROWS)
    append(connection, "orders", [(b"x", b"y")])
    (line,) = [line for line in audit(connection) if line.tier == "writer"]
    assert (line.verdict, line.missing) == (Verdict.WRONG, -1)


def test_a_topic_that_is_not_there_is_named(connection):
    with pytest.raises(UserError, match="topic nothing: no such topic"):
        audit(connection, ["nothing"])
