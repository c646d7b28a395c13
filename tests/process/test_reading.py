"""The arithmetic of a batch's books; what Spark counts is held against a log in test_run.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.progress import Seen
from mainstem.client.topics import end_offsets, ensure_topic
from mainstem.process.project_config import JobConfig
from mainstem.process.reading import BooksMissing, Observed, kafka_options, observed, range_of, stream_of, with_late
from mainstem.process.session import job_session
from tests.support.undecided import DECIDED, VISIBLE, undecided


@pytest.mark.spark
def test_nothing_of_an_aborted_or_open_transaction_is_read(spark, log_connection, tmp_path):
    """Neither by the query of a job nor by the second reading of a batch's range."""
    topic, found = "reading.undecided", []
    ensure_topic(log_connection, topic, 1)
    session = job_session(spark, "undecided", JobConfig())

    def run():
        rows = stream_of(session, log_connection, topic, "undecided", 1000)
        writer = rows.writeStream.foreachBatch(lambda batch, _: found.extend(keys(batch)))
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()

    def keys(rows):
        return [bytes(row["key"]).decode() for row in rows.select("key", "offset").sort("offset").collect()]

    with undecided(log_connection, topic, lambda word: [(topic, word.encode(), b"v")]) as commit:
        run()
        assert tuple(found) == VISIBLE
        assert end_offsets(log_connection, topic, committed=True) == {0: 6}  # three records with their markers
        assert keys(range_of(session, log_connection, topic, {}, {0: 6})) == list(VISIBLE)
        commit()
        run()
        assert tuple(found) == DECIDED
        ends = end_offsets(log_connection, topic)
        assert keys(range_of(session, log_connection, topic, {}, ends)) == list(DECIDED)


def test_records_that_are_gone_fail_a_job():
    """Spark would go on behind the gap without a word."""
    assert kafka_options(Connection("127.0.0.1:9092"))["failOnDataLoss"] == "true"


@pytest.mark.spark
def test_a_batch_holds_no_more_than_it_may(spark, log_connection, tmp_path):
    """A batch that is too long for the broker's longest transaction could never be committed."""
    ensure_topic(log_connection, "reading.bounded", 2)
    append(log_connection, "reading.bounded", [(b"%d" % n, b"x") for n in range(250)])
    found = []
    rows = stream_of(job_session(spark, "bounded", JobConfig()), log_connection, "reading.bounded", "bounded", 100)
    writer = rows.writeStream.foreachBatch(lambda batch, _: found.append(batch.count()))
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert sum(found) == 250
    assert max(found) <= 100


def test_what_was_observed_becomes_books():
    counted = {"partitions": 0, "records_0": 10, "tombstones_0": 1, "quarantined_0": 2, "timeless_0": 3, "oldest": 99}
    books = observed(counted | {"high_0": 1, "low_0": 5}, 2)
    assert books == Observed({0: Seen(4, 1, 2, 3, 0, (1 << 32) + 5), 1: Seen()}, 99)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_the_halves_of_the_hashes_add_up(hashes):
    """Spark's hash is a signed number; its halves are an arithmetic shift and the low 32 bits."""
    high, low = sum(h >> 32 for h in hashes), sum(h & 0xFFFFFFFF for h in hashes)
    books = observed({"records_0": len(hashes), "high_0": high, "low_0": low}, 1)
    assert books.partitions[0].hash == sum(hashes) % 2**64


def test_a_partition_that_was_added_meanwhile_is_refused():
    with pytest.raises(BooksMissing, match="partition 2 was added to a topic that had 2 partitions"):
        observed({"partitions": 2}, 2)


def test_late_rows_are_taken_out_of_the_rows():
    seen = with_late(Observed({0: Seen(rows=5, hash=7), 1: Seen(rows=2)}, 1), {0: 3})
    assert seen.partitions == {0: Seen(rows=2, late=3, hash=7), 1: Seen(rows=2)}
