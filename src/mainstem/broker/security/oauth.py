"""OAUTHBEARER (RFC 7628): a client brings a token (JWT) that somebody else has signed (KIP-255, KIP-768).

    client   n,[a=authorization id],^Aauth=Bearer TOKEN^A[name=value^A...]^A
    server   nothing; or {"status": "invalid_token"}, to which the client says ^A, and the exchange fails

A token is taken if one of the keys has signed it, with a method that needs a private key; if it has not expired; and if
issuer and audience are as expected.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainstem.broker.security.errors import AuthenticationFailed
from mainstem.broker.security.keys import Keys, keys_of
from mainstem.core import Clock, UserError
from mainstem.core.config import BadSetting
from mainstem.core.prepared import prepared

if TYPE_CHECKING:
    from mainstem.broker.config import BrokerConfig

_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
_FIRST: Final = re.compile(r"n,(?:a=(?P<asked>[^,\0]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)*)\x01")
_BEARER: Final = re.compile(r"Bearer +([-_.~+/A-Za-z0-9]+=*)", re.IGNORECASE)
_LONGEST_SECONDS: Final = 2.0**31
_REFUSED: Final = b'{"status":"invalid_token"}'


class Claims(msgspec.Struct, frozen=True):
    """What a token says of itself: seconds since 1970, and who it is from and for."""

    exp: float
    nbf: float | None = None
    iat: float | None = None
    iss: str | None = None
    aud: str | list[str] | None = None


class Tokens:
    """What a token has to be, by the settings."""

    def __init__(self, config: "BrokerConfig", clock: Clock) -> None:
        """Raises: UserError: the extra is not installed. BadSetting: a file of keys that has none."""
        self._config = config
        self._clock = clock
        self._keys: Keys | None = None
        if where := config.sasl_oauthbearer_jwks_endpoint_url:
            try:
                import joserfc  # noqa: F401 whether it is there
            except ImportError:
                hint = "it comes with an extra: pip install 'mainstem[oauth]'"
                raise UserError("joserfc: not installed; OAUTHBEARER needs it", hint=hint) from None
            self._keys = keys_of(where, config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000, clock)

    def check(self, token: str, *, asked: str = "") -> tuple[str, int]:
        """Who brings the token, and how many milliseconds it is good for; `asked` is who the client says it is, or "".

        Raises:
            AuthenticationFailed: it is not to be taken; why is for our log, not for the client.
            Undecided: the key that it names may be on its way.
        """
        found = self._unsigned(token) if self._keys is None else self._signed(token, self._keys)
        config, now = self._config, self._clock.now_ms() / 1000
        skew = config.sasl_oauthbearer_clock_skew_seconds
        try:
            claims = msgspec.convert(found, prepared(Claims))
        except msgspec.ValidationError as error:
            raise AuthenticationFailed(f"a claim of the token: {error}") from None
        if not now < claims.exp + skew:
            raise AuthenticationFailed("the token has expired")
        if max(claims.nbf or 0, claims.iat or 0) > now + skew:
            raise AuthenticationFailed("the token is not valid yet")
        if config.sasl_oauthbearer_expected_issuer not in ("", claims.iss):
            raise AuthenticationFailed("the token is from another issuer")
        audience = [claims.aud] if isinstance(claims.aud, str) else claims.aud or []
        expected = config.sasl_oauthbearer_expected_audience
        if expected and not set(expected) & set(audience):
            raise AuthenticationFailed("the token is for another audience")
        name = found.get(config.sasl_oauthbearer_sub_claim_name)
        if not isinstance(name, str) or not name:
            raise AuthenticationFailed(f"the token has no claim {config.sasl_oauthbearer_sub_claim_name}")
        if asked not in ("", name):
            raise AuthenticationFailed("another authorization id than the token's")
        return name, max(int(min(claims.exp - now, _LONGEST_SECONDS) * 1000), 1)

    def _signed(self, token: str, keys: Keys) -> Mapping[str, Any]:
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        try:
            try:
                return jwt.decode(token, keys.current(), _ALGORITHMS).claims
            except InvalidKeyIdError:
                return jwt.decode(token, keys.current(again=True), _ALGORITHMS).claims
        except (JoseError, BadSetting, ValueError, TypeError, KeyError) as error:
            raise AuthenticationFailed(f"the token: {type(error).__name__}: {error}") from None

    @staticmethod
    def _unsigned(token: str) -> Mapping[str, Any]:
        """Kafka's unsecured tokens, for development: no signature, and a header that says so."""
        parts = token.split(".")
        try:
            header, claims = (
                msgspec.json.decode(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)), type=prepared(dict))
                for part in parts[:2]
            )
        except (ValueError, binascii.Error, msgspec.DecodeError):
            raise AuthenticationFailed("the token is no JWT") from None
        if len(parts) != 3 or parts[2] or header.get("alg") != "none":
            raise AuthenticationFailed("expected a token without a signature")
        return claims


class BearerExchange:
    """One client that brings a token."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refused = ""
        self.user: str | None = None
        self.lifetime_ms = 0

    def step(self, data: bytes) -> bytes:
        """Raises: AuthenticationFailed: the token was not taken; the client has been told so. Undecided: not yet."""
        if self._refused:
            raise AuthenticationFailed(self._refused)
        first = _FIRST.fullmatch(data.decode("utf-8", "replace"))
        bearer = first and next(
            (_BEARER.fullmatch(pair[5:]) for pair in first["pairs"].split("\x01") if pair.startswith("auth=")), None
        )
        if not first or not bearer:
            raise AuthenticationFailed("expected the message of OAUTHBEARER, with a token")
        try:
            user, self.lifetime_ms = self._tokens.check(bearer[1], asked=first["asked"] or "")
        except AuthenticationFailed as error:
            self._refused = str(error)
            return _REFUSED
        self.user = user
        return b""
