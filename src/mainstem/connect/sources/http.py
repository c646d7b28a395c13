"""The collector: events over HTTP, answered when they are durable in the log, each with what became of it.

    POST /v1/topics/{topic}/events       JSON array or object, NDJSON, CloudEvents; docs/formats/events.md
    POST /v1/topics/{topic}/heartbeat    {"event_time": ...}: nothing older follows
    POST /v1/topics/{topic}/end          nothing follows at all
    GET  /v1/topics                      the topics that take events

An event that is not JSON or does not fit its topic's schema goes to `<topic>.quarantine` with its reason and its bytes;
the others of the request are appended. All of a request is one part of one transaction.
"""

import asyncio
import contextlib
import time
from typing import Any, NamedTuple

import msgspec
import xxhash
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mainstem.client.basis import BadToken, Basis, OtherLog, answer_headers
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.errors import UnknownTopic as TopicGone
from mainstem.client.heartbeats import encode as encode_heartbeat
from mainstem.client.heartbeats import statement_about
from mainstem.client.internal import HEARTBEATS
from mainstem.client.progress import NextOffsets
from mainstem.client.topics import topic_ids
from mainstem.connect.gateway_config import CollectorConfig
from mainstem.connect.sources.http_append import Appender, LogUnavailable, NewRecord, Overloaded, Placed, TakenOver
from mainstem.connect.sources.http_events import UNREADABLE, BadRequest, Event, parse, unpack
from mainstem.connect.sources.http_topics import Encoder, NoSchema, NotAnInput, Topics, UnknownTopic, event_time_ms
from mainstem.connect.sources.http_values import Unfit
from mainstem.connect.sources.http_window import ID_HEADER, MAX_ID_BYTES, content_hash, tail
from mainstem.connect.tokens import NotReached, Tokens
from mainstem.core import CorruptData, MainstemError, Retriable, UserError
from mainstem.core.bodies import Bodies, BodiesFull, BodyTooLarge, BodyTooSlow, Held
from mainstem.core.clock import Clock, SystemClock
from mainstem.core.logging import get_logger
from mainstem.registry import avro, quarantine
from mainstem.registry.errors import NotFound, StoreUnavailable
from mainstem.registry.quarantine import Quarantined, quarantine_topic
from mainstem.registry.state import NewSchema, State
from mainstem.registry.store import Store
from mainstem.web.answers import error_answer, json_answer

log = get_logger()

STAGE = "http"
RETRY_AFTER_SECONDS = "1"
BODY_SECONDS = 60.0  # that a client may take to send one
_STABLE_SECONDS = 10.0


class Result(msgspec.Struct, omit_defaults=True):
    """What became of one event; `partition` and `offset` of a rejected one are
    those of its record in the quarantine.
    """

    index: int
    status: str  # accepted, duplicate, rejected
    partition: int
    offset: int
    code: str = ""
    reason: str = ""


class _Intake(NamedTuple):
    """One event on its way: its record, and why it is going to the quarantine, if it is."""

    event: Event
    record: NewRecord
    code: str = ""
    reason: str = ""
    event_time_ms: int | None = None


