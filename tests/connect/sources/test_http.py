"""Real requests against a gateway on a real log."""

import gzip
import json
import time
import uuid
from types import SimpleNamespace

import httpx
import pytest

from mainstem.client.append import append
from mainstem.client.basis import Basis, furthest, parse
from mainstem.client.catalog import TopicEntry, write_catalog
from mainstem.client.heartbeats import Statement, decode
from mainstem.client.internal import CATALOG, HEARTBEATS
from mainstem.client.topics import delete, end_offsets, ensure_topic, topic_ids
from mainstem.connect.gateway import Gateway
from mainstem.connect.gateway_config import CollectorConfig, GatewayConfig
from mainstem.connect.sources import http_append
from mainstem.connect.sources.http import Collector, Result, _ends
from mainstem.connect.sources.http_append import Placed
from mainstem.connect.sources.http_events import parse as parse_events
from mainstem.connect.sources.http_topics import Encoder
from mainstem.registry import Registry, avro
from mainstem.registry.quarantine import quarantine_topic
from mainstem.registry.records import SchemaValue
from tests.support.records import committed
from tests.support.serving import served

AT = {"type": "long", "logicalType": "timestamp-micros"}
ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "customer", "type": "string"},
            {"name": "cents", "type": "long"},
            {"name": "at", "type": AT},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)


@pytest.fixture(scope="module")
def gateway_url(log_connection):
    limits = CollectorConfig(
        name=f"test-{uuid.uuid4().hex[:8]}", body_bytes=200_000, batch_events=500, event_bytes=5_000
    )
    gateway = Gateway(log_connection, GatewayConfig(collector=limits), on_taken_over=lambda: None)
    with served(gateway.app) as url:
        yield url


@pytest.fixture(scope="module")
def http(gateway_url):
    with httpx.Client(base_url=gateway_url, timeout=30) as client:
        yield client


@pytest.fixture
def registry(gateway_url):
    return Registry(gateway_url)


@pytest.fixture
def topic(log_connection, registry):
    name = f"orders-{uuid.uuid4().hex[:8]}"
    ensure_topic(log_connection, name, 2)
    registry.register(f"{name}-value", ORDER)
    write_catalog(log_connection, {f"topic:{name}": TopicEntry("stream", ("customer",), "at", f"{name}-value")})
    return name


def order(number, **more):
    return {"customer": f"c{number % 5}", "cents": number, "at": f"2013-01-01T00:00:{number % 60:02}Z", **more}


def post(http, topic, body, **more):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **more.pop("headers", {})}
    return http.post(f"/v1/topics/{topic}/events", content=content, headers=headers, **more)


def rows(connection, registry, topic):
    return [avro.decode(message.value(), registry.schema) for message in committed(connection, topic)]


def test_events_are_typed_keyed_and_where_the_answer_says(http, log_connection, registry, topic):
    answer = post(http, topic, [order(n) for n in range(10)])
    assert answer.status_code == 200
    body = answer.json()
    assert (body["accepted"], body["duplicate"], body["rejected"]) == (10, 0, 0)
    found = {(m.partition(), m.offset()): m for m in committed(log_connection, topic)}
    for number, result in enumerate(body["results"]):
        message = found[result["partition"], result["offset"]]
        assert message.key() == f"c{number % 5}".encode()
        assert avro.decode(message.value(), registry.schema)["cents"] == number
    basis = {int(partition): offset for partition, offset in body["basis"][topic].items()}
    assert basis == {p: max(o for q, o in found if q == p) + 1 for p in {p for p, _ in found}}


