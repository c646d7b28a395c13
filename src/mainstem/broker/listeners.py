"""The listeners: bound sockets, who is accepted, and what clients are told to connect to.

They accept their clients themselves. asyncio's own server leaves a client open for good that it has accepted in the
turn in which it is closed (https://github.com/python/cpython/issues/109564); and those in the handshake of TLS are to
be counted: at most `MOST_HANDSHAKES` at a time. With one more, the oldest is cut off: a client that means it is done in
milliseconds, so whoever opens connections and says nothing holds a bounded memory and keeps nobody out.
"""

import asyncio
import errno
import ipaddress
import os
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from mainstem.broker.config import FIRST_LISTENER, ListenerConfig
from mainstem.broker.connection import Connection
from mainstem.broker.errors import AddressInUse
from mainstem.core.address import format_address
from mainstem.core.causes import one_line
from mainstem.core.logging import get_logger

if TYPE_CHECKING:
    from mainstem.broker.security.tls import RenewedContext
    from mainstem.broker.server import Broker

# Of ::1 where there is no IPv6; asyncio of newer Pythons gives no number. A port in use there is a conflict: clients
# that try ::1 first would talk to a stranger.
_WITHOUT_IPV6: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, None)
_BACKLOG: Final = 512
_SECONDS_AFTER_FAILURE: Final = 0.1  # of an accept: no file descriptor is left
_GOOD_BYE_SECONDS: Final = 5.0  # for the client's answer to the end of TLS

MOST_HANDSHAKES: Final = 256

log = get_logger()


def _host_to_tell(config: ListenerConfig) -> str:
    """Of a listener on one address. A client may try ::1 first where it is told `localhost`, and wait for it; but a
    certificate may be for that name alone.
    """
    return "127.0.0.1" if config.host == "localhost" and not config.tls else config.host


