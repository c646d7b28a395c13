"""Where the indexes of a job lie, and what is known of them before it runs."""

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from mainstem.client.append import append
from mainstem.client.topics import delete, ensure_topic
from mainstem.core import UserError
from mainstem.process import Change, changelog
from mainstem.process.declare import Output
from mainstem.process.identity import SameTopics
from mainstem.process.job_indexes import JobIndexes, ListedIndexes
from mainstem.process.local_index import KnownIndexes
from mainstem.process.outputs import JobOutput
from mainstem.registry import avro

SCHEMA = """{"type": "record", "name": "Row", "fields": [
    {"name": "day", "type": {"type": "int", "logicalType": "date"}}, {"name": "n", "type": "long"}]}"""
KEY = (("day", "date"), ("n", "bigint"))
table = changelog("kept", key=["day", "n"])


@pytest.fixture
def indexes(log_connection, tmp_path):
    declared = Output("kept", "changelog", ("day", "n"), None)
    output = JobOutput(declared, "kept.v2", "changelog", 2, 7, SCHEMA)

    def started():
        topics = SameTopics(log_connection, "keeps", streams=[], tables=[], outputs=["kept.v2"])
        topics.begin(None)
        return JobIndexes(log_connection, [output], topics, tmp_path)

    return started


def test_an_index_follows_the_topic_of_its_version_as_it_is_now(log_connection, indexes, tmp_path):
    ensure_topic(log_connection, "kept.v2", 2, {"min.compaction.lag.ms": "1000"})
    row = {"day": date(2026, 5, 1), "n": 3}
    key = avro.key_text(row, ("day", "n"))
    append(log_connection, "kept.v2", [(key, avro.encode(7, SCHEMA, row)), (key, None)], timeout_seconds=60)
    place = indexes().place(table, KEY)
    append(log_connection, "kept.v2", [(key, avro.encode(7, SCHEMA, row))], timeout_seconds=60)
    found = {partition: list(place.history.read(partition, 0)) for partition in range(2)}
    (own,) = (partition for partition in range(2) if found[partition])
    assert found[own] == [(1, Change(row, row)), (2, Change(row, None))]
    assert list(place.history.read(own, 1)) == [(2, Change(row, None))]
    assert place.history.end(own) == 2
    assert Path(place.directory).parent == tmp_path
    assert place.history.kept_ms == (1_000 + 86_400_000) // 2

    delete(log_connection, ["kept.v2"])
    ensure_topic(log_connection, "kept.v2", 2)
    assert indexes().place(table, KEY).directory != place.directory  # what was kept of the old one is not of this
    delete(log_connection, ["kept.v2"])


def test_before_it_runs_a_job_names_the_tables_that_it_writes():
    known = KnownIndexes([table])
    known.place(table, KEY)
    known.place(table, KEY)
    assert known.used == ["kept"]
    for other in (changelog("other", key="n"), changelog("kept", key="n")):
        with pytest.raises(UserError, match=f"the job does not write table {other.name}"):
            known.place(other, KEY)


def test_in_a_test_the_history_is_what_the_job_has_written():
    indexes = ListedIndexes([table])
    at = datetime(2026, 5, 1, tzinfo=UTC)
    written = {"kept": [{"day": at, "n": 1, "text": "a"}]}
    assert indexes.place(table, KEY).history.end(0) == 0
    indexes.follow(written)
    written["kept"].append({"day": at, "n": 1, "text": None, "_deleted": True})
    indexes.follow(written)
    place = indexes.place(table, KEY)
    key = {"day": at, "n": 1}
    assert list(place.history.read(0, 0)) == [(1, Change(key, written["kept"][0])), (2, Change(key, None))]
    indexes.close()
    assert not Path(place.directory).parent.exists()