def test_bad_events_are_answered_and_kept_and_the_others_land(http, log_connection, registry, topic):
    lines = b'%s\n{"customer"\n{"customer": "c", "cents": "12", "at": 0}\n%s' % tuple(
        json.dumps(order(n)).encode() for n in (1, 2)
    )
    answer = post(http, topic, lines, headers={"Content-Type": "application/x-ndjson", "Idempotency-Key": "bad-1"})
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [result["status"] for result in results] == ["accepted", "rejected", "rejected", "accepted"]
    assert (results[1]["code"], results[2]["code"]) == ("not_json", "unfit")
    assert results[2]["reason"] == '/cents: expected long, found "12"'
    again = post(http, topic, lines, headers={"Content-Type": "application/x-ndjson", "Idempotency-Key": "bad-1"})
    assert [result["status"] for result in again.json()["results"]] == [
        "duplicate",
        "rejected",
        "rejected",
        "duplicate",
    ]
    assert sorted(row["cents"] for row in rows(log_connection, registry, topic)) == [1, 2]
    kept = rows(log_connection, registry, quarantine_topic(topic))
    assert [(row["error"], row["value"]) for row in kept] == [
        ("not_json", b'{"customer"'),
        ("unfit", b'{"customer": "c", "cents": "12", "at": 0}'),
    ]
    assert kept[1]["reason"] == results[2]["reason"]
    assert kept[1]["schema_id"] == registry.latest(f"{topic}-value").id


def test_an_event_is_held_as_its_bytes_while_it_waits_for_the_log_a_refused_one_too():
    encoder = Encoder("orders", TopicEntry(), SchemaValue("orders-value", 1, 7, ORDER))
    events = parse_events({}, json.dumps([order(1), {"customer": [[], []]}]).encode(), 10, 1000)
    no_ids = SimpleNamespace(of=lambda _: None)
    collector = SimpleNamespace(config=CollectorConfig())
    intakes = [Collector._take(collector, encoder, no_ids, event) for event in events]
    assert [(intake.code, intake.event.value) for intake in intakes] == [("", None), ("unfit", None)]


def test_the_basis_is_past_an_event_whose_offset_is_not_known():
    placed = [Placed("accepted", 0, -1, 16), Placed("duplicate", 0, 11, 12), Placed("accepted", 1, 4, 5)]
    results = [Result(n, place.status, place.partition, place.offset) for n, place in enumerate(placed)]
    rejected = Result(3, "rejected", 1, 40)  # in the quarantine
    assert _ends([*results, rejected], [*placed, Placed("accepted", 1, 40, 41)]) == {0: 16, 1: 5}


def test_the_token_of_an_answer_has_what_was_appended_and_what_came_with_the_request(gateway_url, topic):
    with httpx.Client(base_url=gateway_url, timeout=30) as client:
        first = post(client, topic, order(1)).json()
        written = {topic: {int(p): end for p, end in first["basis"][topic].items()}}
        assert parse(first["token"]).positions == written
        answer = post(client, topic, order(2))  # the client sends its cookie
        body = answer.json()
        both = furthest(written, {topic: {int(p): end for p, end in body["basis"][topic].items()}})
        assert parse(body["token"]).positions == both
        assert answer.headers["Mainstem-Basis"] == body["token"] == client.cookies["mainstem_basis"]
        elsewhere = Basis(parse(body["token"]).log, {"elsewhere": {3: 5}}).token
        body = post(client, topic, order(3), headers={"Mainstem-Basis": elsewhere}).json()
        assert parse(body["token"]).positions.keys() == {topic, "elsewhere"}


def test_a_token_that_is_of_no_use_is_refused_before_anything_is_appended(http, log_connection, topic):
    for token, reason in (("rubbish", "starts with ms1"), (Basis("other", {"t": {0: 1}}).token, "in log")):
        answer = post(http, topic, order(1), headers={"Mainstem-Basis": token})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_token")
        assert reason in answer.json()["error"]["message"]
    assert not committed(log_connection, topic)


def test_a_table_is_answered_when_every_reader_sees_it(http, log_connection, topic):
    """A job that starts a batch between a commit and its markers would be joined with the table of before."""
    write_catalog(log_connection, {f"topic:{topic}": TopicEntry("changelog", ("customer",), "at", f"{topic}-value")})
    for number in range(20):
        ends = post(http, topic, order(number)).json()["basis"][topic]
        stable = end_offsets(log_connection, topic, committed=True)
        assert all(stable[int(partition)] >= end for partition, end in ends.items())