class Collector:
    """Takes events for the topics of one log. `run` must be running for requests to be answered."""

    def __init__(
        self,
        connection: Connection,
        schemas: Store,
        config: CollectorConfig,
        tokens: Tokens,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self._tokens = tokens
        self.clock = clock or SystemClock()
        self.appender = Appender(
            connection,
            config.name,
            window_size=config.window_records,
            waiting_bytes=config.waiting_bytes,
            clock=self.clock,
        )
        self._bodies = Bodies(config.waiting_bytes, seconds=BODY_SECONDS)
        self.topics = Topics(connection, schemas.state, self.clock)
        self._connection = connection
        self._schemas = schemas
        self._quarantine_ids: dict[str, int] = {}
        self._event_times: dict[str, int] = {}  # topic id -> the latest, in ms

    async def open(self) -> None:
        """Fence older collectors of this name; read topics and catalog."""
        await self.appender.open()
        await self.topics.refresh()

    async def run(self) -> None:
        """Until cancelled, or until a newer collector takes over (TakenOver)."""
        await self.appender.run()

    async def close(self) -> None:
        await self.appender.close()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/topics", self._guarded(self._list), methods=["GET"]),
            Route("/v1/topics/{topic}/events", self._guarded(self._events), methods=["POST"]),
            Route("/v1/topics/{topic}/heartbeat", self._guarded(self._heartbeat), methods=["POST"]),
            Route("/v1/topics/{topic}/end", self._guarded(self._end), methods=["POST"]),
        ]

    # -- events

    async def _events(self, request: Request) -> Response:
        """1. read and split the body  2. check and encode each event  3. append all in one transaction  4. answer, with
        the token of what was appended.
        """
        self._basis(request, {})  # a token that is of no use is refused before anything is appended
        encoder = await self.topics.encoder(request.path_params["topic"])
        with self._bodies.hold() as held:
            return await self._take_in(request, encoder, held)

    async def _take_in(self, request: Request, encoder: Encoder, held: Held) -> Response:
        packed = await _read(request, held, self.config.body_bytes)
        body = unpack(packed, request.headers.get("content-encoding", ""), self.config.body_bytes)
        if body is not packed:
            held.add(len(body))
        events = parse(request.headers, body, self.config.batch_events, self.config.event_bytes)
        ids = _Ids(request, encoder)
        intakes = [self._take(encoder, ids, event) for event in events]
        if any(intake.code for intake in intakes):
            intakes = await self._to_quarantine(encoder, intakes)
        placed = await self._append(encoder, intakes)
        results = [_result(intake, place) for intake, place in zip(intakes, placed, strict=True)]
        self._see_times(encoder.topic, intakes, results)
        await self._keep_reused(encoder, intakes, results)
        ends = _ends(results, placed)
        if encoder.entry.kind == "changelog":
            with contextlib.suppress(NotReached, BrokerUnavailable):  # it is appended: an error would bring it again
                await self._tokens.until_stable({encoder.topic: ends}, time.monotonic() + _STABLE_SECONDS)
        basis = self._basis(request, {encoder.topic: ends})
        return _answer(encoder, results, ends, basis, whole_body=len(events) == 1 and events[0].raw is body)

    def _basis(self, request: Request, positions: NextOffsets) -> Basis:
        try:
            return self._tokens.basis(request, positions)
        except (BadToken, OtherLog) as error:
            raise BadRequest(400, "bad_token", str(error), hint=error.hint) from None

    def _see_times(self, topic: str, intakes: list[_Intake], results: list[Result]) -> None:
        topic_id = self.appender.topic_id(topic)
        times = [
            intake.event_time_ms
            for intake, result in zip(intakes, results, strict=True)
            if intake.event_time_ms is not None and result.status != "rejected"
        ]
        if times and topic_id is not None:
            self._event_times[topic_id] = max(*times, self._event_times.get(topic_id, -1))

    def _take(self, encoder: Encoder, ids: "_Ids", event: Event) -> _Intake:
        event_id = ids.of(event)
        headers = event.headers
        code, reason = event.error, event.reason
        if event_id is not None:
            encoded_id = event_id.encode()
            if len(encoded_id) <= MAX_ID_BYTES:
                headers = [*headers, (ID_HEADER, encoded_id)]
            else:
                event_id = None
                code = code or "id_too_long"
                reason = reason or f"its id has {len(encoded_id)} bytes, at most {MAX_ID_BYTES}"
        if not code:
            try:
                encoded = encoder.encode(event.value)
            except Unfit as error:
                code, reason = "unfit", str(error)
            else:
                event.value = None  # a request waits for the log with its bytes and its records; so below
                content = content_hash(memoryview(encoded.value)[5:]) if event_id is not None else 0
                record = NewRecord(encoder.topic, encoded.key, encoded.value, headers, event_id, content)
                size = len(encoded.value) + len(encoded.key or b"")
                size += sum(len(name) + len(value or b"") for name, value in headers)
                if size <= self.config.event_bytes:
                    return _Intake(event, record, event_time_ms=encoded.event_time_ms)
                # JSON of two bytes may be a double of eight: the log would refuse the record, and with it the request.
                code, reason = "event_too_large", f"{size} bytes as a record, at most {self.config.event_bytes}"
        event.value = None
        return _Intake(event, NewRecord(encoder.topic, None, b"", headers, event_id), code, reason)

    async def _to_quarantine(self, encoder: Encoder, intakes: list[_Intake]) -> list[_Intake]:
        """`intakes` with a record for the quarantine in place of each that is refused."""
        schema_id = await self._quarantine_schema(encoder.topic)
        return [self._refused(encoder, schema_id, intake) if intake.code else intake for intake in intakes]

    def _refused(self, encoder: Encoder, schema_id: int, intake: _Intake) -> _Intake:
        # What is larger than a record may be is cut: the reason says how large it was.
        raw = intake.event.raw[: self.config.event_bytes]
        content = xxhash.xxh64_intdigest(raw)
        event_id = intake.record.id
        # The content is part of the id: another bad attempt with the same id is kept too.
        kept_id = None if event_id is None else f"{event_id} {content:016x}"
        headers = [(name, value) for name, value in intake.record.headers if name != ID_HEADER]
        size = len(raw) + sum(len(name) + len(value or b"") for name, value in headers)
        if intake.event.enveloped and size > self.config.event_bytes:
            headers = []  # twice in one record, they may be more than the log takes, and the request is refused
        if kept_id is not None:
            headers.append((ID_HEADER, kept_id.encode()))
        value = quarantine.encode(
            schema_id,
            Quarantined(
                encoder.topic, STAGE, intake.code, intake.reason, raw, self.clock.now_ms(), schema_id=encoder.schema_id
            ),
        )
        record = NewRecord(quarantine_topic(encoder.topic), None, value, headers, kept_id, 0)
        return _Intake(intake.event, record, intake.code, intake.reason)

    async def _append(self, encoder: Encoder, intakes: list[_Intake]) -> list[Placed]:
        """Append their records; a quarantine that was deleted, with what was mended, is made anew."""
        records = [intake.record for intake in intakes]
        try:
            return await self.appender.append(records)
        except TopicGone:
            if not any(intake.code for intake in intakes):
                raise
            self._quarantine_ids.pop(encoder.topic, None)
            await self._quarantine_schema(encoder.topic)
            return await self.appender.append(records)

    async def _quarantine_schema(self, topic: str) -> int:
        # A subject that was deleted for good has taken its id with it: nobody could read what names it.
        if self._quarantine_ids.get(topic) not in self._schemas.state.by_id:
            await asyncio.to_thread(quarantine.create_quarantine, self._connection, topic)
            new = NewSchema(quarantine.SCHEMA)

            def decide(state: State) -> Any:
                registration = state.register(f"{quarantine_topic(topic)}-value", new)
                return registration.id, registration.records

            self._quarantine_ids[topic] = await self._schemas.write(decide)
        return self._quarantine_ids[topic]

    async def _keep_reused(self, encoder: Encoder, intakes: list[_Intake], results: list[Result]) -> None:
        """An id that came back with another content was not appended: keep what came in the quarantine."""
        reused = [number for number, result in enumerate(results) if result.code == "id_reused"]
        if not reused:
            return
        schema_id = await self._quarantine_schema(encoder.topic)
        refused = [
            self._refused(encoder, schema_id, intakes[number]._replace(code="id_reused", reason=results[number].reason))
            for number in reused
        ]
        placed = await self._append(encoder, refused)
        for number, place in zip(reused, placed, strict=True):
            results[number].partition, results[number].offset = place.partition, place.offset

    # -- statements about time

    async def _heartbeat(self, request: Request) -> Response:
        topic, body = await self._statement(request)
        if "event_time" not in body:
            raise BadRequest(400, "no_event_time", 'expected {"event_time": "2013-01-01T05:00:00Z"}')
        return await self._state(topic, event_time_ms(body["event_time"]), end=False)

    async def _end(self, request: Request) -> Response:
        topic, body = await self._statement(request)
        if "event_time" in body:
            return await self._state(topic, event_time_ms(body["event_time"]), end=True)
        await self.appender.settled()
        taken = self._event_times.get(await asyncio.to_thread(self._topic_id, topic), -1)
        # What other processes brought, and this one in former lives, only the topic itself knows.
        found = await asyncio.to_thread(self._latest_event_time, await self.topics.encoder(topic))
        return await self._state(topic, max(taken, found), end=True)

    async def _statement(self, request: Request) -> tuple[str, dict[str, Any]]:
        encoder = await self.topics.encoder(request.path_params["topic"])
        with self._bodies.hold() as held:
            data = await _read(request, held, 10_000)
        try:
            return encoder.topic, msgspec.json.decode(data or b"{}", type=dict[str, Any])
        except UNREADABLE as error:
            raise BadRequest(400, "not_json", f"the body is not a JSON object: {error}") from None

    async def _state(self, topic: str, event_time: int, *, end: bool) -> Response:
        await self.appender.settled()
        statement = await asyncio.to_thread(statement_about, self._connection, topic, event_time, end=end)
        await self.appender.append([NewRecord(HEARTBEATS, statement.key, encode_heartbeat(statement), [])])
        log.info("heartbeat", topic=topic, event_time=event_time, end=end)
        return json_answer(200, statement)

    def _topic_id(self, topic: str) -> str:
        return topic_ids(self._connection, [topic]).get(topic, "")

    def _latest_event_time(self, encoder: Encoder) -> int:
        """The latest event time among the topic's last records; now, where the topic names no column for it.

        Of a topic without records, the earliest: what comes in spite of the end would be too late for its windows else.
        """
        latest = -1
        if encoder.entry.event_time is None:
            return self.clock.now_ms()
        for message in tail(self._connection, encoder.topic, self.config.window_records):
            if message.value() is not None:
                try:
                    found = encoder.event_time_of(avro.decode(message.value(), self._text))
                except CorruptData:  # any Kafka client may have written it; readers leave it out too
                    continue
                latest = max(latest, -1 if found is None else found)
        return max(latest, 0)

    def _text(self, schema_id: int) -> str:
        try:
            return self._schemas.state.schema_by_id(schema_id).schema
        except NotFound as error:
            raise CorruptData(str(error)) from None

    # -- answers

    async def _list(self, _: Request) -> Response:
        await self.topics.refresh(max_age_seconds=1)
        return json_answer(200, {"topics": self.topics.inputs()})

    def _guarded(self, call: Any) -> Any:
        """Every error as JSON with a code, a line and what to do; those worth a retry say when."""

        async def endpoint(request: Request) -> Response:
            try:
                return await call(request)  # type: ignore[no-any-return]
            except BadRequest as error:
                return _error(error.status, error.code, error)
            except UnknownTopic as error:
                return _error(404, "unknown_topic", error, topics=error.topics)
            except NoSchema as error:
                return _error(409, "no_schema", error)
            except NotAnInput as error:
                return _error(409, "not_an_input", error)
            except (Overloaded, BodiesFull) as error:
                return _error(429, "overloaded", error)
            except TakenOver as error:
                return _error(503, "taken_over", error)
            except (LogUnavailable, BrokerUnavailable, StoreUnavailable) as error:
                return _error(503, "log_unavailable", error)
            except TopicGone as error:
                return _error(503, "log_unavailable", _not_known_yet(error))
            except Unfit as error:
                return _error(400, "unfit", error)
            except UserError as error:
                return _error(422, "refused", error)
            except CorruptData as error:  # what Mainstem keeps in the log for itself
                return _error(500, "corrupt", error)
            except ClientDisconnect:
                return Response(status_code=499)

        return endpoint


