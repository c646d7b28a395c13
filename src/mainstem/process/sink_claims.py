"""Tasks ask the driver, over a socket, for the right to write one output partition within one transaction.

Every partition has exactly one writer per transaction, since a broker recognises a repeated batch by its range of
sequences alone: a second attempt of a task, with other rows under the same sequences, would be acknowledged and
thrown away. So the first claim is granted, with the sequence to start at; a second one is refused and dooms the
transaction: whoever made the first may have written already.

    driver   16 random bytes  ->
             <- HMAC-SHA256(secret, those bytes), int32 length, JSON {transaction, topic, partition}
             int32 sequence, or -1: refused  ->
"""

import errno
import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Callable

import msgspec

from mainstem.client.errors import BrokerUnavailable, TransactionFailed
from mainstem.core import MainstemError, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.core.prepared import prepared

_NONCE = 16
_DIGEST = 32
_INT = struct.Struct(">i")
_REFUSED = -1
_LONGEST = 4096  # bytes of a claim: a topic's name has 249 at most
_TIMEOUT_SECONDS = 90.0  # a grant may have to ask the coordinator first
_PAUSE_SECONDS = 0.1
_PORTS = 100  # behind the first, that are tried

log = get_logger()


class Claim(msgspec.Struct, frozen=True):
    """`transaction` is the driver's number of the transaction, so that a task of an older one is refused."""

    transaction: int
    topic: str
    partition: int


class ClaimsAddress(msgspec.Struct, frozen=True):
    """Where tasks send their claims; goes to them with the transaction's ticket."""

    host: str
    port: int
    secret: bytes


class ClaimsServer:
    """The driver's side: a thread that answers claims while the driver lives.

    Args:
        host: what tasks are told.
        bind: the address to listen at; `host` unless given.
        port: the first to try, where a firewall lets some through; 0: any that is free.
    """

    def __init__(self, host: str = "127.0.0.1", *, bind: str = "", port: int = 0) -> None:
        self._listener = _listen(bind or host, port)
        self.address = ClaimsAddress(host, self._listener.getsockname()[1], secrets.token_bytes(32))
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._transaction = 0
        self._join: Callable[[TopicPartition], int] | None = None
        self.refusal = ""  # why the current transaction must not be committed
        self._thread = threading.Thread(target=self._serve, name="mainstem-claims", daemon=True)
        self._thread.start()

    def begin(self, join: Callable[[TopicPartition], int]) -> int:
        """Take claims for a new transaction; older claims are refused from now on. `join` grants or raises."""
        with self._lock:
            self._transaction += 1
            self._join, self.refusal = join, ""
            return self._transaction

    def end(self) -> None:
        """Refuse all claims until the next `begin`."""
        with self._lock:
            self._join = None

    def close(self) -> None:
        self.end()
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def decide(self, claim: Claim) -> int:
        """The sequence to start at, or -1."""
        with self._lock:
            if self._join is None or claim.transaction != self._transaction:
                return _REFUSED  # a task of an older transaction: the current one is not concerned
            try:
                return self._join(TopicPartition(claim.topic, claim.partition))
            except MainstemError as error:
                self.refusal = self.refusal or str(error)
                return _REFUSED

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            except (OSError, RuntimeError) as error:  # no file or thread is free: the next claim may find one
                if self._closing.wait(_PAUSE_SECONDS):
                    return
                log.warning("claim_not_taken", reason=str(error))

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            try:
                nonce = secrets.token_bytes(_NONCE)
                connection.sendall(nonce)
                if not hmac.compare_digest(_receive(connection, _DIGEST), _sign(self.address.secret, nonce)):
                    return  # a stranger
                (length,) = _INT.unpack(_receive(connection, _INT.size))
                if not 0 < length <= _LONGEST:
                    return
                claim = msgspec.json.decode(_receive(connection, length), type=prepared(Claim))
                connection.sendall(_INT.pack(self.decide(claim)))
            except (OSError, msgspec.DecodeError):
                return  # the task is gone or speaks something else: it gets no grant


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    last = port + _PORTS if port else port
    while True:
        try:
            return socket.create_server((address, port), backlog=64, family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port >= last:
                raise
            port += 1


def send_claim(address: ClaimsAddress, claim: Claim) -> int:
    """The task's side: ask the driver, wait for the answer.

    Returns:
        The sequence of the first batch.

    Raises:
        TransactionFailed: refused.
        BrokerUnavailable: the driver does not answer.
    """
    try:
        with socket.create_connection((address.host, address.port), timeout=_TIMEOUT_SECONDS) as connection:
            data = msgspec.json.encode(claim)
            signature = _sign(address.secret, _receive(connection, _NONCE))
            connection.sendall(signature + _INT.pack(len(data)) + data)
            (sequence,) = _INT.unpack(_receive(connection, _INT.size))
    except OSError as error:
        raise BrokerUnavailable(f"driver {address.host}:{address.port}: no answer to a claim: {error!r}") from error
    if sequence == _REFUSED:
        raise TransactionFailed(
            f"{claim.topic}-{claim.partition}: another attempt has claimed it, or the transaction is over",
            hint="tasks of the sink are tried once; the batch as a whole is tried again",
        )
    return int(sequence)


def _sign(secret: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, nonce, "sha256")


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data