def test_a_body_that_is_no_json_at_all(http, log_connection, registry, topic):
    answer = post(http, topic, b"[{]")
    assert answer.status_code == 400
    assert answer.json()["results"][0]["code"] == "not_json"
    assert rows(log_connection, registry, quarantine_topic(topic))[0]["value"] == b"[{]"
    assert post(http, topic, [{"customer": 1}]).status_code == 422  # JSON, and all of it refused


def test_bad_utf_8_is_one_bad_event_and_kept(http, log_connection, registry, topic):
    lines = b'%s\n{"customer":"\xff\xfe"}\n%s' % tuple(json.dumps(order(n)).encode() for n in (1, 2))
    answer = post(http, topic, lines, headers={"Content-Type": "application/x-ndjson"})
    assert [result["status"] for result in answer.json()["results"]] == ["accepted", "rejected", "accepted"]
    assert answer.json()["results"][1]["reason"].startswith("not JSON: 'utf-8' codec can't decode byte 0xff")
    (kept,) = rows(log_connection, registry, quarantine_topic(topic))
    assert kept["value"] == b'{"customer":"\xff\xfe"}'
    for body in (b'{"event_time":"\xff"}', b'{"a":' * 1900):
        answer = http.post(f"/v1/topics/{topic}/heartbeat", content=body)
        print(answer.text)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_json")


def test_ids_of_three_kinds_make_retries_harmless(http, log_connection, registry, topic):
    def statuses(body, **more):
        return [
            (result["status"], result.get("code", "")) for result in post(http, topic, body, **more).json()["results"]
        ]

    accepted, duplicate, reused = ("accepted", ""), ("duplicate", ""), ("rejected", "id_reused")
    assert statuses([order(1, id="e1"), order(2, id="e2")]) == [accepted, accepted]
    assert statuses([order(2, id="e2"), order(3, id="e1")]) == [duplicate, reused]
    assert statuses([order(4)], headers={"Idempotency-Key": "k"}) == [accepted]
    assert statuses([order(4)], headers={"Idempotency-Key": "k"}) == [duplicate]
    assert statuses([order(4)]) == [accepted]  # without any id: as often as it is sent
    assert statuses([order(5)], params={"id": "customer,cents"}) == [accepted]
    assert statuses([order(5)], params={"id": "customer,cents"}) == [duplicate]
    alike = [order(7) | {"customer": "a b", "note": "c"}, order(8) | {"customer": "a", "note": "b c"}]
    assert statuses(alike, params={"id": "customer,note"}) == [accepted, accepted]
    event = {"specversion": "1.0", "id": "9", "source": "/shop", "type": "order", "data": order(6)}
    kind = {"Content-Type": "application/cloudevents+json"}
    assert statuses(event, headers=kind) == [accepted]
    assert statuses(
        [event, {**event, "source": "/b"}], headers={"Content-Type": "application/cloudevents-batch+json"}
    ) == [duplicate, accepted]
    binary = {"ce-specversion": "1.0", "ce-id": "9", "ce-source": "/shop", "ce-type": "order"}
    assert statuses(order(6), headers=binary) == [duplicate]
    assert sorted(row["cents"] for row in rows(log_connection, registry, topic)) == [1, 2, 4, 4, 5, 6, 6, 7, 8]
    assert rows(log_connection, registry, quarantine_topic(topic))[0]["error"] == "id_reused"
    headers = [dict(message.headers() or []) for message in committed(log_connection, topic)]
    assert {
        "ce_specversion": b"1.0",
        "ce_id": b"9",
        "ce_source": b"/shop",
        "ce_type": b"order",
        "mainstem.id": b"/shop 9",
    } in headers


