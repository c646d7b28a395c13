import pytest

from mainstem import embedded
from mainstem.audit.books import Verdict
from mainstem.audit.report import audit, known_readers
from mainstem.client.append import append
from mainstem.client.catalog import read_catalog, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import AUDIT, CATALOG, COMMITS, SOURCES
from mainstem.client.reports import Report, write_reports
from mainstem.client.topics import end_offsets, ensure_internal_topics, ensure_topic
from mainstem.client.writer import TransactionalWriter
from mainstem.connect.sinks.delta import LakehouseConfig, announce
from mainstem.core import CorruptData, TopicPartition, UserError
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
    said = {"reader": "table", "topic": "orders", "partition": 0, "end": to, "rows": len(rows), "hash": total}
    write_reports(connection, [Report(**said | fields)])


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


@pytest.mark.parametrize("topic", [SOURCES, COMMITS, AUDIT, CATALOG])
def test_a_record_of_ours_that_nobody_can_read_is_told_with_its_topic_and_key(connection, topic):
    append(connection, topic, [(b"odd", b"[1]")])
    with pytest.raises(CorruptData, match=f"{topic}: key b'odd': expected JSON as Mainstem writes it"):
        audit(connection)


def test_the_catalog_knows_who_reads_a_topic():
    catalog = {
        "job:totals": {"versions": {"1": {"inputs": {"o": "orders"}}, "2": {"inputs": {"o": "orders"}}}},
        "sink:lakehouse": {"type": "delta", "pattern": "[^_].*"},
        "sink:copy": {"type": "postgres", "source": "shop", "topics": ["shop.items"]},
        "topic:orders": {"kind": "stream"},
    }
    orders, items, hidden = (TopicPartition(name, 0) for name in ("orders", "shop.items", "_hidden"))
    assert known_readers(catalog, [orders, items, hidden]) == {
        orders: {"totals@1", "totals@2", "lakehouse"},
        items: {"lakehouse", "copy"},
    }


def test_nothing_is_expected_of_a_retired_version(connection):
    """It has not read all, and never will: `mainstem audit --complete` could not become true any more."""
    write(connection, ROWS)
    report(connection, ROWS[:4], to=4, reader="totals@1")
    (line,) = [line for line in audit(connection) if line.tier == "reader"]
    assert line.verdict is Verdict.IN_FLIGHT
    write_catalog(connection, {"job:totals": {"versions": {}, "retired": ["1"]}})
    assert [line.tier for line in audit(connection)] == ["log", "writer"]


def test_nothing_is_expected_of_slices(connection):
    """They may have been run in any order, from anywhere: the books of an input never balanced again."""
    write(connection, ROWS)
    report(connection, ROWS[2:4], to=4, reader="totals@slices")
    write_catalog(connection, {"job:totals": {"versions": {"slices": {"inputs": {"o": "orders"}, "sliced": True}}}})
    assert [line.tier for line in audit(connection)] == ["log", "writer"]


def test_nothing_is_expected_of_a_sink_that_its_project_has_no_more(connection):
    write(connection, ROWS)
    report(connection, ROWS[:4], to=4, reader="lakehouse")
    announce(connection, LakehouseConfig(), "lakehouse")
    write_catalog(connection, {"sink:lakehouse": read_catalog(connection)["sink:lakehouse"] | {"retired": True}})
    assert [line.tier for line in audit(connection)] == ["log", "writer"]
    announce(connection, LakehouseConfig(), "lakehouse")  # it is back
    (line,) = [line for line in audit(connection) if line.tier == "reader"]
    assert line.verdict is Verdict.IN_FLIGHT


def test_a_reader_that_the_catalog_knows_and_that_is_silent_is_in_flight(connection):
    write(connection, ROWS)
    announce(connection, LakehouseConfig(), "lakehouse")
    end = end_offsets(connection, CATALOG)
    announce(connection, LakehouseConfig(), "lakehouse")  # what the catalog knows is not written again
    assert end_offsets(connection, CATALOG) == end
    (line,) = [line for line in audit(connection) if line.tier == "reader"]
    assert (line.name, line.verdict) == ("lakehouse", Verdict.IN_FLIGHT)
    assert line.detail == "it has said nothing yet: 10 records to go"