class Listener:
    """One listening address, and the address that its clients are told."""

    def __init__(self, broker: "Broker", name: str, config: ListenerConfig) -> None:
        self.name = name
        self.config = config
        self.mechanisms: tuple[str, ...] = config.sasl_enabled_mechanisms if config.sasl else ()
        """Of SASL; empty where clients are not asked who they are."""
        self.host = ""
        self.port = 0
        self._broker = broker
        self._sockets: list[socket.socket] = []
        self._tls: RenewedContext | None = None
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}  # the oldest first

    async def bind(self) -> None:
        """Bind without accepting. `localhost` means 127.0.0.1 and ::1 on one port: some clients try ::1 first.

        Raises:
            AddressInUse: the address is taken, or is none of this machine's.
            BadSetting: the certificate's files.
        """
        config = self.config
        hosts = ["127.0.0.1", "::1"] if config.host == "localhost" else [config.host]
        port = config.port
        for host in hosts:
            try:
                found = await self._broker.loop.getaddrinfo(
                    host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
                for family, _, _, _, address in dict.fromkeys(found):
                    self._sockets.append(_bound(family, (address[0], port, *address[2:])))
                    port = self._sockets[0].getsockname()[1]
            except OSError as error:
                if self._sockets and error.errno in _WITHOUT_IPV6:
                    break
                raise _cannot_listen(self.name, host, port, error) from None
        anywhere = config.host in ("", "0.0.0.0", "::")  # noqa: S104 it is asked for, not our default
        self.host = config.advertised_host or (socket.gethostname() if anywhere else _host_to_tell(config))
        self.port = config.advertised_port or port
        if config.tls:
            from mainstem.broker.security.tls import RenewedContext

            self._tls = RenewedContext(
                f"listener {self.name}",
                config.certificate_file,
                config.key_file,
                config.client_ca_file,
                config.client_auth or ("required" if config.client_ca_file else "none"),
                self._broker.clock,
            )

    def descriptors(self) -> list[int]:
        """Of the sockets that it listens on."""
        return [each.fileno() for each in self._sockets if each.fileno() >= 0]

    def accept(self) -> None:
        """Start to accept clients."""
        self._tell_what_is_open()
        for each in self._sockets:
            each.listen(_BACKLOG)
            self._go_on(each)

    def close(self) -> None:
        """Accept nobody any more; those that are connected stay."""
        for each in self._sockets:
            if each.fileno() >= 0:
                self._broker.loop.remove_reader(each)
            each.close()
        for accepted in self._handshakes.values():
            _cut_off(accepted)

    def _tell_what_is_open(self) -> None:
        addresses = [each.getsockname()[0] for each in self._sockets]
        if all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses):
            return
        facts = {"listener": self.name, "host": self.config.host}
        if not self.config.sasl and not (self._tls is not None and self.config.client_ca_file):
            hint = "SASL or client_ca_file asks who they are; host 127.0.0.1 offers the log to this machine alone"
            log.warning("anybody_may_connect", **facts, hint=hint)
        if not self.config.tls:
            log.warning("nothing_is_encrypted", **facts, hint="protocol SSL or SASL_SSL, with a certificate, does")

    # --- who comes ---------------------------------------------------------------------------------------------------

    def _go_on(self, listening: socket.socket) -> None:
        if not self._broker.stopping.done():
            self._broker.loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = self._broker.loop
        for _ in range(_BACKLOG):
            try:
                accepted, client = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("accept_failed", listener=self.name, error=str(error))
                loop.remove_reader(listening)
                loop.call_later(_SECONDS_AFTER_FAILURE, self._go_on, listening)
                return
            accepted.setblocking(False)
            task = self._broker.spawn(self._let_in(accepted, client[0]), name="arrival")
            task.add_done_callback(partial(self._has_arrived, accepted))
            if self._tls is not None:  # without it, he is connected in the next turn
                if len(self._handshakes) >= MOST_HANDSHAKES:
                    _cut_off(self._handshakes.pop(next(iter(self._handshakes))))
                self._handshakes[task] = accepted

    async def _let_in(self, accepted: socket.socket, client: str) -> None:
        loop = self._broker.loop
        if self._tls is None:
            await loop.connect_accepted_socket(self._connection, accepted)
            return
        from mainstem.broker.security.tls import handshake_with

        try:
            with handshake_with(accepted):
                await loop.connect_accepted_socket(
                    self._connection,
                    accepted,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._broker.config.authentication_timeout_ms / 1000,
                    ssl_shutdown_timeout=_GOOD_BYE_SECONDS,
                )
        except (OSError, TimeoutError) as error:  # a port that is scanned, a client without the authority
            log.info("handshake_failed", client=client, listener=self.name, reason=one_line(error))

    def _connection(self) -> Connection:
        return Connection(self._broker, self)

    def _has_arrived(self, accepted: socket.socket, task: "asyncio.Task[None]") -> None:
        self._handshakes.pop(task, None)
        if task.cancelled():  # perhaps before it began: no transport has the socket
            accepted.close()


def _cut_off(accepted: socket.socket) -> None:
    """Its handshake fails. A task that is cancelled may have its connection already, and uvloop closes that without a
    word to it.
    """
    with suppress(OSError):  # the client has gone
        accepted.shutdown(socket.SHUT_RDWR)


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    """A socket that is bound and does not listen yet."""
    try:
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio sets no TCP_NODELAY
    except OSError as error:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT)) from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


def _cannot_listen(name: str, host: str, port: int, error: OSError) -> AddressInUse:
    first = name == FIRST_LISTENER
    if error.errno == errno.EADDRINUSE:
        setting = "port of [broker], or --listen" if first else f"port of [broker.listeners.{name}]"
        return AddressInUse(
            f"{format_address(host, port)} is in use",
            hint=f"stop the process that listens there, or choose another port: {setting}",
        )
    reason = error.strerror or str(error)
    return AddressInUse(
        f"cannot listen on {format_address(host, port)}: {reason}", hint="give HOST:PORT of an address of this machine"
    )
