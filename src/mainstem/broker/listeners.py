"""The listeners: bound sockets, who is accepted, and what clients are told to connect to.

They accept their clients themselves. asyncio's own server leaves a client open for good that it has accepted in the
turn in which it is closed (https://github.com/python/cpython/issues/109564); and a client is to be counted, and sent
away, before its handshake (`admission`), which waits for its turn (`handshakes`).
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
from mainstem.broker.connection import GOOD_BYE_SECONDS, Connection
from mainstem.broker.errors import AddressInUse, TooManyConnections
from mainstem.broker.security.hosts import host_of
from mainstem.core.address import format_address
from mainstem.core.causes import one_line
from mainstem.core.logging import get_logger

if TYPE_CHECKING:
    from mainstem.broker.security.tls import RenewedContext
    from mainstem.broker.server import Broker

# Of ::1 where there is no IPv6. A port in use there is a conflict: clients that try ::1 first would talk to a stranger.
_WITHOUT_IPV6: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_BACKLOG: Final = 512
_MOST_AT_ONCE: Final = 128  # are accepted, before others have their turn
_SECONDS_AFTER_FAILURE: Final = 0.1  # of an accept: no file descriptor is left

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
                addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
                alone = len(hosts) == len(addresses) == 1
                for family, address in addresses:
                    self._sockets.append(_bound(family, (address[0], port, *address[2:]), alone=alone))
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
                self._client_auth,
                self._broker.clock,
            )

    @property
    def _client_auth(self) -> str:
        return self.config.client_auth or ("required" if self.config.client_ca_file else "none")

    def descriptors(self) -> list[int]:
        """Of the sockets that it listens on."""
        return [each.fileno() for each in self._sockets if each.fileno() >= 0]

    def accept(self) -> None:
        """Start to accept clients.

        Raises:
            AddressInUse: another process, or listener, has been faster.
        """
        self._tell_what_is_open()
        for each in self._sockets:
            host, port, *_ = each.getsockname()
            try:
                each.listen(_BACKLOG)
            except OSError as error:  # since it was bound somebody else has begun to listen there
                raise _cannot_listen(self.name, host, port, error) from None
            self._go_on(each)

    def close(self) -> None:
        """Accept nobody any more; those that were accepted stay."""
        for each in self._sockets:
            if each.fileno() >= 0:
                self._broker.loop.remove_reader(each)
            each.close()

    def _tell_what_is_open(self) -> None:
        addresses = [each.getsockname()[0] for each in self._sockets]
        if all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses):
            return
        facts = {"listener": self.name, "host": self.config.host}
        if not self.config.sasl and not (self._tls is not None and self._client_auth == "required"):
            hint = (
                "SASL, or client_ca_file with client_auth = required, asks who they are; "
                "host 127.0.0.1 offers the log to this machine alone"
            )
            log.warning("anybody_may_connect", **facts, hint=hint)
        if not self.config.tls:
            log.warning("nothing_is_encrypted", **facts, hint="protocol SSL or SASL_SSL, with a certificate, does")

    # --- who comes ---------------------------------------------------------------------------------------------------

    def _go_on(self, listening: socket.socket) -> None:
        if not self._broker.stopping.done():
            self._broker.loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = self._broker.loop
        for _ in range(_MOST_AT_ONCE):
            if self._broker.admission.is_turning_over:
                return
            try:
                accepted, client = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("accept_failed", listener=self.name, error=str(error))
                loop.remove_reader(listening)
                loop.call_later(_SECONDS_AFTER_FAILURE, self._go_on, listening)
                return
            host = f"/{host_of(client[0])}"
            try:
                self._broker.admission.enter(host, self._broker.make_room)
            except TooManyConnections as error:
                log.info("connection_refused", client=host, reason=str(error))
                accepted.close()
                continue
            accepted.setblocking(False)
            arrival = _Arrival(self._broker, self, accepted, host)
            if self._tls is None:  # the client is connected in the next turn
                arrival.begin()
            else:
                self._broker.handshakes.arrive(arrival)

    async def connect(self, accepted: socket.socket, connection: Connection) -> None:
        """Give a client its transport, after its handshake where there is one; that it fails is told in the log."""
        loop = self._broker.loop
        if self._tls is None:
            await loop.connect_accepted_socket(lambda: connection, accepted)
            return
        from mainstem.broker.security.tls import handshake_with

        try:
            with handshake_with(accepted):
                await loop.connect_accepted_socket(
                    lambda: connection,
                    accepted,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._broker.config.authentication_timeout_ms / 1000,
                    ssl_shutdown_timeout=GOOD_BYE_SECONDS,
                )
        except (OSError, TimeoutError) as error:  # a port that is scanned, a client without the authority
            log.info("handshake_failed", client=connection.client_host, listener=self.name, reason=one_line(error))


class _Arrival:
    """A client that was accepted, until it is connected."""

    def __init__(self, broker: "Broker", listener: Listener, accepted: socket.socket, host: str) -> None:
        self.host = host
        self.socket = accepted
        self._broker, self._listener = broker, listener
        self._connection: Connection | None = None  # once it has begun

    @property
    def descriptor(self) -> int:
        return self.socket.fileno()

    def begin(self) -> None:
        self._connection = Connection(self._broker, self._listener, self.host)
        task = self._broker.spawn(self._listener.connect(self.socket, self._connection), name="arrival")
        task.add_done_callback(partial(self._is_over, self._connection))

    def cut_off(self) -> None:
        """Close the socket of one that waits. One that has begun is told by its own end, a turn or two later: its
        transport has the descriptor.
        """
        log.info(
            "handshake_cut_off", client=self.host, listener=self._listener.name, begun=self._connection is not None
        )
        if self._connection is None:
            self.socket.close()
            self._broker.admission.leave(self.host)
            return
        if self._connection.was_made:  # TLS, which nobody reads from, may not see the end of a socket
            self._connection.cut_off()
            return
        self._connection.give_way()
        # Its handshake fails. A task that is cancelled may have its connection already, and uvloop closes that without
        # a word to it.
        with suppress(OSError):  # the client has gone
            self.socket.shutdown(socket.SHUT_RDWR)

    def _is_over(self, connection: Connection, task: "asyncio.Task[None]") -> None:
        if not connection.was_made:
            connection.count_no_more()
        if task.cancelled():  # perhaps before it began: no transport has the socket
            self.socket.close()
        self._broker.handshakes.leave(self)


def _bound(family: int, address: tuple[object, ...], *, alone: bool) -> socket.socket:
    """A socket that is bound and does not listen yet; one that is `alone` on `::` takes clients of IPv4, too."""
    try:
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio sets no TCP_NODELAY
    except OSError as error:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT)) from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not alone)
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
    is_low = error.errno == errno.EACCES and 0 < port < 1024
    return AddressInUse(
        f"cannot listen on {format_address(host, port)}: {reason}",
        hint="choose a port from 1024 on" if is_low else "give HOST:PORT of an address of this machine",
    )