class _Ids:
    """Which id an event has: CloudEvents' source and id, its own `id`, or the request's Idempotency-Key and its index.

    `?id=a,b` names other fields, `?id=none` switches the field off. A field `id` that is part of the topic's key, or of
    a changelog, names a thing and not an event. One that the schema does not have is an envelope's, and left out.
    """

    def __init__(self, request: Request, encoder: Encoder) -> None:
        self.key = request.headers.get("idempotency-key")
        wanted = request.query_params.get("id")
        entry = encoder.entry
        names_a_thing = "id" in entry.key or (entry.kind == "changelog" and "id" in encoder.columns)
        self.fields: tuple[str, ...]
        if wanted is None:
            self.fields = () if names_a_thing else ("id",)
        else:
            self.fields = () if wanted == "none" else tuple(wanted.split(","))
        self.outside = frozenset(self.fields) - encoder.columns

    def of(self, event: Event) -> str | None:
        if event.id is not None:
            return event.id
        if self.fields and type(event.value) is dict:
            values = [event.value.get(field) for field in self.fields]
            if all(type(value) is str or type(value) is int for value in values):
                if self.outside:
                    event.value = {name: value for name, value in event.value.items() if name not in self.outside}
                return _joined(values)
        return f"{self.key} {event.index}" if self.key is not None else None


