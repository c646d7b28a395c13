import json

import pytest

from mainstem.client.catalog import TopicEntry
from mainstem.core import UserError
from mainstem.registry.client import RegisteredSchema
from mainstem.registry.errors import NotFound
from mainstem.serve.config import ViewConfig
from mainstem.serve.engines import Engine, NotKnownYet
from mainstem.serve.errors import OtherShape
from mainstem.serve.index import Applied


class Known:
    def __init__(self, **schemas):
        self.schemas = schemas

    def texts(self, subject):
        return {self.schemas[subject]} if subject in self.schemas else set()

    def latest(self, subject):
        if subject not in self.schemas:
            raise NotFound(subject)
        return RegisteredSchema(subject, 1, 1, self.schemas[subject])


def record(**columns):
    fields = [{"name": name, "type": kind} for name, kind in columns.items()]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


PLANES = record(tailnum="string", seats="int", since={"type": "long", "logicalType": "timestamp-millis"})
KNOWN = Known(**{"planes-value": PLANES, "airports-value": record(faa="string", seats="string")})


def engine(kind, *topics, **entries):
    names = {topic: topic for topic in topics}
    config = ViewConfig(kind, list(topics) or ["planes"])
    return Engine(config, names, {name: TopicEntry(**entry) for name, entry in entries.items()}, "100MB")


def test_a_search_looks_in_the_columns_of_all_its_topics():
    fields = engine("search", "planes", "airports").fields(KNOWN)
    assert fields == {"tailnum": "text", "seats": "text", "since": "time", "faa": "text"}
    assert engine("search", "planes").fields(KNOWN)["seats"] == "integer"


def test_a_topic_without_a_schema_is_waited_for():
    with pytest.raises(NotKnownYet, match="topic later has no schema yet"):
        engine("search", "later").fields(KNOWN)


def test_the_key_is_that_of_the_topic_unless_the_view_names_one():
    assert engine("key-value", "planes", planes={"key": ("tailnum",)}).key_columns == ("tailnum",)
    with pytest.raises(NotKnownYet, match="columns of its key"):
        _ = engine("key-value", "planes").key_columns


@pytest.mark.parametrize("kind", ["key-value", "search", "sql"])
def test_an_index_that_was_begun_is_opened_again(tmp_path, kind):
    made = engine(kind, "planes", planes={"key": ("tailnum",), "kind": "changelog"})
    for _ in range(2):
        index = made.open(tmp_path / "i", KNOWN)
        assert index.applied is None
        index.close()


def test_a_search_with_other_columns_has_to_be_built_anew(tmp_path):
    made = engine("search", "planes")
    index = made.open(tmp_path / "i", KNOWN)
    made.learn(index, "planes", [PLANES], KNOWN)
    wider = Known(**{"planes-value": record(tailnum="string", engine="string")})
    with pytest.raises(OtherShape):
        made.learn(index, "planes", [PLANES], wider)
    index.close()


def test_a_schema_that_a_table_cannot_take_is_passed_over_unless_it_is_the_topic_s_own(tmp_path):
    made = engine("sql", "planes")
    index = made.open(tmp_path / "i", KNOWN)
    foreign = [record(seats="string"), '"string"', record(TAILNUM="string")]
    made.learn(index, "planes", [PLANES, *foreign, record(engine="string")], KNOWN)
    index.apply([], Applied("log"))
    columns = index.query("FROM planes").columns
    assert columns == ["_partition", "_offset", "_key", "tailnum", "seats", "since", "engine"]
    for text in foreign:
        with pytest.raises(UserError):
            made.learn(index, "planes", [text], Known(**{"planes-value": text}))
    index.close()


@pytest.mark.parametrize(
    ("texts", "columns"),
    [
        ([PLANES], ["tailnum", "seats", "since"]),
        ([record(a="int"), record(b="string", a="long")], ["b", "a"]),  # the latest first
        ([record(a="int"), record(a="string")], []),
        ([record(a="int", A="int")], []),
        ([record(_key="int")], []),
        (['"string"'], []),
        ([], []),
    ],
)
def test_a_new_table_has_the_columns_of_all_schemas_of_its_topic_where_they_go_together(tmp_path, texts, columns):
    known = Known(**({"planes-value": texts[-1]} if texts else {}))
    known.texts = lambda _: set(texts)
    index = engine("sql", "planes").open(tmp_path / "i", known)
    assert index.query("FROM planes").columns == ["_partition", "_offset", "_key", *columns]
    index.close()


def test_columns_are_told_as_far_as_they_are_known():
    assert engine("sql", "planes", "later").columns(KNOWN) == {
        "planes": {"tailnum": "VARCHAR", "seats": "INTEGER", "since": "TIMESTAMP WITH TIME ZONE"}
    }
