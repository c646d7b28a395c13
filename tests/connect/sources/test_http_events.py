import base64
import gzip
import json
import os
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.connect.sources.http_events import BadRequest, parse, unpack

JSON = {"content-type": "application/json; charset=utf-8"}
NDJSON = {"content-type": "application/x-ndjson"}
CLOUDEVENT = {
    "specversion": "1.0",
    "id": "7",
    "source": "/shop",
    "type": "order.placed",
    "time": "2013-01-01T00:00:00Z",
}


EVENT_BYTES = 1000


def values(headers, body, limit=10):
    return [(event.index, event.value, event.error) for event in parse(headers, body, limit, EVENT_BYTES)]


def test_arrays_objects_and_lines():
    assert values(JSON, b'[{"a":1}, 2]') == [(0, {"a": 1}, ""), (1, 2, "")]
    assert values(JSON, b' {"a":1}') == [(0, {"a": 1}, "")]
    assert values({}, b'{"a":1}') == [(0, {"a": 1}, "")]
    assert values(NDJSON, b'{"a":1}\n\n{"a"\r\n{"a":2}') == [
        (0, {"a": 1}, ""),
        (1, None, "not_json"),
        (2, {"a": 2}, ""),
    ]


def test_a_bad_line_keeps_its_bytes_and_a_broken_array_is_one_bad_event():
    bad = parse(NDJSON, b'{"a":1}\n{"a"\n', 10, EVENT_BYTES)[1]
    assert (bad.raw, bad.error) == (b'{"a"', "not_json")
    assert bad.reason.startswith("not JSON:")
    (whole,) = parse(JSON, b'[{"a":1},', 10, EVENT_BYTES)
    assert (whole.raw, whole.error) == (b'[{"a":1},', "not_json")
    (whole,) = parse({"content-type": "application/cloudevents-batch+json"}, b"[{", 10, EVENT_BYTES)
    assert whole.error == "not_json"


def test_each_event_of_an_array_has_its_own_bytes():
    assert [event.raw for event in parse(JSON, b'[ {"a": 1} , {"b":2}]', 10, EVENT_BYTES)] == [b'{"a": 1}', b'{"b":2}']


@pytest.mark.parametrize(
    "half", [rb"\ud800", rb"\uDBFF!", rb"\ud83d\ud83d\ude00", rb"\udc00", rb"\\\ud800\n", rb"\ud83d\ude00\ude00"]
)
def test_half_a_surrogate_pair_spoils_its_own_event_only(half):
    """A text that was cut in the middle of an emoji: valid JSON, which has no UTF-8."""
    elements = [b'{"a":"\\\\ud800 \\ud83d\\ude00 ]"}', b'{"a":"%s"}' % half, b"2", b"2"]
    events = parse(JSON, b" [ %s , %s,%s ,\n%s]" % tuple(elements), 10, EVENT_BYTES)
    assert [event.raw for event in events] == elements
    assert [event.error for event in events] == ["", "not_json", "", ""]
    assert "surrogate" in events[1].reason or "truncated" in events[1].reason
    with pytest.raises(BadRequest) as error:
        parse(JSON, b'["%s"%s]' % (half, b",0" * 10), 10, EVENT_BYTES)
    assert error.value.code == "too_many_events"
    (whole,) = parse(JSON, b'["%s",' % half, 10, EVENT_BYTES)
    assert whole.error == "not_json"


def test_cloudevents_structured_and_batched():
    body = {**CLOUDEVENT, "data": {"a": 1}, "traceparent": "x", "weight": 0.25, "exact": 0}
    text = json.dumps(body).replace('"exact": 0', '"exact": 12345678901234567.89')
    (event,) = parse({"content-type": "application/cloudevents+json"}, text.encode(), 10, EVENT_BYTES)
    assert (event.value, event.id) == ({"a": 1}, "/shop 7")
    assert ("ce_type", b"order.placed") in event.headers
    assert ("ce_traceparent", b"x") in event.headers
    assert ("ce_weight", b"0.25") in event.headers
    assert ("ce_exact", b"12345678901234567.89") in event.headers
    encoded = {**CLOUDEVENT, "id": "8", "data_base64": base64.b64encode(b'{"a":2}').decode()}
    one, two = parse(
        {"content-type": "application/cloudevents-batch+json"}, json.dumps([body, encoded]).encode(), 10, EVENT_BYTES
    )
    assert (two.index, two.value, two.id) == (1, {"a": 2}, "/shop 8")
    assert one.raw != two.raw


