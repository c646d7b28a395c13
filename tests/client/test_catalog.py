import pytest

from mainstem.client.append import append
from mainstem.client.catalog import (
    TopicEntry,
    entries,
    read_catalog,
    retired_readers,
    topic_entries,
    users_of,
    write_catalog,
)
from mainstem.client.internal import CATALOG
from mainstem.core import CorruptData


def test_the_last_entry_of_a_name_counts_and_none_removes_it(connection, name):
    entry = TopicEntry(kind="changelog", key=("id",), subject=f"{name}-value")
    write_catalog(connection, {f"topic:{name}": TopicEntry(), f"job:{name}": {"version": "v1"}})
    write_catalog(connection, {f"topic:{name}": entry, f"job:{name}": None})
    catalog = read_catalog(connection)
    assert topic_entries(catalog)[name] == entry
    assert name not in entries(catalog, "job")


def test_an_entry_that_is_no_object_is_told(connection, name):
    key = f"topic:{name}".encode()
    append(connection, CATALOG, [(key, b"nonsense")])
    with pytest.raises(CorruptData, match=name):
        read_catalog(connection)
    append(connection, CATALOG, [(key, None)])


def test_an_entry_of_a_topic_that_is_none_is_told_by_its_key():
    """Every event was answered with 500, and the log had a line that named no topic."""
    with pytest.raises(CorruptData, match=r"__mainstem.catalog: key 'topic:orders': .* `\$.key`"):
        topic_entries({"topic:visits": {}, "topic:orders": {"key": 5}})


def test_retired_readers_are_known_by_the_key_under_which_they_spoke():
    jobs = {
        "job:a": {"versions": {}, "retired": ["1", "2"]},
        "job:b": {"versions": {"1": {}}},
        "sink:c": {"retired": True, "topics": ["orders"]},
        "sink:d": {"retired": True, "reader": "d of p"},
        "sink:e": {"pattern": "x"},
    }
    assert retired_readers(jobs) == {"a@1", "a@2", "c", "d of p"}
    assert users_of(jobs, "orders") == ([], [])


def test_who_writes_and_who_reads_a_topic_is_known():
    catalog = {
        "topic:orders": {"producer": "source:shop"},
        "topic:totals.v2": {"producer": "job:totals"},
        "job:totals": {"versions": {"2": {"output": "totals.v2", "inputs": {"o": "orders"}}, "3": {}}},
        "sink:lake": {"type": "delta", "pattern": "^[^_].*"},
        "sink:replica": {"type": "postgres", "topics": ["orders"]},
    }
    assert users_of(catalog, "orders") == (["source shop"], ["job totals@2", "sink lake", "sink replica"])
    assert users_of(catalog, "totals.v2") == (["job totals@2"], ["sink lake"])
    assert users_of(catalog, "_own") == ([], [])