def test_a_field_called_id_that_is_the_key_names_a_thing_and_not_an_event(http, log_connection, registry):
    name = f"things-{uuid.uuid4().hex[:8]}"
    ensure_topic(log_connection, name, 1)
    registry.register(
        f"{name}-value", '{"type":"record","name":"T","fields":[{"name":"id","type":"int"},{"name":"v","type":"int"}]}'
    )
    write_catalog(log_connection, {f"topic:{name}": TopicEntry("changelog", ("id",), None, f"{name}-value")})
    for value in (1, 2):
        assert post(http, name, [{"id": 7, "v": value}]).json()["accepted"] == 1
    assert [row["v"] for row in rows(log_connection, registry, name)] == [1, 2]


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"[" + b"1," * 200_000 + b"1]", {}, 413, "body_too_large"),
        (json.dumps([1] * 600).encode(), {}, 413, "too_many_events"),
        (b"a,b", {"Content-Type": "text/csv"}, 415, "unknown_content_type"),
        (b"x", {"Content-Encoding": "gzip"}, 400, "not_gzip"),
        (gzip.compress(b" " * 300_000), {"Content-Encoding": "gzip"}, 413, "body_too_large"),
        (b"[]", {}, 400, "no_events"),
    ],
)
def test_limits_are_told(http, topic, body, headers, status, code):
    answer = post(http, topic, body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_an_id_that_is_too_long_is_quarantined_without_it(http, log_connection, registry, topic):
    """Ids stay in memory, 100,000 of each topic."""
    first, second = post(http, topic, [order(1, id="x" * 513), order(2, id="x" * 512)]).json()["results"]
    assert (first["code"], second["status"]) == ("id_too_long", "accepted")
    assert first["reason"] == "its id has 513 bytes, at most 512"
    assert len(rows(log_connection, registry, quarantine_topic(topic))) == 1
    answer = post(http, topic, [order(3)], headers={"Idempotency-Key": "x" * 600}).json()
    assert answer["results"][0]["code"] == "id_too_long"


def test_an_event_that_is_too_large_is_quarantined(http, topic):
    answer = post(http, topic, [order(1, note="x" * 6_000), order(2)])
    first, second = answer.json()["results"]
    assert (first["code"], second["status"]) == ("event_too_large", "accepted")


def test_an_event_whose_record_is_too_large_is_quarantined(http, log_connection, registry):
    """Three bytes of JSON are a default of 300: the log refused the record, and with it all events of the request."""
    topic = f"wide-{uuid.uuid4().hex[:8]}"
    ensure_topic(log_connection, topic, 1, {"max.message.bytes": "10000"})
    item = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "string", "default": "x" * 300}]}
    fields = [{"name": "items", "type": {"type": "array", "items": item}}]
    registry.register(f"{topic}-value", json.dumps({"type": "record", "name": "R", "fields": fields}))
    few, many = {"items": [{}]}, {"items": [{}] * 40}
    first, second, third = post(http, topic, [few, many, few]).json()["results"]
    assert [first["status"], second["status"], third["status"]] == ["accepted", "rejected", "accepted"]
    assert second["code"] == "event_too_large"
    assert second["reason"] == "12087 bytes as a record, at most 5000"
    assert rows(log_connection, registry, topic) == [{"items": [{"a": "x" * 300}]}] * 2
    (kept,) = rows(log_connection, registry, quarantine_topic(topic))
    assert json.loads(kept["value"]) == many
    described = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-note": "y" * 2_500}
    refused = post(http, topic, {"items": [{}] * 12}, headers=described).json()["results"][0]
    assert refused["code"] == "event_too_large"  # its attributes are headers of the record


