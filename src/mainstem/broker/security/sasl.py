"""SASL on one connection: who the client is, before it may ask anything else.

    client                          log
    [ApiVersions]
    SaslHandshake: mechanism   ->   the mechanisms there are
    SaslAuthenticate: bytes    ->   bytes, as often as the mechanism needs   (after SaslHandshake 0: bare bytes)
    ... requests ...
    SaslHandshake, SaslAuthenticate again before the session ends (KIP-368), where sessions end

Until a client is known, anything but these three requests ends the connection, a request may have no more than
`sasl_server_max_receive_size` bytes, and all of it must be done within `authentication_timeout_ms`. Who fails is told
so after `connection_failed_authentication_delay_ms`, and cut off: guessing takes time.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from mainstem.broker.security.credentials import MECHANISMS, Credentials, Mechanism
from mainstem.broker.security.errors import AuthenticationFailed, Undecided
from mainstem.broker.security.scram import ScramExchange
from mainstem.core import Clock
from mainstem.core.logging import get_logger
from mainstem.wire.errors import Code, MalformedFrame, RequestError
from mainstem.wire.frames import API_VERSIONS, SIZE

if TYPE_CHECKING:
    from mainstem.broker.config import BrokerConfig
    from mainstem.broker.connection import Connection
from mainstem.broker.pending import Pending

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
_BEFORE: Final = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)

MOST_REQUESTS_BEFORE: Final = 2
"""Requests that a client may send ahead before it is known."""

log = get_logger()


class Exchange(Protocol):
    """One mechanism at work on one client. `step` may take milliseconds: it runs in a thread."""

    @property
    def user(self) -> str | None:
        """Who the client is, once that is known."""
        ...

    def step(self, data: bytes) -> bytes:
        """The answer to the client's next message.

        Raises:
            AuthenticationFailed: it is not who it says.
            Undecided: the same message is to be taken again, a little later.
        """
        ...


class PlainExchange:
    """PLAIN (RFC 4616): [authorization id] NUL user NUL password."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.user: str | None = None

    def step(self, data: bytes) -> bytes:
        try:
            parts = data.decode().split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise AuthenticationFailed("expected a user and a password")
        asked, user, password = parts
        if not self._credentials.check_password(user, password) or asked not in ("", user):
            raise AuthenticationFailed("wrong user or password")
        self.user = user
        return b""


def mechanisms(credentials: Credentials, config: "BrokerConfig", clock: Clock) -> Mapping[str, Callable[[], Exchange]]:
    """What makes an exchange, by the mechanism's name.

    Raises:
        UserError, BadSetting: as `Tokens` does, where a listener takes tokens.
    """

    def scram(mechanism: Mechanism) -> Callable[[], Exchange]:
        return lambda: ScramExchange(mechanism, credentials)

    if not (credentials or config.bearer):
        hint = "give users or users_file in [broker], or make one through a listener without SASL (kafka-configs)"
        log.warning("no_users", hint=f"no client can say who it is: {hint}")
    made: dict[str, Callable[[], Exchange]] = {name: scram(each) for name, each in MECHANISMS.items()}
    made["PLAIN"] = lambda: PlainExchange(credentials)
    if config.bearer:
        from mainstem.broker.security.oauth import BearerExchange, Tokens

        tokens = Tokens(config, clock)
        made["OAUTHBEARER"] = lambda: BearerExchange(tokens)
    return made


async def _answer(exchange: Exchange, data: bytes, stops: "asyncio.Future[None]") -> bytes:
    """What the exchange answers once it can."""
    while True:
        try:
            return await asyncio.to_thread(exchange.step, data)
        except Undecided as wait:
            await asyncio.wait((asyncio.wrap_future(wait.done), stops), return_when=asyncio.FIRST_COMPLETED)
            if stops.done():
                raise AuthenticationFailed("the log stops") from None


