"""From a frame to its handler, and from errors to codes."""

import asyncio
from typing import Any

import pytest

from mainstem.broker.connection import Connection
from mainstem.broker.dispatch import Dispatch
from mainstem.broker.handlers import Handler, RequestContext, handler, load_handlers
from mainstem.broker.pending import Pending
from mainstem.core import MainstemError, SystemClock
from mainstem.wire import codec
from mainstem.wire.errors import Code, MalformedFrame, RequestError
from tests.support.broker import running


def with_broker(tmp_path, check) -> None:
    async def run() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            check(broker)

    asyncio.run(run())


def dispatch_with(broker, call, *, api_key=12, failure=None) -> tuple[Dispatch, Connection]:
    entry = Handler(api_key, 0, 4, call, failure, None)
    return Dispatch(broker, {api_key: entry}), Connection(broker, broker.listeners[0], "/127.0.0.1")


def heartbeat(version=4) -> bytearray:
    head = bytearray(
        b"\x00\x0c" + version.to_bytes(2, "big") + b"\x00\x00\x00\x07\xff\xff" + (b"\0" if version == 4 else b"")
    )
    return head + codec.encode_request(12, version, {"group_id": "g", "generation_id": 3, "member_id": "m"})


def decoded(pending: Pending, version=4) -> Any:
    (chunk,) = pending.chunks
    return codec.decode_response(12, version, chunk, 9 if version == 4 else 8)


@pytest.mark.parametrize("version", range(5))
def test_a_plain_handler_answers_at_once(tmp_path, version):
    def check(broker) -> None:
        seen = []

        def call(request, ctx: RequestContext):
            seen.append((request.group_id, ctx.version, ctx.client_id))
            return {"error_code": Code.rebalance_in_progress, "throttle_time": 5}

        dispatch, connection = dispatch_with(broker, call)
        pending, answer = dispatch.begin(connection, heartbeat(version))
        dispatch.answer(pending, answer)
        assert seen == [("g", version, "")]
        assert decoded(pending, version).error_code is Code.rebalance_in_progress

    with_broker(tmp_path, check)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError(Code.illegal_generation), Code.illegal_generation),
        (MainstemError("what?"), Code.unknown_server_error),
        (KeyError("a bug"), Code.unknown_server_error),
    ],
)
def test_what_a_handler_raises_becomes_the_code(tmp_path, error, code):
    def check(broker) -> None:
        def call(request, ctx):
            raise error

        dispatch, connection = dispatch_with(broker, call)
        pending, answer = dispatch.begin(connection, heartbeat())
        dispatch.answer(pending, answer)
        assert decoded(pending).error_code is code

    with_broker(tmp_path, check)


def test_an_api_without_a_top_level_code_says_how_it_fails(tmp_path):
    def check(broker) -> None:
        def call(request, ctx):
            raise RequestError(Code.not_coordinator)

        dispatch, connection = dispatch_with(
            broker, call, failure=lambda request, code: {"error_code": code, "throttle_time": len(request.group_id)}
        )
        pending, answer = dispatch.begin(connection, heartbeat())
        assert answer == {"error_code": Code.not_coordinator, "throttle_time": 1}
        dispatch.fail(pending, RequestError(Code.illegal_generation))
        assert decoded(pending).error_code is Code.illegal_generation

    with_broker(tmp_path, check)


def test_none_is_no_answer(tmp_path):
    def check(broker) -> None:
        dispatch, connection = dispatch_with(broker, lambda request, ctx: None)
        pending, answer = dispatch.begin(connection, heartbeat())
        dispatch.answer(pending, answer)
        assert pending.done
        assert pending.chunks == []

    with_broker(tmp_path, check)


def test_large_answers_are_not_joined(tmp_path):
    def check(broker) -> None:
        dispatch, connection = dispatch_with(broker, lambda request, ctx: None)
        pending, _ = dispatch.begin(connection, heartbeat())
        records = b"x" * 10_000
        dispatch.answer(pending, [b"head", records, b"tail"])
        assert any(chunk is records for chunk in pending.chunks)
        assert int.from_bytes(pending.chunks[0][:4], "big") == 5 + 10_008

    with_broker(tmp_path, check)


def test_what_is_not_served_is_no_request(tmp_path):
    def check(broker) -> None:
        dispatch, connection = dispatch_with(broker, lambda request, ctx: None)
        newer = heartbeat()
        newer[3] = 5
        for frame in (newer, bytearray(b"\x7f\x00") + heartbeat()[2:], bytearray(5)):
            with pytest.raises(MalformedFrame):
                dispatch.begin(connection, frame)

    with_broker(tmp_path, check)


def test_an_api_that_cannot_say_how_it_fails_closes_the_connection(tmp_path):
    """An empty answer would look like success."""

    def check(broker) -> None:
        def call(request, ctx):
            raise KeyError("a bug")

        dispatch, connection = dispatch_with(broker, call, api_key=3)
        head = bytearray(b"\x00\x03\x00\x04\x00\x00\x00\x07\xff\xff")
        with pytest.raises(MalformedFrame):
            dispatch.begin(connection, head + codec.encode_request(3, 4, {}))

    with_broker(tmp_path, check)


def test_every_failure_can_be_encoded_in_every_version():
    for api_key, entry in load_handlers().items():
        if entry.failure is not None:
            for version in range(entry.min_version, entry.max_version + 1):
                body = codec.encode_request(api_key, version, {})
                decode = entry.decode or (lambda v, data, at, key=api_key: codec.decode_request(key, v, data, at))
                answer = entry.failure(decode(version, bytearray(body), 0), Code.unknown_server_error)
                codec.decode_response(api_key, version, codec.encode_response(api_key, version, answer))


def test_an_api_has_one_handler():
    with pytest.raises(AssertionError):
        handler(18)(lambda request, ctx: None)
