import asyncio
import json
import uuid
from pprint import pformat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.catalog import TopicEntry, write_catalog
from mainstem.client.topics import ensure_topic
from mainstem.connect.sources.http_events import parse as parse_events
from mainstem.connect.sources.http_topics import (
    Encoder,
    NoSchema,
    NotAnInput,
    Topics,
    UnknownTopic,
    event_time_ms,
)
from mainstem.connect.sources.http_values import Unfit
from mainstem.core import ManualClock
from mainstem.registry import avro
from mainstem.registry.records import Reference, SchemaValue
from mainstem.registry.state import NewSchema, State
from tests.support.typed_events import typed_records

AT = {"type": "long", "logicalType": "timestamp-micros"}
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": ["null", AT], "default": None}],
    }
)


def encoder(**entry):
    return Encoder("orders", TopicEntry(**entry), SchemaValue("orders-value", 1, 7, SCHEMA))


def test_an_event_becomes_key_value_and_event_time():
    encoded = encoder(key=("id",), event_time="at").encode({"id": 3, "at": "1970-01-01T00:00:01.5Z"})
    assert (encoded.key, encoded.event_time_ms) == (b"3", 1500)
    assert avro.decode(encoded.value, {7: SCHEMA}.__getitem__)["id"] == 3
    assert encoder(event_time="at").encode({"id": 3}) == (None, avro.encode(7, SCHEMA, {"id": 3, "at": None}), None)


def test_a_key_that_is_null_is_unfit():
    with pytest.raises(Unfit, match=r"^/at: the key column 'at' is missing or null"):
        encoder(key=("id", "at")).encode({"id": 3})


def test_what_is_nested_too_deep_to_be_checked_is_unfit():
    fields = [{"name": "next", "type": ["null", "Node"], "default": None}]
    node = json.dumps({"type": "record", "name": "Node", "fields": fields})
    chain: dict[str, object] = {}
    for _ in range(900):
        chain = {"next": chain}
    with pytest.raises(Unfit, match="nested too deep"):
        Encoder("nodes", TopicEntry(), SchemaValue("nodes-value", 1, 7, node)).encode(chain)


def test_a_catalog_that_names_a_field_the_schema_does_not_have_is_told():
    with pytest.raises(NoSchema, match="has no field 'nr'"):
        encoder(key=("nr",))


def test_a_schema_that_refers_to_others_is_refused_before_anything_is_written_with_it():
    """Nothing could read what it wrote: readers have the text of one id."""
    version = SchemaValue("orders-value", 2, 7, SCHEMA, references=(Reference("Address", "address", 1),))
    with pytest.raises(NoSchema, match="schema 7 refers to other schemas") as refused:
        Encoder("orders", TopicEntry(), version)
    assert "'orders-value'" in refused.value.hint


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            [
                {
                    "name": "a",
                    "type": {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 30},
                }
            ],
            "InvalidSchema: /fields/0/type: a fixed of 2 bytes holds decimals of at most 4 digits, found 30",
        ),
        ([{"name": "n", "type": "N", "default": {}}], "RecursionError: maximum recursion depth exceeded"),
        ([{"name": "n", "type": "nothing"}], "InvalidSchema: "),
    ],
)
def test_a_schema_that_nothing_can_be_written_with_is_told(fields, reason):
    """Each request was answered by an internal server error without a reason."""
    text = json.dumps({"type": "record", "name": "N", "fields": fields})
    with pytest.raises(NoSchema, match=f"nothing can be written with its schema 7: {reason}") as refused:
        Encoder("orders", TopicEntry(), SchemaValue("orders-value", 2, 7, text))
    assert "'orders-value'" in refused.value.hint


def test_event_times_as_clients_state_them():
    assert event_time_ms(1500) == 1500
    assert event_time_ms("1970-01-01T01:00:01.5+01:00") == 1500
    for wrong in ("now", "1970-01-01T00:00:00", None, 1.5):
        with pytest.raises(Unfit, match="expected a timestamp"):
            event_time_ms(wrong)
    for far in (2**63, -(10**20), "9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+01:00"):
        with pytest.raises(Unfit, match="expected a timestamp of the years 1 to 9999, found"):
            event_time_ms(far)


def test_topics_are_found_when_they_appear_and_refused_with_what_there_is(log_connection):
    run = uuid.uuid4().hex[:8]
    state, clock = State(), ManualClock()
    names = {kind: f"{kind}-{run}" for kind in ("input", "bare", "output", "late")}
    names["kept"] = f"{names['input']}.quarantine"
    for kind in ("input", "bare", "output", "kept"):
        ensure_topic(log_connection, names[kind], 1)
    write_catalog(log_connection, {f"topic:{names['output']}": TopicEntry(producer="job:j")})
    for kind in ("input", "output", "late", "kept"):
        for record in state.register(f"{names[kind]}-value", NewSchema(SCHEMA)).records:
            state.apply(*record)

    async def scenario():
        topics = Topics(log_connection, state, clock)
        assert (await topics.encoder(names["input"])).schema_id == 1
        assert names["input"] in topics.inputs()
        assert not {names["bare"], names["output"], names["kept"]} & set(topics.inputs())
        with pytest.raises(NoSchema, match="has no schema") as no_schema:
            await topics.encoder(names["bare"])
        assert "POST /subjects/" in no_schema.value.hint
        with pytest.raises(NotAnInput, match="is written by job:j"):
            await topics.encoder(names["output"])
        with pytest.raises(NotAnInput, match="is written by quarantine"):
            await topics.encoder(names["kept"])
        with pytest.raises(UnknownTopic) as unknown:
            await topics.encoder(names["late"])
        assert names["input"] in unknown.value.topics
        ensure_topic(log_connection, names["late"], 1)
        clock.advance_ms(1)
        assert (await topics.encoder(names["late"])).topic == names["late"]
        with pytest.raises(UnknownTopic):
            await topics.encoder("__mainstem.catalog")
        for record in state.register(
            f"{names['input']}-value",
            NewSchema(SCHEMA.replace("Order", "Order").replace('"long"}, {', '"long", "doc": "x"}, {', 1)),
        ).records:
            state.apply(*record)
        assert (await topics.encoder(names["input"])).schema_id == 2  # a new version counts at once

    asyncio.run(scenario())


@given(typed_records().flatmap(lambda each: st.tuples(st.just(each[0]), st.lists(each[1], min_size=1, max_size=3))))
def test_what_is_posted_is_what_is_read_of_any_type(events):
    schema, posted = events
    text = json.dumps(schema)
    encoder = Encoder("things", TopicEntry(), SchemaValue("things-value", 1, 7, text))
    body = f"[{','.join(each for each, _ in posted)}]".encode()
    for event, (_, row) in zip(parse_events({}, body, 10, 100_000), posted, strict=True):
        assert not event.error, event.reason
        found = avro.decode(encoder.encode(event.value).value, lambda _: text)
        assert found == row
        assert pformat(found) == pformat(row)  # -0.0, and the type of each part; the order of fields is the schema's