def test_a_bad_cloudevent_of_long_attributes_is_kept_with_them_once(http, log_connection, registry, topic):
    """They are in its bytes: as headers of its record too, the log refused it, and with it the request."""
    ensure_topic(log_connection, quarantine_topic(topic), 1, {"max.message.bytes": "8000"})
    envelope = {"specversion": "1.0", "source": "/s", "type": "t"}
    bad = {**envelope, "id": "1", "note": "x" * 4_500, "data": {}}
    few = {**envelope, "id": "2", "note": "y", "data": {}}
    batch = {"Content-Type": "application/cloudevents-batch+json"}
    answer = post(http, topic, [bad, few, {**envelope, "id": "3", "data": order(1)}], headers=batch).json()
    assert [result["status"] for result in answer["results"]] == ["rejected", "rejected", "accepted"]
    assert [json.loads(row["value"]) for row in rows(log_connection, registry, quarantine_topic(topic))] == [bad, few]
    headers = [dict(message.headers() or []) for message in committed(log_connection, quarantine_topic(topic))]
    assert [each.get("ce_note") for each in headers] == [None, b"y"]


def test_a_web_page_of_another_host_cannot_post(http, log_connection, registry, topic):
    answer = post(http, topic, [order(1)], headers={"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_origin")
    assert rows(log_connection, registry, topic) == []


def test_gzip_is_taken(http, topic):
    answer = post(http, topic, gzip.compress(json.dumps([order(1)]).encode()), headers={"Content-Encoding": "gzip"})
    assert answer.json()["accepted"] == 1


def test_a_record_of_the_catalog_that_nobody_can_read_is_told(http, log_connection, topic):
    append(log_connection, CATALOG, [(f"topic:{topic}.odd".encode(), b"nonsense")])
    try:
        answer = post(http, f"{topic}.unheard-of", [order(1)])
    finally:
        append(log_connection, CATALOG, [(f"topic:{topic}.odd".encode(), None)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "corrupt")
    assert f"topic:{topic}.odd" in answer.json()["error"]["message"]


def test_an_unknown_topic_is_answered_with_those_that_exist(http, topic):
    answer = post(http, "no-such", [1])
    assert answer.status_code == 404
    error = answer.json()
    assert error["error"]["code"] == "unknown_topic"
    assert topic in error["topics"]
    assert topic in error["error"]["hint"]
    assert topic in http.get("/v1/topics").json()["topics"]


def test_the_end_and_heartbeats_are_statements_in_the_log(http, log_connection, topic):
    post(http, topic, [order(n) for n in range(50)])
    beat = http.post(f"/v1/topics/{topic}/heartbeat", json={"event_time": "2013-01-01T00:00:30Z"})
    assert beat.status_code == 200
    assert http.post(f"/v1/topics/{topic}/heartbeat", json={}).json()["error"]["code"] == "no_event_time"
    assert http.post(f"/v1/topics/{topic}/heartbeat", json={"event_time": "soon"}).json()["error"]["code"] == "unfit"
    end = http.post(f"/v1/topics/{topic}/end")
    assert end.status_code == 200
    found = [decode(message.value()) for message in committed(log_connection, HEARTBEATS)]
    mine = [each for each in found if getattr(each, "topic", "") == topic]
    positions, topic_id = end_offsets(log_connection, topic), topic_ids(log_connection, [topic])[topic]
    assert mine == [
        Statement(topic, positions, 1_356_998_430_000, False, topic_id),
        Statement(topic, positions, 1_356_998_449_000, True, topic_id),
    ]


def test_of_a_topic_that_was_made_anew_nothing_of_the_old_one_counts(http, log_connection, registry, topic):
    """Its events were duplicates of what was deleted, and the latest of its event times was that of the old topic."""
    events = [order(n, id=n) for n in range(20)]
    assert post(http, topic, events).json()["accepted"] == 20
    assert http.post(f"/v1/topics/{topic}/end").json()["event_time"] == 1_356_998_419_000
    delete(log_connection, [topic])
    ensure_topic(log_connection, topic, 1)
    assert http.post(f"/v1/topics/{topic}/end").json()["event_time"] == 0
    assert post(http, topic, events[:10]).json()["accepted"] == 10
    assert len(rows(log_connection, registry, topic)) == 10


def test_a_quarantine_that_was_deleted_is_made_anew(http, log_connection, registry, topic):
    """A request with one bad event was refused as a whole until the gateway was started again."""
    name = quarantine_topic(topic)
    assert post(http, topic, [order(1), {"cents": 2}]).json()["rejected"] == 1
    delete(log_connection, [name])
    answer = post(http, topic, [order(3), {"cents": 4}]).json()
    assert [result["status"] for result in answer["results"]] == ["accepted", "rejected"]
    assert [json.loads(row["value"]) for row in rows(log_connection, registry, name)] == [{"cents": 4}]


@pytest.mark.parametrize("suffix", ["", ".quarantine"])
def test_a_topic_that_one_broker_does_not_know_yet_is_worth_a_retry(
    http, log_connection, registry, topic, monkeypatch, suffix
):
    """The answer was 422 `refused`, after which no client sends again, and the event was lost."""
    unheard_of = {f"{topic}{suffix}"}

    def lagging(connection, names):
        return {name: each for name, each in topic_ids(connection, names).items() if name not in unheard_of}

    monkeypatch.setattr(http_append, "topic_ids", lagging)
    answer = post(http, topic, [order(1, id="a"), {"cents": 2}])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "log_unavailable")
    assert answer.headers["Retry-After"]
    unheard_of.clear()
    answer = post(http, topic, [order(1, id="a"), {"cents": 2}])
    assert [result["status"] for result in answer.json()["results"]] == ["accepted", "rejected"]
    assert len(rows(log_connection, registry, topic)) == 1


def test_a_schema_of_a_quarantine_that_was_deleted_is_registered_anew(http, log_connection, registry, topic):
    """What was refused after that could not be read: its schema id was known to nobody."""
    post(http, topic, [order(1), {"cents": 2}])
    # All quarantines have one schema, and so one id.
    subjects = [name for name in http.get("/subjects").json() if name.endswith(quarantine_topic("") + "-value")]
    assert f"{quarantine_topic(topic)}-value" in subjects
    for subject in subjects:
        for permanent in ("false", "true"):
            assert http.delete(f"/subjects/{subject}", params={"permanent": permanent}).status_code == 200
    assert post(http, topic, [order(3), {"cents": 4}]).json()["rejected"] == 1
    *_, last = committed(log_connection, quarantine_topic(topic))
    assert json.loads(avro.decode(last.value(), registry.schema)["value"]) == {"cents": 4}


def test_a_time_that_no_reader_can_hold_is_kept_with_its_reason(http, log_connection, registry, topic):
    answer = post(http, topic, [order(1), {**order(2), "at": 2**63 - 1}])
    assert [result["status"] for result in answer.json()["results"]] == ["accepted", "rejected"]
    assert answer.json()["results"][1]["reason"].startswith("/at: expected long (timestamp-micros)")
    assert [row["cents"] for row in rows(log_connection, registry, topic)] == [1]
    (kept,) = rows(log_connection, registry, quarantine_topic(topic))
    assert (kept["error"], json.loads(kept["value"])["at"]) == ("unfit", 2**63 - 1)


def test_an_end_before_the_first_event_makes_nothing_late(http, topic):
    """It said that nothing older than now follows: whatever came all the same was in no window."""
    assert http.post(f"/v1/topics/{topic}/end").json()["event_time"] == 0


def test_the_end_after_a_restart_finds_the_event_time_in_the_topic(http, log_connection, topic):
    accepted = post(http, topic, [order(7), order(3)]).json()
    plain = ORDER.replace('"logicalType": "timestamp-micros"', '"doc": ""')
    far = avro.encode(accepted["schema_id"], plain, {**order(1), "at": 2**63 - 1})  # as any Kafka client may write
    append(log_connection, topic, [(b"c1", far)])
    other = CollectorConfig(name=f"test-{uuid.uuid4().hex[:8]}")
    gateway = Gateway(log_connection, GatewayConfig(collector=other), on_taken_over=lambda: None)
    with served(gateway.app) as url:
        assert httpx.post(f"{url}/v1/topics/{topic}/end", timeout=30).json()["event_time"] == 1_356_998_407_000


def test_the_end_after_a_restart_is_the_latest_of_all_that_was_posted(http, log_connection, topic):
    """It was the latest that this process had taken: a late event after a restart, and what others brought was late."""
    assert post(http, topic, [order(7, at="2013-12-01T00:00:00Z", id="a")]).json()["accepted"] == 1
    other = CollectorConfig(name=f"test-{uuid.uuid4().hex[:8]}")
    gateway = Gateway(log_connection, GatewayConfig(collector=other), on_taken_over=lambda: None)
    with served(gateway.app) as url, httpx.Client(base_url=url, timeout=30) as later:
        assert post(later, topic, [order(8, at="2013-06-01T00:00:00Z")]).json()["accepted"] == 1
        assert post(later, topic, [order(9, at="2014-01-01T00:00:00Z", id="a")]).json()["rejected"] == 1
        assert later.post(f"/v1/topics/{topic}/end").json()["event_time"] == 1_385_856_000_000


def test_the_end_leaves_out_a_record_that_is_none_of_the_topics(http, log_connection, registry, topic):
    """Of a schema that nobody knows, or of a text alone: the end was refused while it was among the topic's last."""
    assert post(http, topic, [order(7)]).json()["accepted"] == 1
    text = avro.encode(registry.register(f"{topic}-text", '"string"'), '"string"', "text")
    append(log_connection, topic, [(b"c1", b"\0\0\x7f\xff\xffx"), (b"c1", text)])
    other = CollectorConfig(name=f"test-{uuid.uuid4().hex[:8]}")
    gateway = Gateway(log_connection, GatewayConfig(collector=other), on_taken_over=lambda: None)
    with served(gateway.app) as url:
        assert httpx.post(f"{url}/v1/topics/{topic}/end", timeout=30).json()["event_time"] == 1_356_998_407_000


@pytest.mark.parametrize(
    ("kind", "at", "expected"),
    [
        ("timestamp-nanos", "2013-01-01T00:00:07Z", 1_356_998_407_000),
        ("local-timestamp-millis", "2013-01-01T00:00:07", 1_356_998_407_000),
        ("date", "2013-01-01", 1_356_998_400_000),
        ("", 7, 0),
    ],
)
def test_the_end_after_a_restart_knows_every_kind_of_time(
    http, log_connection, registry, monkeypatch, kind, at, expected
):
    """Nanoseconds and days were an error of the gateway for ever, and a time without zone was one of the machine's."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    name = f"times-{uuid.uuid4().hex[:8]}"
    ensure_topic(log_connection, name, 1)
    fields = [{"name": "at", "type": {"type": "int" if kind == "date" else "long", "logicalType": kind}}]
    registry.register(f"{name}-value", json.dumps({"type": "record", "name": "T", "fields": fields}))
    write_catalog(log_connection, {f"topic:{name}": TopicEntry("stream", (), "at", f"{name}-value")})
    assert post(http, name, [{"at": at}]).json()["accepted"] == 1
    other = CollectorConfig(name=f"test-{uuid.uuid4().hex[:8]}")
    gateway = Gateway(log_connection, GatewayConfig(collector=other), on_taken_over=lambda: None)
    try:
        with served(gateway.app) as url:
            assert httpx.post(f"{url}/v1/topics/{name}/end", timeout=30).json()["event_time"] == expected
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_new_version_of_the_schema_counts_at_once(http, registry, topic):
    assert post(http, topic, [order(1, tip=5)]).json()["results"][0]["reason"].startswith("/tip: unknown field")
    wider = json.loads(ORDER)
    wider["fields"].append({"name": "tip", "type": "int", "default": 0})
    schema_id = registry.register(f"{topic}-value", json.dumps(wider))
    assert post(http, topic, [order(1, tip=5)]).json()["schema_id"] == schema_id
