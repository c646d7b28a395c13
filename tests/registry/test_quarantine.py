import json
import uuid

from mainstem.client.catalog import read_catalog
from mainstem.client.topics import describe_config
from mainstem.registry import avro
from mainstem.registry.quarantine import SCHEMA, Quarantined, encode, ensure_quarantine, quarantine_topic
from mainstem.registry.schema import parse


def test_a_refused_input_comes_back_with_its_bytes_and_reason():
    refused = Quarantined(
        "orders", "http", "unfit", "/id: expected long", b'{"id": "x"}', 1_700_000_000_123, schema_id=4
    )
    row = avro.decode(encode(9, refused), {9: SCHEMA}.__getitem__)
    assert row["value"] == b'{"id": "x"}'
    assert row["at"].timestamp() == 1_700_000_000.123
    assert (row["topic"], row["partition"], row["offset"], row["key"], row["schema_id"]) == ("orders", -1, -1, None, 4)


def test_every_field_may_be_left_out_by_an_older_writer_or_says_what_it_is():
    assert {field.name for field in parse(SCHEMA).fields if not field.has_default} == {
        "topic",
        "stage",
        "error",
        "reason",
        "at",
    }
    assert json.loads(SCHEMA)["namespace"] == "mainstem"


def test_the_topic_is_made_once_and_kept_for_ever(log_connection, live_registry):
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    schema_id = ensure_quarantine(log_connection, live_registry, topic)
    assert ensure_quarantine(log_connection, live_registry, topic) == schema_id
    name = quarantine_topic(topic)
    assert describe_config(log_connection, name)["retention.ms"] == "-1"
    assert read_catalog(log_connection)[f"topic:{name}"]["subject"] == f"{name}-value"