def test_cloudevents_binary():
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "a%20b",
        "ce-source": "/s",
        "ce-type": "t",
        "content-type": "application/json",
    }
    (event,) = parse(headers, b'{"a":1}', 10, EVENT_BYTES)
    assert (event.value, event.id) == ({"a": 1}, "/s a b")
    assert dict(event.headers)["ce_id"] == b"a b"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"specversion": "0.3"}, '/specversion: expected 1.0, found "0.3"'),
        ({"id": ""}, "/id: expected a text that is not empty"),
        ({"source": None}, "/source: expected a text"),
        ({"type": 3}, "/type: expected a text"),
        ({"data_base64": "*"}, "/data_base64: not base64"),
        ({"data_base64": "AA==", "datacontenttype": "image/png"}, "datacontenttype 'image/png': JSON is taken"),
    ],
)
def test_what_is_no_cloudevent_is_told(change, reason):
    (event,) = parse(
        {"content-type": "application/cloudevents+json"}, json.dumps({**CLOUDEVENT, **change}).encode(), 10, EVENT_BYTES
    )
    assert event.error
    assert event.reason.startswith(reason)
    (event,) = parse({"content-type": "application/cloudevents+json"}, b"[1]", 10, EVENT_BYTES)
    assert event.error == "not_a_cloudevent"


@pytest.mark.parametrize("name", ["specversion", "datacontenttype"])
@pytest.mark.parametrize("value", [b'"' + b"x" * 100_000 + b'"', b"[" * 900 + b"]" * 900])
def test_a_reason_is_short_for_attributes_of_any_length_and_depth(name, value):
    attributes = json.dumps({**CLOUDEVENT, "data_base64": "AA==", name: "here"}).encode().replace(b'"here"', value)
    (event,) = parse({"content-type": "application/cloudevents+json"}, attributes, 10, 200_000)
    assert name in event.reason
    assert len(event.reason) < 200


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({"content-type": "text/csv"}, b"a,b", 415, "unknown_content_type"),
        (JSON, b"[1,2,3]", 413, "too_many_events"),
        (NDJSON, b"1\n2\n3", 413, "too_many_events"),
        (JSON, b"[]", 400, "no_events"),
        (NDJSON, b"\n\n", 400, "no_events"),
    ],
)
def test_requests_that_hold_no_events(headers, body, status, code):
    with pytest.raises(BadRequest) as error:
        parse(headers, body, 2, EVENT_BYTES)
    assert (error.value.status, error.value.code) == (status, code)


def test_what_plain_curl_sends_is_refused_with_what_to_say_instead():
    with pytest.raises(BadRequest) as error:
        parse({"content-type": "application/x-www-form-urlencoded"}, b'{"a":1}', 2, EVENT_BYTES)
    assert str(error.value).startswith("Content-Type: expected application/json, ")
    assert str(error.value).endswith("; found 'application/x-www-form-urlencoded'")
    assert "curl --json" in error.value.hint


@pytest.mark.parametrize(("body", "over"), [(b"[%s]", b", "), (b" [ %s , 1 ] ", b" , ")])
def test_elements_are_counted_as_json_has_them(body, over):
    elements = [b'"a,b\\",["', b'{"a":[1,2,{"b":"]"}]}', b"[[],[]]", b"-1.5e3", b"null"]
    data = body % over.join(elements)
    assert len(parse(JSON, data, 6, EVENT_BYTES)) == len(elements) + (b", 1" in body)
    with pytest.raises(BadRequest, match="more than 4 events"):
        parse(JSON, data, 4, EVENT_BYTES)


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        (JSON, b"[" + b"0," * 1_000_000 + b"0]", "too_many_events"),
        (NDJSON, b"0\n" * 1_000_000, "too_many_events"),
        (JSON, b"[[" + b"{}," * 300_000 + b"{}]]", "event_too_large"),
    ],
)
def test_what_is_refused_is_not_built_before(headers, body, code):
    """16 KB of gzip became 600 MB of values, and then 413."""
    tracemalloc.start()
    try:
        codes = {event.error for event in parse(headers, body, 100, EVENT_BYTES)}
    except BadRequest as error:
        codes = {error.code}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert codes == {code}
    assert peak < 2 * len(body)


