"""The books of a batch: every record is in them once, and what has not reached the function is kept."""

import pytest

from mainstem.client.append import append
from mainstem.client.topics import ensure_topic
from mainstem.process.books import StreamBooks
from mainstem.process.declare import Job
from mainstem.process.late import Late
from mainstem.process.outputs import UNREAD_PARTITION, Quarantine
from mainstem.process.project import Input
from mainstem.process.reading import BooksMissing
from mainstem.registry import avro
from mainstem.registry.spark import topic_schema
from tests.support.jobs import put_rows
from tests.support.shop import NOON, ORDERS, order, shop

pytestmark = pytest.mark.spark
__all__ = ["shop"]  # a fixture


class Sink:
    """Takes what is added to the batch."""

    def __init__(self):
        self.rows = []

    def add(self, rows, outputs):
        (self.output,) = outputs
        self.rows += [(row["partition"], row["key"], row["value"]) for row in rows.collect()]


def test_every_record_is_counted_once_and_what_is_not_read_is_kept(spark, log_connection, live_registry, shop):
    topic = f"{shop}.orders"
    ensure_topic(log_connection, topic, 1)
    rows = [order(1, "ann", 0), order(2, "bob", 30), order(3, "ann", 90)]
    put_rows(log_connection, live_registry, topic, ORDERS, rows, ("customer",))
    append(log_connection, topic, [(b"k", b"no avro"), (b"gone", None)], timeout_seconds=60)
    job = Job("counted", print, ("orders",), f"{shop}.out", "stream", (), None, None, "final", ("jobs.py", 1))
    quarantine = Quarantine(log_connection, live_registry, job, "1", job.to)
    streams, schemas = (Input("orders", topic, "stream", None),), {"orders": topic_schema(live_registry, topic)}
    seen = {"partitions": 0, "records_0": 5, "tombstones_0": 1, "quarantined_0": 1, "oldest": ms(0)}

    def read(late, watermark):
        sink = Sink()
        books = StreamBooks("counted", log_connection, streams, {topic: 1}, quarantine, late)
        ends = {topic: {topic: {0: 5}}}
        reads = books.read(lambda name: seen, spark, schemas, {}, ends, watermark, sink)
        (found,) = reads["orders"][topic].values()
        return found, sink, books.late_rows

    found, sink, late = read(Late("at", None), ms(30))  # its own time is what counts
    assert (found.start, found.end, found.rows, found.late, found.tombstones, found.quarantined) == (0, 5, 1, 2, 1, 1)
    assert (found.count, late, sink.output.topic) == (5, 2, f"{shop}.out.quarantine")
    assert {partition for partition, _, _ in sink.rows} == {UNREAD_PARTITION}
    kept = [avro.decode(value, live_registry.schema) for _, _, value in sink.rows]
    assert sorted((each["error"], each["offset"], each["key"]) for each in kept) == [
        ("late", 0, b"ann"), ("late", 1, b"bob"), ("undecodable", 3, b"k"),
    ]  # fmt: skip

    found, sink, late = read(Late("at", None), ms(-1))  # nothing is so old
    assert (found.rows, found.late, late, len(sink.rows)) == (3, 0, 0, 1)
    seen["quarantined_0"] = 0
    assert read(None, ms(90))[1].rows == []  # a job without state has no late rows


def test_a_partition_that_was_added_since_is_told(spark, log_connection, live_registry, shop):
    job = Job("counted", print, ("orders",), f"{shop}.out", "stream", (), None, None, "final", ("jobs.py", 1))
    quarantine = Quarantine(log_connection, live_registry, job, "1", job.to)
    books = StreamBooks("counted", log_connection, (Input("orders", "o", "stream", None),), {"o": 1}, quarantine, None)
    with pytest.raises(BooksMissing, match="partition 1 was added"):
        books.read(lambda name: {"partitions": 1}, spark, {}, {}, {}, 0, Sink())


def ms(minutes):
    return int(NOON.timestamp() * 1000) + minutes * 60_000
