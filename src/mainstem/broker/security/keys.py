"""The keys that tokens are signed with: a JWKS document (RFC 7517) in a file, or at an address.

A file is looked at whenever keys are wanted, and read again when it has changed. An address is asked again after a
while, and when a token names a key that is not there, but not more often than every ten seconds; by a thread of its
own, so that an endpoint that hangs holds up nobody whose key is known.
"""

import http.client
import threading
import time
import urllib.request
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from mainstem.broker.security.errors import AuthenticationFailed, Undecided
from mainstem.core import Clock
from mainstem.core.causes import one_line
from mainstem.core.config import BadSetting
from mainstem.core.files import check_regular
from mainstem.core.http import open_request
from mainstem.core.logging import get_logger

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

_TIMEOUT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 1_048_576
_MOST_WORDS: Final = 200
_SECONDS_BETWEEN_REQUESTS: Final = 10.0

log = get_logger()


class Keys(Protocol):
    """Where keys come from. Any thread may ask."""

    def current(self, *, again: bool = False) -> "KeySet":
        """The keys; `again`: one was missing, there may be new ones.

        Raises:
            Undecided: they are on their way.
            AuthenticationFailed: there are none.
            BadSetting: the file has none.
        """
        ...


def keys_of(where: str, refresh_seconds: float, clock: Clock) -> Keys:
    """The keys at an address, or in a file.

    Raises:
        BadSetting: the file has none.
    """
    if where.startswith(("http://", "https://")):
        return KeyAddress(where, refresh_seconds, clock)
    file = KeyFile(Path(where.removeprefix("file://")))
    file.current()
    return file


class KeyFile:
    """Keys in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._keys: KeySet | None = None
        self._state: Any = None

    def current(self, *, again: bool = False) -> "KeySet":
        """See `Keys`; those of before, where the file cannot be read any more."""
        with self._lock:
            try:
                found = check_regular(self._file)
                state = (found.st_mtime_ns, found.st_size, found.st_ino)
                if self._keys is None or state != self._state:
                    self._keys, self._state = _key_set(self._file.read_bytes()), state
            except (OSError, ValueError) as error:
                if self._keys is None:
                    raise BadSetting(
                        f"sasl_oauthbearer_jwks_endpoint_url {self._file}: expected a JWKS document: {error}",
                        hint="give the address or the file of one, as who makes the tokens publishes it",
                    ) from None
                log.warning("keys_not_renewed", where=str(self._file), reason=str(error))
            return self._keys


class KeyAddress:
    """Keys at an address."""

    def __init__(self, address: str, refresh_seconds: float, clock: Clock) -> None:
        self._address = address
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._lock = threading.Lock()  # nobody waits for anything while it is held
        self._keys: KeySet | None = None
        self._answered_at = -_SECONDS_BETWEEN_REQUESTS  # or was given up
        self._fetch: Future[None] | None = None

    def current(self, *, again: bool = False) -> "KeySet":
        """See `Keys`; those of before, while new ones are on their way that nobody has missed yet."""
        with self._lock:
            pause = _SECONDS_BETWEEN_REQUESTS if again or self._keys is None else self._refresh_seconds
            if self._fetch is None and self._clock.monotonic() - self._answered_at >= pause:
                self._fetch = Future()
                self._fetch.set_running_or_notify_cancel()  # one who waits and is cancelled cancels it for nobody
                threading.Thread(target=self._renew, args=(self._fetch,), name="mainstem-keys", daemon=True).start()
            if self._fetch is not None and (again or self._keys is None):
                raise Undecided(self._fetch)
            if self._keys is None:
                raise AuthenticationFailed(f"no keys from {self._address} yet")
            return self._keys

    def _renew(self, fetch: "Future[None]") -> None:
        keys = None
        try:
            request = urllib.request.Request(self._address)  # noqa: S310 `keys_of` has looked at it
            with open_request(request, _TIMEOUT_SECONDS) as answer:
                keys = _key_set(_document(answer))
        except Exception as error:  # whatever somebody else sends
            log.warning("keys_not_renewed", where=self._address, reason=one_line(error)[:_MOST_WORDS])
        finally:
            with self._lock:
                self._keys = self._keys if keys is None else keys
                self._answered_at, self._fetch = self._clock.monotonic(), None
            fetch.set_result(None)


def _document(answer: http.client.HTTPResponse) -> bytes:
    """Raises: TimeoutError, ValueError: it comes too slowly, or is too large."""
    until = time.monotonic() + _TIMEOUT_SECONDS
    found = bytearray()
    while part := answer.read1(65_536):
        found += part
        if len(found) > _MOST_BYTES:
            raise ValueError(f"expected at most {_MOST_BYTES} bytes")
        if time.monotonic() > until:
            raise TimeoutError(f"{len(found)} bytes have come in {_TIMEOUT_SECONDS:.0f} s, and not all")
    return bytes(found)


def _key_set(document: bytes) -> "KeySet":
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    try:
        return KeySet.import_key_set(msgspec.json.decode(document))
    except (JoseError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