def test_an_event_that_is_too_large_keeps_its_bytes_and_the_others_go_on():
    large, ok = parse(NDJSON, b'{"a":"%s"}\n  {"a":1} \r\n' % (b"x" * EVENT_BYTES), 10, EVENT_BYTES)
    assert (large.error, len(large.raw), large.value) == ("event_too_large", EVENT_BYTES + 8, None)
    assert (ok.raw, ok.value) == (b'  {"a":1} \r', {"a": 1})


def test_an_array_that_is_nested_too_deep_is_one_bad_event():
    (event,) = parse(JSON, b"[" * 100_000 + b"," * 20, 10, EVENT_BYTES)
    assert event.error == "not_json"


@pytest.mark.parametrize(
    "bad", [b'{"note":"\xff\xfe"}', b'{"note":"\\ud800"}', b'{"\xff":1}', b"[" * 900, b'{"a":' * 900]
)
def test_bytes_that_are_no_text_are_one_bad_event(bad):
    """They were an internal server error, and the good events beside them were not taken."""
    one, two, three = parse(NDJSON, b'{"a":1}\n%s\n{"a":2}' % bad, 10, 10_000)
    assert (one.value, two.error, two.raw, three.value) == ({"a": 1}, "not_json", bad, {"a": 2})
    (alone,) = parse(JSON, bad, 10, 10_000)
    assert (alone.error, alone.raw) == ("not_json", bad)
    assert parse(JSON, b"[%s,%s,%s]" % (bad, bad, bad), 3, 10_000)[0].error == "not_json"
    binary = {"content-type": "application/json", **{f"ce-{name}": value for name, value in CLOUDEVENT.items()}}
    assert parse(binary, bad, 10, 10_000)[0].error == "not_json"


def test_gzip_within_its_limit():
    packed = gzip.compress(b"x" * 1000)
    assert unpack(packed, "gzip", 1000) == b"x" * 1000
    assert unpack(b"plain", "", 10) == b"plain"
    for body, encoding, status in [
        (packed, "gzip", 413),
        (b"zz", "gzip", 400),
        (b"", "br", 415),
        (b"12345678901", "", 413),
    ]:
        with pytest.raises(BadRequest) as error:
            unpack(body, encoding, 10)
        assert error.value.status == status
    with pytest.raises(BadRequest, match="cut short"):
        unpack(packed[:-9], "gzip", 2000)


def test_every_member_of_a_gzip_body_is_unpacked():
    one, two = os.urandom(5000), b"y" * 5000  # the first ends within a later piece than it began in
    body = gzip.compress(one) + gzip.compress(b"") + gzip.compress(two)
    assert unpack(body, "gzip", 10_000) == one + two
    with pytest.raises(BadRequest, match="larger than 9999 bytes") as error:
        unpack(body, "gzip", 9_999)
    assert error.value.status == 413
    with pytest.raises(BadRequest, match="cut short"):
        unpack(body[:-1], "gzip", 10_000)


@pytest.mark.parametrize("garbage", [b"{}", b"\0" * 8, b"x" * 10_000, b"\x1f\x8b"])
def test_garbage_after_a_gzip_body_is_told(garbage):
    with pytest.raises(BadRequest) as error:
        unpack(gzip.compress(b"x" * 1000) + garbage, "gzip", 2000)
    assert (error.value.status, error.value.code) == (400, "not_gzip")


def test_the_rest_of_a_body_is_not_copied_for_each_of_many_empty_members():
    body, began = gzip.compress(b"") * 100_000, time.process_time()
    assert unpack(body, "gzip", 10) == b""
    assert time.process_time() - began < 5  # 0.2 s; with the copies 100 GB are moved


@given(
    st.binary(max_size=60),
    st.sampled_from(
        [
            "application/json",
            "application/x-ndjson",
            "application/cloudevents+json",
            "application/cloudevents-batch+json",
        ]
    ),
)
def test_any_bytes_are_events_or_a_bad_request(body, content_type):
    try:
        events = parse({"content-type": content_type}, body, 5, EVENT_BYTES)
    except BadRequest:
        return
    assert [event.index for event in events] == list(range(len(events)))
    for event in events:
        assert not event.error or (event.reason and event.raw in body)
