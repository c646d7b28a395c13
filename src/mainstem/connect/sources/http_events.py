"""From the body of a request to its events: JSON, NDJSON, and CloudEvents in their three modes. No I/O.

CloudEvents over HTTP: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md
An event that cannot be read keeps its bytes and its reason; the others of the body go on.
"""

import base64
import re
import urllib.parse
import zlib
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any, Final

import msgspec

from mainstem.core.errors import UserError
from mainstem.registry.schema import brief, cut

JSON_TYPES: Final = ("application/json", "text/json")
NDJSON_TYPES: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
CLOUDEVENT: Final = "application/cloudevents+json"
CLOUDEVENT_BATCH: Final = "application/cloudevents-batch+json"
GZIP_PIECE_BYTES: Final = 4096
_FLOAT_DIGITS: Final = 15  # that any double keeps
KNOWN_TYPES: Final = (*JSON_TYPES, *NDJSON_TYPES, CLOUDEVENT, CLOUDEVENT_BATCH)

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes of any kind."""


def _number(text: str) -> float | Decimal:
    """A number with a fraction or an exponent: a decimal where a float would be another number than what is written."""
    number = float(text)
    if (len(text) <= _FLOAT_DIGITS and text.replace(".", "").isdigit()) or repr(number) == text:
        return number
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of 19 digits
        return number


_raw = msgspec.json.Decoder(msgspec.Raw)
_raws = msgspec.json.Decoder(list[msgspec.Raw])
# Halves of surrogate pairs, and `others`: all that comes before one.
_HALF = re.compile(
    rb"(?P<others>(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)++)"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}",
    re.DOTALL,
)
_LINE = re.compile(rb"\S[^\n]*")
_encoder = msgspec.json.Encoder(decimal_format="number")
_json = msgspec.json.Decoder(float_hook=_number)


class BadRequest(UserError):
    """A request that holds no events we could read; `status` is its HTTP status."""

    def __init__(self, status: int, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


class Event(msgspec.Struct):
    """One event of a request: its bytes, and either its value or why there is none."""

    index: int
    raw: bytes
    value: Any = None
    id: str | None = None
    headers: list[tuple[str, bytes | None]] = []  # CloudEvents' attributes, as its Kafka binding names them
    enveloped: bool = False  # `raw` has them, too
    error: str = ""  # a code; empty if `value` is there
    reason: str = ""


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """The body without its content encoding, at most `limit` bytes.

    Raises:
        BadRequest: 413 too large, 415 an encoding that is not gzip, 400 not what it says.
    """
    match encoding.strip().lower():
        case "" | "identity":
            data = body
        case "gzip" | "x-gzip":
            data = _gunzip(body, limit)
        case other:
            raise BadRequest(415, "unknown_encoding", f"Content-Encoding {other!r}: gzip and identity are taken")
    if len(data) > limit:
        raise BadRequest(413, "body_too_large", f"the body is larger than {limit} bytes", hint="send smaller batches")
    return data


def _gunzip(body: bytes, limit: int) -> bytes:
    """The data of all members of a gzip body, one after another (RFC 1952, section 2.2); more than `limit` is cut.

    Unpacked in pieces: zlib copies what follows the end of a member, and a body may hold a great many empty ones.
    """
    data, place = bytearray(), 0
    unpacker = zlib.decompressobj(wbits=31)
    while place < len(body) and len(data) <= limit:
        if unpacker.eof:
            unpacker = zlib.decompressobj(wbits=31)
        piece = body[place : place + GZIP_PIECE_BYTES]
        try:
            data += unpacker.decompress(piece, limit + 1 - len(data))
        except zlib.error as error:
            raise BadRequest(400, "not_gzip", f"the body is not gzip near byte {place}: {error}") from None
        place += len(piece) - len(unpacker.unused_data)
    if len(data) <= limit and not unpacker.eof:
        raise BadRequest(400, "not_gzip", "the gzip body is cut short")
    return bytes(data)


def parse(headers: Mapping[str, str], body: bytes, limit: int, event_bytes: int) -> list[Event]:
    """The events of a body, at most `limit`; of one with more than `event_bytes` nothing but its bytes.

    Both are seen before a value is built: 16 MB of `0,` are 8 million values.

    Raises:
        BadRequest: 415 a content type that is not known, 413 too many events, 400 nothing in it.
    """
    content_type = headers.get("content-type", JSON_TYPES[0]).partition(";")[0].strip().lower()
    if "ce-specversion" in headers:
        events = [_binary(headers, content_type, body, event_bytes)]
    elif content_type == CLOUDEVENT:
        events = [_sized(_structured, event_bytes)(0, body)]
    elif content_type == CLOUDEVENT_BATCH:
        events = _array_events(body, limit, _sized(_structured, event_bytes))
    elif content_type in NDJSON_TYPES:
        read = _sized(_plain, event_bytes)
        events = [read(number, line) for number, line in enumerate(_lines(body, limit))]
    elif content_type in JSON_TYPES:
        events = _json_events(body, limit, _sized(_plain, event_bytes))
    else:
        known = ", ".join(KNOWN_TYPES)
        raise BadRequest(
            415,
            "unknown_content_type",
            f"Content-Type: expected {known}; found {content_type!r}",
            hint="`curl --json` sends application/json; `curl -d` needs -H 'Content-Type: application/json' beside it",
        )
    if not events:
        raise BadRequest(400, "no_events", "the body holds no events")
    return events


def _sized(read: Callable[[int, bytes], Event], limit: int) -> Callable[[int, bytes], Event]:
    return lambda index, raw: read(index, raw) if len(raw) <= limit else _too_large(index, raw, limit)


def _too_large(index: int, raw: bytes, limit: int) -> Event:
    return Event(index, raw, error="event_too_large", reason=f"{len(raw)} bytes, at most {limit}")


def _json_events(body: bytes, limit: int, read: Callable[[int, bytes], Event]) -> list[Event]:
    return _array_events(body, limit, read) if body.lstrip().startswith(b"[") else [read(0, body)]


def _array_events(body: bytes, limit: int, read: Callable[[int, bytes], Event]) -> list[Event]:
    if body.count(b",") >= limit and _has_more_elements(body, limit):
        raise _too_many(limit)
    try:
        raws = _elements(body, limit)
    except UNREADABLE as error:
        # Where a broken array's elements end cannot be known: the body as a whole is the bad event.
        return [Event(0, body, error="not_json", reason=f"the body is not a JSON array: {error}")]
    return [read(number, raw) for number, raw in enumerate(raws)]


def _elements(body: bytes, limit: int) -> list[bytes]:
    """The bytes of each element of an array.

    Half a surrogate pair, as of a text that was cut in the middle of one, is an error for msgspec that no element owns;
    what the JSON means is known, and its own event is the bad one. The halves are found where another escape of the
    same length stands for each.
    """
    try:
        return [bytes(raw) for raw in _raws.decode(body)]
    except msgspec.DecodeError:
        whole = _HALF.sub(lambda found: found["others"] or b"\\ufffd", body)
        if whole == body:
            raise
    if _has_more_elements(whole, limit):
        raise _too_many(limit)
    elements, place = [], 0
    for raw in _raws.decode(whole):
        place = whole.index(bytes(raw), place)  # between two are spaces and a comma
        elements.append(body[place : place + len(bytes(raw))])
        place += len(elements[-1])
    return elements


def _has_more_elements(body: bytes, limit: int) -> bool:
    """Whether the array has more than `limit` elements; false also where it is broken before that.

    msgspec passes over an element without building it, and says at which byte the next thing follows.
    """
    view, place = memoryview(body), body.find(b"[") + 1
    for _ in range(limit):
        try:
            _raw.decode(view[place:])
        except UNREADABLE as error:
            what, _, byte = str(error).rpartition(" (byte ")
            if not what.endswith("trailing characters"):
                return False
            place += int(byte.removesuffix(")")) - 1  # it counts from 1
        else:
            return False
        if body[place : place + 1] != b",":
            return False
        place += 1
    return True


def _lines(body: bytes, limit: int) -> list[bytes]:
    """The lines that are not blank."""
    found = list(islice(_LINE.finditer(body), limit + 1))
    if len(found) > limit:
        raise _too_many(limit)
    return [body[body.rfind(b"\n", 0, line.start()) + 1 : line.end()] for line in found]


def _too_many(limit: int) -> BadRequest:
    return BadRequest(413, "too_many_events", f"more than {limit} events in a request", hint="send smaller batches")


def _plain(index: int, raw: bytes) -> Event:
    try:
        return Event(index, raw, _json.decode(raw))
    except UNREADABLE as error:
        return Event(index, raw, error="not_json", reason=f"not JSON: {error}")


def _structured(index: int, raw: bytes) -> Event:
    event = _plain(index, raw)
    if event.error:
        return event
    envelope = event.value
    if not isinstance(envelope, dict):
        return Event(
            index, raw, error="not_a_cloudevent", reason="expected an object with specversion, id, source, type"
        )
    attributes = {name: value for name, value in envelope.items() if name not in {"data", "data_base64"}}
    content_type = envelope.get("datacontenttype", JSON_TYPES[0])
    if "data_base64" in envelope:
        try:
            data = base64.b64decode(envelope["data_base64"], validate=True)
        except (ValueError, TypeError):
            return Event(index, raw, error="not_a_cloudevent", reason="/data_base64: not base64")
        inner = _data(index, content_type, data)
    else:
        inner = Event(index, raw, envelope.get("data"))
    found = _cloud_event(index, raw, attributes, inner)
    found.enveloped = True
    return found


def _binary(headers: Mapping[str, str], content_type: str, body: bytes, limit: int) -> Event:
    attributes: dict[str, Any] = {
        name.removeprefix("ce-"): urllib.parse.unquote(value)
        for name, value in headers.items()
        if name.startswith("ce-")
    }
    attributes["datacontenttype"] = content_type
    data = _data(0, content_type, body) if len(body) <= limit else _too_large(0, body, limit)
    return _cloud_event(0, body, attributes, data)


def _data(index: int, content_type: Any, data: bytes) -> Event:
    text = content_type if isinstance(content_type, str) else brief(content_type)
    kind = text.partition(";")[0].strip().lower()
    if kind not in JSON_TYPES and not kind.endswith("+json"):
        reason = f"datacontenttype {cut(kind, 60)!r}: JSON is taken"
        return Event(index, data, error="unknown_content_type", reason=reason)
    return _plain(index, data)


def _cloud_event(index: int, raw: bytes, attributes: dict[str, Any], data: Event) -> Event:
    if attributes.get("specversion") != "1.0":
        found = brief(attributes.get("specversion"))
        return Event(index, raw, error="not_a_cloudevent", reason=f"/specversion: expected 1.0, found {found}")
    for name in ("id", "source", "type"):
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            return Event(index, raw, error="not_a_cloudevent", reason=f"/{name}: expected a text that is not empty")
    data.index, data.raw = index, raw
    data.id = f"{attributes['source']} {attributes['id']}"
    data.headers = [
        (f"ce_{name}", _text(value).encode()) for name, value in attributes.items() if name != "datacontenttype"
    ]
    return data


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _encoder.encode(value).decode()
