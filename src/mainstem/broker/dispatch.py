"""From a frame to its handler, and from the handler's result or error to the bytes of the answer."""

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mainstem.broker.connection import Connection
from mainstem.broker.errors import NotYetServed
from mainstem.broker.handlers import Handler, RequestContext
from mainstem.broker.pending import Pending
from mainstem.broker.security.quotas import PRODUCER, REQUEST, Meter, Quotas, timed
from mainstem.broker.served import SERVED
from mainstem.core.errors import MainstemError
from mainstem.core.logging import get_logger
from mainstem.wire import codec, frames, produce
from mainstem.wire.errors import Code, MalformedFrame, code_of
from mainstem.wire.fetch import API_KEY as FETCH
from mainstem.wire.frames import SIZE
from mainstem.wire.produce import API_KEY as PRODUCE
from mainstem.wire.share_fetch import API_KEY as SHARE_FETCH

if TYPE_CHECKING:
    from mainstem.broker.server import Broker

_BARE = -1  # no API: bytes of SASL without a header
_LARGE = 4096  # bytes: such an answer goes out in its chunks, and counts as memory

_UNMEASURED = (17, 36)  # SaslHandshake, SaslAuthenticate: a client that cannot say who it is could not go on

log = get_logger()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


class Dispatch:
    """The table of handlers at work; holds no state of its own between requests."""

    def __init__(self, broker: "Broker", handlers: Mapping[int, Handler]) -> None:
        self._broker = broker
        self.handlers = handlers

    def begin(self, connection: Connection, frame: bytearray) -> tuple[Pending, Any]:
        """Decode a request and call its handler; the second value is an answer, a future or a coroutine of it.

        Raises:
            MalformedFrame: bytes that are no request, or an API or version that is not served: the connection ends.
            NotYetServed: the broker is still starting.
        """
        authentication = connection.authentication
        if authentication is not None and authentication.bare:
            pending = Pending(_BARE, 0, 0, "", None)
            return pending, authentication.begin_bare(pending, frame)
        header = frames.read_header(frame)
        if authentication is not None:
            authentication.admit(header.api_key)
        api_key, version = header.api_key, header.version
        handler = self.handlers.get(api_key)
        if handler is None or not handler.min_version <= version <= handler.max_version:
            if api_key == frames.API_VERSIONS and handler is not None:
                # KIP-511: a client that is newer than we are learns what we speak from an answer in version 0.
                pending = Pending(api_key, 0, header.correlation_id, header.client_id, None)
                return pending, self._refuse_api_versions(handler)
            if handler is None and api_key in SERVED:
                raise NotYetServed(f"api {api_key}")
            raise MalformedFrame(f"api {api_key} version {version} is not served")
        if handler.decode is None:
            request = codec.decode_request(api_key, version, frame, header.body)
        else:
            request = handler.decode(version, frame, header.body)
        kept = None if handler.failure is None else request
        pending = Pending(api_key, version, header.correlation_id, header.client_id, kept)
        context = RequestContext(self._broker, connection, api_key, version, header.client_id)
        if self._broker.metering is not None and api_key not in _UNMEASURED:
            return pending, self._measured(handler, pending, request, context, len(frame), self._broker.metering)
        try:
            return pending, handler.call(request, context)
        except MalformedFrame:
            raise
        except Exception as error:
            return pending, self._failure(pending, error)

    def _measured(
        self, handler: Handler, pending: Pending, request: Any, context: RequestContext, size: int, quotas: Quotas
    ) -> Any:
        """Call a handler, and count what the request uses."""
        meter = pending.meter = context.meter = Meter(quotas, context.connection.principal, context.client_id)
        if pending.api_key == PRODUCE:
            meter.used(PRODUCER, size)
        started = perf_counter()
        try:
            outcome = handler.call(request, context)
        except MalformedFrame:
            raise
        except Exception as error:
            return self._failure(pending, error)
        finally:
            meter.seconds += perf_counter() - started
        if asyncio.iscoroutine(outcome):
            return _awaited(timed(outcome, meter, perf_counter))
        return outcome

    def _throttled(self, pending: Pending, answer: Any) -> Any:
        """The answer with how long its client has to wait, which is not read from meanwhile."""
        meter = pending.meter
        meter.used(REQUEST, 100 * meter.seconds)
        wait_ms = meter.throttle_ms
        if not wait_ms:
            return answer
        if isinstance(answer, dict) and "throttle_time" in codec.field_names(pending.api_key, pending.version):
            return answer | {"throttle_time": wait_ms}
        if pending.api_key == PRODUCE and isinstance(answer, bytearray):
            produce.set_throttle_ms(answer, pending.version, wait_ms)
        elif pending.api_key in (FETCH, SHARE_FETCH) and isinstance(answer, list):
            answer[0] = SIZE.pack(wait_ms) + answer[0][SIZE.size :]
        return answer

    def answer(self, pending: Pending, answer: Any) -> None:
        """Encode an answer: fields, encoded bytes, chunks of bytes, or None for a request that has no answer."""
        pending.done = True
        if pending.meter is not None:
            answer = self._throttled(pending, answer)
        if answer is None:
            return
        if isinstance(answer, dict):
            chunks = codec.encode_chunks(pending.api_key, pending.version, answer)
        else:
            chunks = answer if isinstance(answer, list) else [answer]
        size = sum(map(len, chunks))
        head = frames.answer_header(pending.api_key, pending.version, pending.correlation_id, size)
        if size < _LARGE:
            pending.chunks = [head + b"".join(chunks)]
        else:
            pending.chunks = [head, *chunks]
            pending.answer_size = size

    def fail(self, pending: Pending, error: BaseException) -> None:
        """Answer with the code of `error`.

        Raises:
            MalformedFrame: the API has no way to tell it, and an empty answer would look like success: the connection
                ends.
        """
        self.answer(pending, self._failure(pending, error))

    def _failure(self, pending: Pending, error: BaseException) -> dict[str, Any]:
        if pending.api_key == _BARE:
            raise MalformedFrame(str(error)) from error
        code = code_of(error)
        if code is Code.unknown_server_error:
            log.error("request_failed", api=pending.api_key, version=pending.version, exc_info=error)
        failure = self.handlers[pending.api_key].failure
        known = codec.field_names(pending.api_key, pending.version)
        answer = {"error_code": code} if failure is None else failure(pending.request, code)
        if failure is None and "error_code" not in known:
            raise MalformedFrame(f"api {pending.api_key} version {pending.version} failed: {code.name}")
        if "error_code" in answer and "error_message" in known and isinstance(error, MainstemError):
            return {"error_message": str(error)} | answer
        return answer

    @staticmethod
    def _refuse_api_versions(handler: Handler) -> dict[str, Any]:
        own = {"api_key": handler.api_key, "min_version": handler.min_version, "max_version": handler.max_version}
        return {"error_code": Code.unsupported_version, "api_keys": [own]}