class Authentication:
    """The state of one connection of a SASL listener. The connection drops it once the client is known for good."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._broker = connection.broker
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._known_by = ""  # the mechanism by which the client became known
        self._expires: float | None = None  # when the session does
        self._failed = False
        self.bare = False
        """The client sends bytes without a header now."""
        timeout = self._broker.config.authentication_timeout_ms / 1000
        self._timer: asyncio.TimerHandle = self._broker.loop.call_later(timeout, self._too_late)
        connection.on_close.add(self._timer.cancel)

    def _too_late(self) -> None:
        log.info("authentication_timed_out", client=self._connection.client_host)
        self._connection.end()

    @property
    def known(self) -> bool:
        """The client has said who it is."""
        return bool(self._known_by)

    def admit(self, api_key: int) -> None:
        """Whether a request may be handled now.

        Raises:
            MalformedFrame: it may not: the connection ends.
        """
        if self._failed:
            raise MalformedFrame(f"api {api_key} after the client has failed to say who it is")
        if api_key in _BEFORE:
            return
        if not self.known:
            raise MalformedFrame(f"api {api_key} before the client has said who it is")
        if self._expires is not None and self._broker.clock.monotonic() > self._expires:
            raise MalformedFrame(f"api {api_key} after the session has ended")

    def begin(self, mechanism: str, *, bare: bool) -> None:
        """Start an exchange.

        Raises:
            RequestError: the mechanism is not one of the listener's.
        """
        offered = self._connection.listener.mechanisms
        if mechanism not in offered or (self.known and mechanism != self._known_by):
            self._end_after_answer()
            raise RequestError(Code.unsupported_sasl_mechanism, f"mechanism {mechanism!r}, offered are {offered}")
        self._mechanism = mechanism
        self._exchange = self._broker.mechanisms[mechanism]()
        self.bare = bare

    async def step(self, data: bytes) -> tuple[bytes, int]:
        """The answer to the client's next message, and how many milliseconds its session lasts (0: for ever).

        Raises:
            RequestError: the exchange has failed, or none has begun; the connection ends behind the answer.
        """
        exchange = self._exchange
        if exchange is None:
            self._end_after_answer()
            raise RequestError(Code.illegal_sasl_state, "SaslHandshake says the mechanism first")
        try:
            answer = await _answer(exchange, data, self._broker.stopping)
            if exchange.user is not None:
                return answer, self._became_known(f"User:{exchange.user}")
        except AuthenticationFailed as error:
            self._exchange = None
            facts = {"client": self._connection.client_host, "listener": self._connection.listener.name}
            log.info("authentication_failed", **facts, mechanism=self._mechanism, reason=str(error))
            await asyncio.sleep(self._broker.config.connection_failed_authentication_delay_ms / 1000)
            self._end_after_answer()
            told = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {self._mechanism}"
            raise RequestError(Code.sasl_authentication_failed, told) from None
        return answer, 0

    def _end_after_answer(self) -> None:
        self._failed = True  # a request may come before the loop's next turn
        self._broker.loop.call_soon(self._connection.close)  # the answer is written in this turn

    def _became_known(self, principal: str) -> int:
        connection, exchange = self._connection, self._exchange
        if self.known and principal != connection.principal:
            raise AuthenticationFailed(f"was {connection.principal}, became {principal}")
        connection.principal = principal
        self._exchange = None
        self._known_by = self._mechanism
        self.bare = False
        self._timer.cancel()
        lifetimes = [self._broker.config.connections_max_reauth_ms, getattr(exchange, "lifetime_ms", 0)]
        lifetime_ms = min((each for each in lifetimes if each > 0), default=0)
        if lifetime_ms:
            self._expires = self._broker.clock.monotonic() + lifetime_ms / 1000
        connection.known(for_good=not lifetime_ms)
        return lifetime_ms

    def begin_bare(self, pending: "Pending", frame: bytearray) -> Coroutine[Any, Any, None]:
        """Handle bytes that have no header, after SaslHandshake 0; a failure has no answer there."""

        async def run() -> None:
            try:
                answer, _ = await self.step(bytes(frame))
            except RequestError as error:
                raise MalformedFrame(str(error)) from None
            pending.chunks = [SIZE.pack(len(answer)) + answer]

        return run()
