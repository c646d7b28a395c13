"""TLS of a listener: the context that new connections get, and who the client is by its certificate.

A certificate that was renewed on the disk is taken for new connections: before each handshake the files' times are
looked at, at most once a second. Files that do not load (half written, a key that does not fit) leave what was there in
use, and are told in the log.
"""

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from mainstem.core import Clock
from mainstem.core.config import BadSetting
from mainstem.core.files import check_regular
from mainstem.core.logging import get_logger

_SECONDS_BETWEEN_LOOKS: Final = 1.0
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

# The attribute types that Java's X500Principal calls by name in RFC 2253, so Kafka does; all others are numbers.
_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_TEXTS: Final = {12: "utf-8", 19: "ascii", 20: "latin-1", 22: "ascii", 28: "utf-32-be", 30: "utf-16-be"}
"""ASN.1's kinds of strings, by their tags."""

_MOST_WITHOUT_DATA: Final = 65_536
"""Bytes: four times the largest record, the data of which are read once all of it has come."""

_MOST_KEY_UPDATES: Final = 128
"""Of one connection. Clients renew a key after as much data as it may encrypt, which is many gigabytes, or never."""
_HANDSHAKE: Final = 22  # RFC 8446: a kind of record, and one of its messages
_KEY_UPDATE: Final = 24

_SET: Final = 0x31
_VERSION: Final = 0xA0

_HINTS: Final = {
    "certificate_file": "give a PEM file of the log's certificate with its chain",
    "key_file": "give a PEM file of the certificate's private key, without a pass phrase",
    "client_ca_file": "give a PEM file of the authorities that sign the clients' certificates",
}
_OF_CERTIFICATES: Final = ("EE_", "CA_")
"""How OpenSSL's reasons begin where a certificate is too weak: a short key, an old digest."""

log = get_logger()


_accepted: ContextVar[socket.socket | None] = ContextVar("accepted", default=None)


@contextmanager
def handshake_with(accepted: socket.socket) -> Iterator[None]:
    """What TLS begins within the block is with that client: of what is ours, event loops hand on the context alone."""
    token = _accepted.set(accepted)
    try:
        yield
    finally:
        _accepted.reset(token)


class SaysNothing(ssl.SSLError):
    """A client has sent records of TLS without end, and none of its own data."""


class _Session(ssl.SSLObject):
    """One connection's TLS.

    It tells a client why its handshake fails: without an alert clients try again and again. OpenSSL leaves the alert
    where the event loop would find it, and both loops close the connection without a look.

    And it ends with a client that has new keys made without end (KeyUpdate): OpenSSL goes through all of these that
    have arrived before it returns, and one client had the event loop for seconds at a time, also where it sent a byte
    of data now and then.
    """

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    accepted: socket.socket | None = None
    key_updates = 0  # that the client has sent
    _without_data = 0  # bytes

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.accepted is not None:
                with suppress(OSError):  # the client has gone, or takes nothing
                    self.accepted.send(self.outgoing.read())
            raise
        self.accepted = None

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        before = self.incoming.pending
        try:
            found = super().read(size, buffer)
        except ssl.SSLWantReadError:
            self._count(before - self.incoming.pending, 0)
            raise
        self._count(before - self.incoming.pending, found if isinstance(found, int) else len(found))
        return found

    def _count(self, taken: int, data: int) -> None:
        self._without_data += taken
        if self._without_data > _MOST_WITHOUT_DATA:
            raise SaysNothing(f"{self._without_data} bytes of TLS without data in them")
        if self.key_updates > _MOST_KEY_UPDATES:
            raise SaysNothing(f"{self.key_updates} times new keys")
        if data:
            self._without_data = 0


def _count_key_updates(session: Any, direction: str, _version: int, record: int, message: int, _: bytes) -> None:
    """OpenSSL calls it for each record and each message of TLS's own, in either direction."""
    if message == _KEY_UPDATE and record == _HANDSHAKE and direction == "read":
        session.key_updates += 1


