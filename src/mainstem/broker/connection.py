"""One client connection: bytes to frames, requests in order, answers in the order of the requests.

Reading. What arrives is cut into frames, where there is room for it (`arrivals`).

Order. Requests start in the order they came. A plain handler is done when it returns; one that returns a future lets
the next request start (Produce: five requests in flight share one sync of the disk); a coroutine holds the next one
back. Answers leave in the order of their requests, whatever finished first.

Back-pressure. Reading stops while `queued_max_requests` requests are unanswered, while all connections together hold
`queued_max_request_bytes` bytes of requests (`request_memory`), or while the client does not take its answers. What
they hold of answers counts as well (`outbox`, `answer_memory`), until the socket has taken it: what a fetch has read,
and what other large answers are, each by itself.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from ssl import SSLError
from typing import TYPE_CHECKING, Any, Final, cast

from mainstem.broker import sending
from mainstem.broker.answers import Later
from mainstem.broker.arrivals import SCRATCH_BYTES, Arrivals
from mainstem.broker.errors import NotYetServed
from mainstem.broker.gone import GONE
from mainstem.broker.outbox import Outbox
from mainstem.broker.pending import Pending
from mainstem.core.causes import one_line
from mainstem.core.errors import MainstemError
from mainstem.core.logging import get_logger
from mainstem.wire.errors import MalformedFrame
from mainstem.wire.produce import API_KEY as PRODUCE

if TYPE_CHECKING:
    from mainstem.broker.listeners import Listener
    from mainstem.broker.security.sasl import Authentication
    from mainstem.broker.server import Broker

# Of one client, before others have their turn: so many requests are started, and no other one after so many seconds.
_MOST_AT_ONCE = 32
_MOST_SECONDS = 0.002
# Of requests whose coroutines have not begun: decoded, they are up to 24 times as large.
_MOST_BEGINNING = 262_144
GOOD_BYE_SECONDS: Final = 5.0  # for the client to take what was written, and to answer the end of TLS

_next_turn: Final = partial(asyncio.sleep, 0)
ANONYMOUS: Final = "User:ANONYMOUS"

log = get_logger()


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket."""

    def __init__(self, broker: "Broker", listener: "Listener", client_host: str) -> None:
        self.broker = broker
        self.listener = listener
        self.principal = ANONYMOUS
        """Who the client is, as Kafka names it."""
        self.authentication: Authentication | None = None
        """On a listener with SASL, until the client is known for good."""
        self.client_host = client_host
        """Its address, as Kafka writes it: `/127.0.0.1`."""
        self.was_made = False
        """The handshake is over; `connection_lost` will come."""
        self._counts, self._gives_way = True, False
        self.takes_slices = False
        """Answers may have parts of files in them: nothing is encrypted."""
        self.client_software = ("", "")  # name and version, once ApiVersions has told them (KIP-511)
        self.on_close: set[Callable[[], None]] = set()
        """Called once when the client has gone; what waits on its behalf adds itself."""
        self._transport: asyncio.Transport
        self._loop = broker.loop
        self._arrivals = Arrivals(self, broker.scratch)
        self._unanswered: deque[Pending] = deque()
        self._outbox = Outbox(self, broker.fetched_memory, broker.unasked_memory)
        self.idle_since = broker.clock.monotonic()
        """When the last request came or the last answer left."""
        self._waits_for_start = False  # the broker's, and takes no request meanwhile
        self._others_turn = False  # what is left over is for the next turn of the loop
        self._turn_began: float | None = None  # of the loop, in which it is read from
        self._has_ended = False  # the client sends no more: what it has sent is started, then it is closed
        self._holding_back = False  # a coroutine is running: the next request waits for it
        self._malformed: MalformedFrame | None = None  # what came after the requests; when they are answered, it ends
        self._reading_paused = False
        self._reads_no_more = False
        self._flush_scheduled = False
        self._closing = False
        self._drained: asyncio.Future[None] | None = None
        self._muted: asyncio.TimerHandle | None = None
        self._set_usual_limits()

    def mute(self, seconds: float) -> None:
        """Take no further request for so long (KIP-219); those that were started are answered."""
        if self._closing:
            return
        if self._muted is not None:
            if self._muted.when() > self._loop.time() + seconds:
                return
            self._muted.cancel()
        else:
            self.on_close.add(self._unmute)
        self._muted = self._loop.call_later(seconds, self._unmute)

    def _mute_as_told(self, pending: Pending) -> None:
        if pending.meter is not None and pending.meter.throttle_ms:
            self.mute(pending.meter.throttle_ms / 1000)

    def _unmute(self) -> None:
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        self.on_close.discard(self._unmute)
        if not self._closing:
            self._go_on()

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Unless the client has gone by then."""

        def due() -> None:
            self.on_close.discard(cancel)
            callback()

        cancel = self._loop.call_later(seconds, due).cancel
        self.on_close.add(cancel)

    def all_is_served(self) -> None:
        """The broker has started: take the request that waited for it."""
        if self._waits_for_start:
            self._waits_for_start = False
            self._go_on()

    def _ask_who(self) -> None:
        from mainstem.broker.security.sasl import MOST_REQUESTS_BEFORE, Authentication

        self.authentication = Authentication(self)
        self.broker.strangers.come(self)
        config = self.broker.config
        most = min(MOST_REQUESTS_BEFORE, config.queued_max_requests)
        size = min(
            (config.sasl_server_max_receive_size, "sasl_server_max_receive_size"),
            (config.socket_request_max_bytes, "socket_request_max_bytes"),
        )
        # One at a time: what it has room for would be everybody's once the client is known.
        self._arrivals.set_limits(self.broker.strangers_memory, most, *size, one_at_a_time=True)

    def known(self, *, for_good: bool) -> None:
        """The client has said who it is; `for_good`: and need not do so again."""
        if self._transport is GONE:
            return
        self.broker.strangers.go(self)
        if self._arrivals.memory is not self.broker.request_memory:
            self._arrivals.move(self.broker.request_memory)
        self._set_usual_limits()
        if for_good:
            self.authentication = None

    def _set_usual_limits(self) -> None:
        config = self.broker.config
        self._arrivals.set_limits(
            self.broker.request_memory,
            config.queued_max_requests,
            config.socket_request_max_bytes,
            "socket_request_max_bytes",
        )

    # --- the socket --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.was_made = True
        if self.broker.stopping.done():  # it was accepted before, and nobody would close it any more
            self._closing = True
            self._transport.abort()
            return
        if self.listener.mechanisms:
            self._ask_who()
        secure = transport.get_extra_info("ssl_object")
        self.takes_slices = secure is None
        self._outbox.open(self._transport, takes_slices=self.takes_slices)
        if secure is not None:  # what the socket does not take is to be seen soon (`sending.send_encrypted`)
            self._transport.set_write_buffer_limits(sending.PART)
            # TLS goes on reading while nobody reads from it, up to half a megabyte.
            cast("Any", self._transport).set_read_buffer_limits(SCRATCH_BYTES)
        if secure is not None and (certificate := secure.getpeercert(binary_form=True)):
            from mainstem.broker.security.tls import distinguished_name

            self.principal = f"User:{distinguished_name(certificate)}"
        self.broker.connections.add(self)
        wait = self.broker.quotas.connects(self.client_host[1:])
        if wait:
            log.info("connection_throttled", client=self.client_host, seconds=wait)
            self._closing = True
            self._loop.call_soon(self._adjust_reading)  # uvloop begins to read after this call
            self._call_later(wait, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, SSLError):
            log.info("connection_failed", client=self.client_host, reason=one_line(exc))
        self._closing = True
        at_work = sum(each.size for each in self._unanswered if each.is_at_work and not each.done)
        self._unanswered.clear()  # what is done is needed by nobody; what is at work is known where it is
        self._arrivals.end(at_work)
        self._outbox.clear()
        self.broker.connections.discard(self)
        self.broker.strangers.go(self)
        if not at_work:
            self.count_no_more()
        for callback in tuple(self.on_close):
            callback()
        self.on_close.clear()
        self._transport, self.authentication = GONE, None  # which refer to this
        self._outbox.open(GONE, takes_slices=True)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def count_no_more(self) -> None:
        """Nothing of it is left, from the first call on."""
        if self._counts:
            self._counts = False
            self.broker.admission.leave(self.client_host, gave_way=self._gives_way)

    def give_way(self) -> None:
        """It is cut off before it is known: another client may have its place."""
        if self._counts and not self._gives_way:
            self._gives_way = True
            self.broker.admission.gives_way()

    def cut_off(self) -> None:
        """Close the socket at once, in favour of another client."""
        self.give_way()
        self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._turn_began is None:
            self._turn_began = time.monotonic()
            self._loop.call_soon(self._turn_ends)
        return self._arrivals.buffer()

    @property
    def _turn_is_over(self) -> bool:
        """It has been read from for so long that others are to have theirs; uvloop would read up to 8 MB in a turn."""
        return self._turn_began is not None and time.monotonic() - self._turn_began > _MOST_SECONDS

    def _turn_ends(self) -> None:
        self._turn_began = None
        if self._others_turn and not self._closing:
            self._go_on()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            is_amid = not self._arrivals.add(nbytes)
        except MalformedFrame as error:
            is_amid = False
            self._end_with(error)
        if not is_amid:
            self._start_requests()
            return
        self._others_turn = self._others_turn or self._turn_is_over
        if self._arrivals.is_full or self._others_turn:
            self._adjust_reading()

    def eof_received(self) -> bool:
        """What came before is started, as long as it goes on; with TLS the transport ends at once, whatever is said."""
        self._has_ended = self.takes_slices and self._has_requests and not self._closing
        if self._has_ended:
            self._end_where_nothing_goes_on()
        return self._has_ended

    def _end_where_nothing_goes_on(self) -> None:
        self._call_later(GOOD_BYE_SECONDS, self._end_where_nothing_goes_on)
        if self.broker.clock.monotonic() - self.idle_since >= GOOD_BYE_SECONDS:
            self.close()

    @property
    def _has_requests(self) -> bool:
        """That have not been started."""
        return bool(self._arrivals.requests) or self._arrivals.has_more

    def pause_writing(self) -> None:
        self._outbox.is_stuck = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._outbox.is_stuck = False
        if not self._outbox.unsent:
            self._outbox.let_go_of_written()
        self._loop.call_soon(self._go_on)

    # --- requests and answers ----------------------------------------------------------------------------------------

    @property
    def _takes_none(self) -> bool:
        """No request is started: the client takes no answers, is over its quota, or asks for what is not served yet."""
        return self._outbox.is_stuck or self._muted is not None or self._waits_for_start

    @property
    def _has_enough(self) -> bool:
        """It is to take answers before it gets more of them."""
        return len(self._unanswered) >= self._arrivals.most_requests or self._outbox.has_enough()

    def _start_requests(self) -> None:
        left, until = _MOST_AT_ONCE, time.monotonic() + _MOST_SECONDS
        requests = self._arrivals.requests
        self._others_turn = self._turn_is_over
        while not self._holding_back and not self._takes_none and not self._closing:
            if not requests:
                try:
                    self._arrivals.split_more()
                except MalformedFrame as error:
                    self._end_with(error)
            if not requests:
                break
            if self._has_enough:
                self._flush()  # finished answers count until they have left
                if self._has_enough:
                    break
            if self._waits_to_be_answered():
                break
            is_over = not left or (left < _MOST_AT_ONCE and time.monotonic() > until)
            if is_over or self.broker.beginning_bytes > _MOST_BEGINNING or self._outbox.turn_is_full:
                self._others_turn = True
                self._flush_soon()
                break
            left -= 1
            frame = requests.popleft()
            try:
                self._start(frame)
            except NotYetServed:
                requests.appendleft(frame)
                self._waits_for_start = True
                break
            except MalformedFrame as error:
                self._arrivals.drop_requests()
                self._end_with(error)
        self._flush()
        if self._malformed is not None and not (requests or self._unanswered or self._closing):
            self._refuse(self._malformed)
        if self._has_ended and not (self._has_requests or self._closing):
            self.close()
        if left < _MOST_AT_ONCE and not self._others_turn and time.monotonic() > until:
            self._others_turn = True
            self._flush_soon()
        self._adjust_reading()

    def _waits_to_be_answered(self) -> bool:
        """The next request may have a large answer, and there is no room for it."""
        if self.authentication is not None and self.authentication.bare:
            return False
        return not self._outbox.may_answer(int.from_bytes(self._arrivals.requests[0][:2], "big"))

    def ask_again(self) -> None:
        """There may be room for the answer to its next request."""
        self._go_on()

    def _start(self, frame: bytearray) -> None:
        pending, outcome = self.broker.dispatch.begin(self, frame)
        pending.size = len(frame)
        pending.is_at_work = pending.api_key == PRODUCE  # records are parts of its frame
        self._unanswered.append(pending)
        self.idle_since = self.broker.clock.monotonic()
        self._mute_as_told(pending)  # what else has been sent waits already
        if isinstance(outcome, Later):
            outcome.tell(partial(self._on_answer, pending))
        elif isinstance(outcome, asyncio.Future):
            outcome.add_done_callback(lambda future: self._on_future(pending, future))
        elif asyncio.iscoroutine(outcome):
            self._holding_back = pending.is_at_work = True
            self.broker.beginning_bytes += pending.size
            self.broker.spawn(self._finish_coroutine(pending, outcome), name=f"api {pending.api_key}")
        else:
            self._answer(pending, outcome)

    async def _finish_coroutine(self, pending: Pending, outcome: Any) -> None:
        """Wait for a handler that is a coroutine; it may end in a future, which no longer holds the next one back."""
        await self._turn_of_answers()
        self.broker.beginning_bytes -= pending.size
        try:
            answer = await outcome
            await self._turn_of_answers()
        except Exception as error:
            self._fail(pending, error)
        else:
            if pending.api_key != PRODUCE and isinstance(answer, Later | asyncio.Future):  # it waits for others
                self._work_is_over(pending)
                pending.is_at_work = False
            if isinstance(answer, Later):
                answer.tell(partial(self._on_answer, pending))
            elif isinstance(answer, asyncio.Future):
                answer.add_done_callback(lambda future: self._on_future(pending, future))
            else:
                self._answer(pending, answer)
        finally:
            self._holding_back = False
        self._go_on()

    async def _turn_of_answers(self) -> None:
        while self._outbox.turn_is_full:
            await _next_turn()

    def _on_future(self, pending: Pending, future: "asyncio.Future[Any]") -> None:
        if future.cancelled():
            self._fail(pending, MainstemError("the broker is stopping"))
        elif (error := future.exception()) is not None:
            self._fail(pending, error)
        else:
            self._on_answer(pending, future.result())
        self._flush_soon()

    def _on_answer(self, pending: Pending, answer: Any) -> None:
        if self._outbox.turn_is_full:
            self._loop.call_soon(self._on_answer, pending, answer)
            return
        self._answer(pending, answer)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:  # one write for all that this turn of the loop finishes
            self._flush_scheduled = True
            self._loop.call_soon(self._go_on)

    def _answer(self, pending: Pending, answer: Any) -> None:
        try:
            self.broker.dispatch.answer(pending, answer)
        except Exception as error:  # it cannot be encoded; without an answer, the next one would be taken for it
            self._fail(pending, error)
            return
        self._done(pending)
        self._hold_answer(pending)
        self._mute_as_told(pending)

    def _fail(self, pending: Pending, error: BaseException) -> None:
        """Answer a failure; where the API has no way to tell it, the connection ends."""
        try:
            self.broker.dispatch.fail(pending, error)
        except MalformedFrame as untold:
            self._refuse(untold)
            return
        except Exception:  # it would wait for ever
            log.exception("failure_not_told", api=pending.api_key, version=pending.version)
            self.close()
            return
        finally:
            self._done(pending)
        self._hold_answer(pending)

    def _done(self, pending: Pending) -> None:
        """What was asked is in memory no more."""
        pending.request = None
        self._work_is_over(pending)

    def _work_is_over(self, pending: Pending) -> None:
        if self._transport is GONE and pending.is_at_work and pending.size:
            self._arrivals.hold(-pending.size)
            pending.size = 0
            self._arrivals.leave()
            if not self._arrivals.held:
                self.count_no_more()

    def _hold_answer(self, pending: Pending) -> None:
        if not self._closing:  # else it is not sent
            self._outbox.hold(pending)

    def _go_on(self) -> None:
        self._flush_scheduled = False
        if self._closing:
            self._send()
            return
        self._start_requests()

    def _flush(self) -> None:
        unanswered = self._unanswered
        if not unanswered or not unanswered[0].done:
            self._send()
            return
        chunks: list[Any] = []
        large: list[Pending] = []
        free = 0
        while unanswered and unanswered[0].done:
            answered = unanswered.popleft()
            chunks += answered.chunks
            free += answered.size
            if answered.answer_size:
                answered.chunks = []
                large.append(answered)
        if not self._closing:  # else all was given back
            self._arrivals.hold(-free)
            if self._arrivals.memory.turn is self:
                self._arrivals.memory.end_turn()
        self.idle_since = self.broker.clock.monotonic()
        if self._drained is not None and not unanswered and not self._drained.done():
            self._drained.set_result(None)
        if self._closing:
            return
        if chunks:
            self._outbox.put(chunks, large)
        self._send()

    def _send(self) -> None:
        """What is unsent, as far as the socket takes it."""
        outbox = self._outbox
        if not outbox.unsent or outbox.is_stuck or self._transport.is_closing():
            return
        try:
            outbox.send()
        except Exception as error:  # a frame that was begun cannot be taken back; who asks again is told
            log.warning("answer_lost", client=self.client_host, error=str(error), kind=type(error).__name__)
            self.abort()
        if outbox.is_stuck or self._transport.is_closing():
            return
        if not outbox.unsent:
            outbox.let_go_of_written()
            if self._closing:
                self._close_transport()
        if outbox.unsent or self._arrivals.requests:
            self._flush_soon()

    @property
    def arrived_bytes(self) -> int:
        """Of a request that has arrived in part."""
        return self._arrivals.arrived_bytes

    @property
    def is_held_up(self) -> bool:
        """It is not read from since it is over its quota, or the broker starts; or its client has gone."""
        return self._muted is not None or self._waits_for_start or self._transport is GONE

    def look_again(self) -> None:
        """There may be room for more requests."""
        self._adjust_reading()

    def _adjust_reading(self) -> None:
        busy = self._takes_none or self._closing or self._reads_no_more or self._malformed is not None
        busy = busy or self._has_ended
        arrivals = self._arrivals
        busy = busy or arrivals.has_more or len(arrivals.requests) + len(self._unanswered) >= arrivals.most_requests
        busy = busy or self._others_turn  # the end of the stream is not read before all that came earlier is started
        if busy:
            arrivals.is_not_read()
            pause = True
        else:
            pause = not arrivals.may_be_read(is_first=not self._unanswered)
        if pause is not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end_with(self, error: MalformedFrame) -> None:
        """What comes is no request: the connection ends when what was asked before is answered, or some time later,
        since nobody reads from here on whether the client is still there.
        """
        if self._malformed is None:
            self._malformed = error
            self._call_later(GOOD_BYE_SECONDS, partial(self._refuse, error))

    def _refuse(self, error: MainstemError) -> None:
        log.info("connection_refused", client=self.client_host, reason=str(error))
        self._flush()  # what was answered before
        self.close()

    @property
    def idle(self) -> bool:
        """True if no request waits for its answer, or the client takes none; one that has arrived in part is none. Nor
        are those of a client with more behind them that nobody reads from: it may have gone.
        """
        is_left = self._reading_paused and self._has_requests
        waits = (self._unanswered or self._outbox.unsent or self._arrivals.requests) and not is_left
        return self._outbox.is_stuck or self._transport.is_closing() or not waits

    @property
    def has_gone(self) -> bool:
        """Its client has, and nobody has seen it since it is not read from."""
        return self._reading_paused and not self._transport.is_closing() and sending.has_hung_up(self.descriptor)

    @property
    def descriptor(self) -> int:
        """Of its socket."""
        return sending.descriptor_of(self._transport)

    @property
    def unsent_bytes(self) -> int:
        """What was written and the client has not taken."""
        return self._outbox.unsent_bytes

    @property
    def untaken_bytes(self) -> int:
        """That, large answers behind requests that wait, and what is in the system's buffers."""
        if self._transport.is_closing():
            return 0
        waiting = sum(each.answer_size for each in self._unanswered if each.done)
        return waiting + self.unsent_bytes + sending.queued_bytes(self.descriptor)

    @property
    def closed(self) -> bool:
        """True if nothing more will be sent to this client."""
        return self._closing

    async def drained(self) -> None:
        """Wait until every request that was started has its answer, or the client has gone."""
        if self._unanswered and not self._closing:
            self._drained = self._loop.create_future()
            await self._drained

    def stop_reading(self) -> None:
        """Take no further request; those that were started are answered."""
        self._reads_no_more = True
        self._arrivals.drop_requests()
        self._closing = self._closing or self._transport.is_closing()
        if not self._reading_paused and not self._closing:
            self._reading_paused = True
            self._transport.pause_reading()

    def close(self) -> None:
        """Close the socket after what was written to it has left; after `GOOD_BYE_SECONDS`, whether or not it has."""
        self.stop_reading()
        if not self._closing:
            self._closing = True
            self._call_later(GOOD_BYE_SECONDS, self.abort)
        if self._outbox.unsent:
            self._flush_soon()  # a part in a turn, then it is closed
        else:
            self._close_transport()

    def _close_transport(self) -> None:
        if not self._transport.is_closing():  # told a second time, that of asyncio for TLS knows nothing any more
            self._transport.close()

    def end(self) -> None:
        """Close the socket; at once where the client takes nothing, since what was written would never leave."""
        if self._outbox.is_stuck:
            self.abort()
        else:
            self.close()

    def abort(self) -> None:
        """Close the socket at once, whatever was written and has not left, or has arrived in part."""
        facts = {"unsent_bytes": self.unsent_bytes, "arrived_bytes": self.arrived_bytes}
        log.info("connection_cut_off", client=self.client_host, **facts)
        self._closing = True
        self._arrivals.drop_requests()
        self._outbox.clear()
        self._transport.abort()
