"""What readers state: the last statement of each stands for all that it ever read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem import embedded
from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.internal import AUDIT, COMMITS
from mainstem.client.progress import Marker, Read, add_reads
from mainstem.client.reports import Report, read_reports, write_reports
from mainstem.client.topics import describe_config, ensure_internal_topics, list_topics


@pytest.fixture(scope="module")
def connection():
    with embedded() as log:
        connection = Connection(log.bootstrap)
        assert read_reports(connection, []) == []
        ensure_internal_topics(connection)
        yield connection


def report(reader, end, topic="orders", **parts):
    return Report(reader=reader, topic=topic, partition=0, end=end, **parts)


def test_the_last_statement_of_a_destination_and_the_marker_of_a_job_are_what_they_have_read(connection):
    write_reports(connection, [report("lake", 5, rows=5), report("lake", 9, "visits", rows=8, quarantined=1)])
    write_reports(connection, [report("lake", 7, rows=6, tombstones=1)])
    reads = {"orders": {"orders": {0: Read(end=6, rows=4, late=2)}}}
    marker = Marker("hourly", "1", "uuid", 4, {}, read=reads)
    append(connection, COMMITS, [(b"hourly@1", msgspec.json.encode(marker))])
    found = read_reports(connection, list_topics(connection))
    assert sorted(found, key=lambda each: (each.reader, each.topic)) == [
        report("hourly@1", 6, rows=4, late=2),
        report("lake", 7, rows=6, tombstones=1),
        report("lake", 9, "visits", rows=8, quarantined=1),
    ]
    assert [each.count for each in found if each.reader == "lake"] == [7, 9]


def test_the_topic_keeps_one_statement_for_each_reader_and_partition(connection):
    """It once kept one for every batch, for ever."""
    assert describe_config(connection, AUDIT)["cleanup.policy"] == "compact"


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), st.data())
def test_batches_add_up_and_what_is_read_from_the_start_again_counts_once(hashes, data):
    """A restart reads a pinned table from offset 0 again; a stream goes on where the last commit was."""
    total, position = {}, 0
    while position < len(hashes):
        start = data.draw(st.sampled_from([position, 0]))
        end = data.draw(st.integers(max(start, position) + 1, len(hashes)))
        part = Read(start=start, end=end, rows=end - start, hash=sum(hashes[start:end]) % 2**64)
        total, position = add_reads(total, {"orders": {"orders": {0: part}}}), end
    (read,) = total["orders"]["orders"].values()
    assert read == Read(end=len(hashes), rows=len(hashes), hash=sum(hashes) % 2**64)
    assert add_reads(total, {}) == total