class RenewedContext(ssl.SSLContext):
    """A server's context that gives each new connection what the files hold now."""

    _files: tuple[str, ...]
    _client_auth: str
    _clock: Clock
    _current: ssl.SSLContext
    _seen: tuple[Any, ...]
    _next_look: float

    def __new__(cls, *_: Any) -> "RenewedContext":
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(
        self, where: str, certificate_file: str, key_file: str, client_ca_file: str, client_auth: str, clock: Clock
    ) -> None:
        """Load the files.

        Raises:
            BadSetting: they are not there or do not fit; `where` names the listener.
        """
        self._where = where
        self._files = (certificate_file, key_file, client_ca_file)
        self._client_auth = client_auth
        self._clock = clock
        self._seen = self._times()
        self._current = self._load()
        self._next_look = clock.monotonic() + _SECONDS_BETWEEN_LOOKS

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """The start of a handshake: both event loops call it, once per connection."""
        now = self._clock.monotonic()
        if now >= self._next_look:
            self._next_look = now + _SECONDS_BETWEEN_LOOKS
            self._look()
        made = self._current.wrap_bio(incoming, outgoing, *args, **kwargs)
        if isinstance(made, _Session):
            made.incoming, made.outgoing, made.accepted = incoming, outgoing, _accepted.get()
        return made

    def _look(self) -> None:
        times = self._times()
        if times == self._seen:
            return
        self._seen = times
        try:
            self._current = self._load()
        except BadSetting as error:
            log.warning("certificate_not_renewed", reason=str(error), hint="connections get the one before")
        else:
            log.info("certificate_renewed", listener=self._where)

    def _times(self) -> tuple[Any, ...]:
        return tuple(_time_of(file) for file in self._files if file)

    def _load(self) -> ssl.SSLContext:
        certificate_file, key_file, client_ca_file = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sslobject_class = _Session
        # Python's own setter makes enums of all that it hands on, for each record.
        super(ssl.SSLContext, ssl.SSLContext)._msg_callback.__set__(context, _count_key_updates)  # type: ignore[misc]
        context.options |= ssl.OP_NO_RENEGOTIATION  # a client could ask for costly handshakes without end
        for setting, file in zip(_HINTS, self._files, strict=True):
            if file:
                self._check_file(setting, file)
        try:
            context.load_cert_chain(certificate_file, key_file, password=lambda: "")
        except OSError as error:  # ssl.SSLError is one
            reason = getattr(error, "reason", None) or ""
            certificate = _holds_certificate(certificate_file) and not reason.startswith(_OF_CERTIFICATES)
            if certificate and reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
                raise BadSetting(
                    f"{self._where}: key_file {key_file}: expected the private key of the first certificate in "
                    f"certificate_file {certificate_file}, found that of another",
                    hint="the log's own certificate comes first, then those between it and its authority",
                ) from None
            setting, file = ("key_file", key_file) if certificate else ("certificate_file", certificate_file)
            raise self._wrong(setting, file, error) from None
        context.verify_mode = _CLIENT_AUTH[self._client_auth]
        if client_ca_file:
            try:
                context.load_verify_locations(client_ca_file)
            except OSError as error:
                raise self._wrong("client_ca_file", client_ca_file, error) from None
        return context

    def _check_file(self, setting: str, file: str) -> None:
        try:
            check_regular(file)
            with Path(file).open("rb"):
                pass
        except OSError as error:
            raise self._wrong(setting, file, error) from None

    def _wrong(self, setting: str, file: str, error: OSError) -> BadSetting:
        return BadSetting(f"{self._where}: {setting} {file}: {_reason(error)}", hint=_HINTS[setting])


def _holds_certificate(file: str) -> bool:
    """Whether OpenSSL takes what is there as certificates: it does not say which of two files it means."""
    text = Path(file).read_text(errors="replace")
    found = re.findall("-----BEGIN [A-Z0-9 ]*CERTIFICATE-----.*?-----END [A-Z0-9 ]*CERTIFICATE-----", text, re.DOTALL)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata="\n".join(found))
    except (ssl.SSLError, ValueError):
        return False
    return True


def _time_of(file: str) -> Any:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"expected PEM that OpenSSL reads, found: {error.reason or 'no certificate or key, or an encrypted key'}"
    return f"expected a file to read: {error.strerror or error}"


# --- the name in a certificate ----------------------------------------------------------------------------------------


def distinguished_name(certificate: bytes) -> str:
    """The subject of a certificate (DER) by RFC 2253, the last attribute first, as Kafka's default rule has it:
    `CN=app,O=Example`.

    It is read from the bytes: Python's own form has long names for attributes, and loses which belong together.
    """
    fields = _parts(_inside(_inside(certificate)))
    first = next(fields)
    if first[0] == _VERSION:
        first = next(fields)
    _algorithm, _issuer, _validity, (_, subject) = (next(fields) for _ in range(4))  # `first` was the serial number
    named = [
        "+".join(_attribute(pair) for _, pair in _parts(together)) for tag, together in _parts(subject) if tag == _SET
    ]
    return ",".join(reversed(named))


def _attribute(pair: bytes) -> str:
    (_, number), (tag, value) = _parts(pair)
    dotted = _dotted(number)
    name = _NAMES.get(dotted)
    if name is None or tag not in _TEXTS:
        return f"{name or dotted}=#{bytes((tag,)).hex()}{_length(len(value)).hex()}{value.hex()}"
    text = value.decode(_TEXTS[tag], "replace")
    escaped = "".join(f"\\{each}" if each in ',=+<>#;"\\' else each for each in text)
    stripped = escaped.strip(" ")
    before = len(escaped) - len(escaped.lstrip(" "))
    after = len(escaped) - len(stripped) - before
    space = "\\ "
    return f"{name}={space * before}{stripped}{space * after}"


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each of the values that follow each other in `data`."""
    position = 0
    while position < len(data):
        tag, size, position = data[position], data[position + 1], position + 2
        if size & 0x80:
            count = size & 0x7F
            size, position = int.from_bytes(data[position : position + count], "big"), position + count
        yield tag, data[position : position + size]
        position += size


def _inside(data: bytes) -> bytes:
    return next(_parts(data))[1]


def _length(size: int) -> bytes:
    if size < 0x80:
        return bytes((size,))
    data = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((0x80 | len(data),)) + data


def _dotted(data: bytes) -> str:
    """An object identifier as its numbers."""
    numbers, value = [], 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