def _joined(values: list[Any]) -> str:
    """One id of several: no others give the same."""
    if len(values) == 1:
        return str(values[0])
    return " ".join(str(value).replace("%", "%25").replace(" ", "%20") for value in values)


async def _read(request: Request, held: Held, limit: int) -> bytes:
    try:
        return await held.read(request.stream(), limit, expected=int(request.headers.get("content-length") or 0))
    except BodyTooLarge as error:
        raise BadRequest(413, "body_too_large", str(error), hint=error.hint) from None
    except BodyTooSlow as error:
        raise BadRequest(408, "body_too_slow", str(error), hint=error.hint) from None


def _result(intake: _Intake, place: Placed) -> Result:
    index = intake.event.index
    if intake.code:
        return Result(index, "rejected", place.partition, place.offset, intake.code, intake.reason)
    if place.status == "reused":
        reason = (
            f"id {intake.record.id!r} was taken by another event, at partition {place.partition} offset {place.offset}"
        )
        return Result(index, "rejected", -1, -1, "id_reused", reason)
    return Result(index, place.status, place.partition, place.offset)


def _ends(results: list[Result], placed: list[Placed]) -> dict[int, int]:
    """Partition -> next offset after what is there of the events, also of those that were there before."""
    ends: dict[int, int] = {}
    for result, place in zip(results, placed, strict=True):
        if result.status != "rejected":
            ends[place.partition] = max(place.next_offset, ends.get(place.partition, 0))
    return ends


def _answer(
    encoder: Encoder, results: list[Result], ends: dict[int, int], basis: Basis, *, whole_body: bool
) -> Response:
    counts = {"accepted": 0, "duplicate": 0, "rejected": 0}
    for result in results:
        counts[result.status] += 1
    status = 200
    if counts["rejected"] == len(results):
        status = 400 if whole_body and results[0].code == "not_json" else 422
    answer = {"topic": encoder.topic, "schema_id": encoder.schema_id, **counts, "basis": {encoder.topic: ends}}
    return json_answer(status, answer | {"token": basis.token, "results": results}, answer_headers(basis))


def _not_known_yet(error: TopicGone) -> LogUnavailable:
    """`Topics` has seen the topic: it is new and one of several brokers has not heard of it, or it is gone since."""
    return LogUnavailable(
        f"{error}, says a broker that may not know it yet",
        hint="send it again; of a topic that was deleted the answer is 404 within seconds",
    )


def _error(status: int, code: str, error: MainstemError, **more: Any) -> Response:
    headers = {"Retry-After": RETRY_AFTER_SECONDS} if isinstance(error, Retriable) else {}
    if status == 408:  # nobody waits for the rest of the body
        headers["Connection"] = "close"
    return error_answer(status, code, error, headers, **more)
