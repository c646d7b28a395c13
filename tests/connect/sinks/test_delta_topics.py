"""What is known of the topics of a batch."""

import json
import os

import pytest

from mainstem.client.catalog import write_catalog
from mainstem.client.topics import ensure_internal_topics
from mainstem.connect.sinks.delta_topics import (
    NO_SCHEMA,
    Slice,
    Topics,
    batch_ends,
    batch_starts,
    begin_at,
    ids_of,
    offsets_between,
)
from tests.support.lakehouse import FLIGHT, PLANE, register


def test_a_batch_begins_and_ends_where_spark_planned_it(tmp_path):
    begin_at(tmp_path, {"flights": {"0": 2, "11": 4}})
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchWatermarkMs":0}\n{"flights":{"0":5,"11":7}}')
    assert batch_ends(tmp_path, 3) == batch_starts(tmp_path, 4) == {"flights": {0: 5, 11: 7}}
    assert batch_starts(tmp_path, 0) == {"flights": {0: 2, 11: 4}}


def test_offsets_are_counted_from_0_where_a_topic_is_new():
    assert offsets_between({"flights": {0: 3}}, {"flights": {0: 5, 1: 1}, "new": {0: 4}}) == 2 + 1 + 4
    assert offsets_between({"held": {0: 9}}, {"held": {0: 9}}) == 0


def test_a_query_begins_where_it_is_told_and_nowhere_else(tmp_path, monkeypatch):
    """What could not be removed was left: the query went on from there, past the tables."""
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"flights":{"0":7}}')

    def fail(*args, **options):
        raise PermissionError("busy")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(PermissionError):
            begin_at(checkpoint, {"flights": {"0": 5}})
    begin_at(checkpoint, {"flights": {"0": 5}})
    assert not (checkpoint / "offsets").exists()
    assert (checkpoint / "sources" / "0" / "0").read_bytes() == b'\0v1\n{"flights":{"0":5}}'


def test_ids_are_those_of_values_that_have_one():
    assert ids_of([Slice(0, None, 1, 0), Slice(0, NO_SCHEMA, 1, 0), Slice(1, 7, 1, 0)]) == {7}


def test_a_changelog_is_told_by_the_catalog_or_by_its_records(log_connection):
    ensure_internal_topics(log_connection)
    register(log_connection, {1: FLIGHT, 3: PLANE})
    write_catalog(log_connection, {"topic:rates": {"kind": "changelog", "key": ["name"], "subject": "rates-value"}})
    topics = Topics(log_connection)
    flights, planes, nothing = [Slice(0, 1, 1, 0)], [Slice(0, 3, 1, 0)], [Slice(0, NO_SCHEMA, 1, 0)]
    topics.learn({"flights": flights, "planes": planes, "rates": nothing, "bytes": nothing})
    assert topics.schemas[1] == FLIGHT
    assert topics.has_changes(planes)
    assert [topics.is_changelog(*each) for each in (("flights", flights), ("planes", planes), ("rates", nothing))] == [
        False,
        True,
        True,
    ]
    assert [topics.is_typed(*each) for each in (("flights", flights), ("rates", nothing), ("bytes", nothing))] == [
        True,
        True,
        False,
    ]

    # what came since is asked for with the batch that needs it
    write_catalog(log_connection, {"topic:later": {"kind": "changelog", "key": ["name"]}})
    register(log_connection, {9: json.dumps("string")})
    topics.learn({"later": [Slice(0, 9, 1, 0)]})
    assert topics.is_changelog("later", nothing)
    assert topics.schemas[9] == '"string"'
