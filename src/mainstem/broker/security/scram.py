"""SCRAM, the server's side of one exchange (RFC 5802, RFC 7677), as Kafka has it: no channel binding. No I/O.

    client   n,[a=authorization id],n=USER,r=NONCE[,extensions]
    server   r=NONCE+OURS,s=SALT,i=ITERATIONS
    client   c=HEADER,r=NONCE+OURS,p=PROOF
    server   v=SIGNATURE

An exchange for a user that is not there goes on to the end, and fails there as with a wrong password.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Final

from mainstem.broker.security.credentials import Credentials, Mechanism
from mainstem.broker.security.errors import AuthenticationFailed

_FIRST: Final = re.compile(
    r"(?P<header>[ny],(?:a=(?P<asked>[^,\0]+))?,)(?P<bare>n=(?P<user>[^,\0]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?)"
)
_FINAL: Final = re.compile(
    r"(?P<unsigned>c=(?P<binding>[a-zA-Z0-9/+=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?),p=(?P<proof>[a-zA-Z0-9/+=]+)"
)
_NONCE_BYTES: Final = 24


class ScramExchange:
    """One client that says who it is."""

    def __init__(self, mechanism: Mechanism, credentials: Credentials) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._first: re.Match[str] | None = None
        self._answer = ""
        self._nonce = ""
        self.user: str | None = None
        """Who the client is, once it has proven it."""

    def step(self, data: bytes) -> bytes:
        """The answer to the client's next message; `user` is there after the last one.

        Raises:
            AuthenticationFailed: the message is none, or the proof is wrong.
        """
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("the message is not UTF-8") from None
        return (self._begin(text) if self._first is None else self._finish(text)).encode()

    def _begin(self, text: str) -> str:
        first = _FIRST.fullmatch(text)
        if first is None:
            raise AuthenticationFailed("expected the first message of SCRAM, without channel binding")
        name, asked = _unescaped(first["user"]), first["asked"]
        if asked is not None and _unescaped(asked) != name:
            raise AuthenticationFailed("expected no authorization id, or the user's name")
        self._first, self._name = first, name
        self._credential, self._there = self._credentials.find_or_pretend(name, self._mechanism)
        self._nonce = first["nonce"] + secrets.token_urlsafe(_NONCE_BYTES)
        salt = base64.b64encode(self._credential.salt).decode()
        self._answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        return self._answer

    def _finish(self, text: str) -> str:
        assert self._first is not None
        final = _FINAL.fullmatch(text)
        if final is None or self.user is not None:
            raise AuthenticationFailed("expected the final message of SCRAM")
        binding = base64.b64encode(self._first["header"].encode()).decode()
        if final["binding"] != binding or final["nonce"] != self._nonce:
            raise AuthenticationFailed("expected the header and nonce of this exchange")
        signed = f"{self._first['bare']},{self._answer},{final['unsigned']}".encode()
        mechanism, credential = self._mechanism, self._credential
        signature = mechanism.hmac(credential.stored_key, signed)
        try:
            proof = base64.b64decode(final["proof"], validate=True)
        except binascii.Error:
            proof = b""
        key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        same = hmac.compare_digest(hashlib.new(mechanism.hash, key).digest(), credential.stored_key)
        if not (same and self._there and len(proof) == len(signature)):
            raise AuthenticationFailed("wrong user or password")
        self.user = self._name
        return f"v={base64.b64encode(mechanism.hmac(credential.server_key, signed)).decode()}"


def _unescaped(name: str) -> str:
    """The name behind a `saslname`: `=2C` is a comma, `=3D` an equals sign, and nothing else may stand there."""
    if re.search("=(?!2C|3D)", name):
        raise AuthenticationFailed("expected =2C or =3D, found another = in the user's name")
    return name.replace("=2C", ",").replace("=3D", "=")
