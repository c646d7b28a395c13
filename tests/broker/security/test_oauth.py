"""OAUTHBEARER: tokens that are taken and those that are not, and real clients."""

import asyncio
import base64
import contextlib
import hmac
import json
import time

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

import mainstem
from mainstem.broker.config import BrokerConfig
from mainstem.broker.security.errors import AuthenticationFailed
from mainstem.broker.security.oauth import BearerExchange, Tokens
from mainstem.core import ManualClock
from mainstem.wire.errors import Code
from tests.support.raw import RawClient

KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
OTHER = ECKey.generate_key("P-256", {"kid": "two", "use": "sig"})
NOW = 1_700_000_000
EXPECTED = {"iss": "us", "aud": ["x", "kafka"]}


def keys_file(directory, *keys):
    file = directory / "jwks.json"
    file.write_text(json.dumps({"keys": [each.as_dict(private=False) for each in keys]}))
    return str(file)


def token_of(key=KEY, algorithm="RS256", /, **claims):
    header = {"alg": algorithm, "kid": key.kid}
    return jwt.encode(header, {"sub": "app", "exp": NOW + 60} | claims, key, algorithms=[algorithm])


def unsigned(claims, header=None, end=""):
    parts = (json.dumps(each).encode() for each in (header or {"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts) + f".{end}"


def with_the_public_key_as_a_password():
    """The old trick: who checks takes the public key for a shared secret."""
    signed, _, _ = unsigned(EXPECTED | {"sub": "app", "exp": NOW + 60}, {"alg": "HS256", "kid": "one"}).rpartition(".")
    mac = hmac.digest(KEY.as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def config(where, **settings):
    return BrokerConfig(
        port=0,
        protocol="SASL_PLAINTEXT",
        sasl_enabled_mechanisms=("OAUTHBEARER",),
        sasl_oauthbearer_jwks_endpoint_url=where,
        **settings,
    )


def tokens(where, **settings):
    return Tokens(config(where, **settings), ManualClock(NOW * 1000))


def message(token, asked=""):
    return f"n,{asked},\x01auth=Bearer {token}\x01\x01".encode()


@pytest.mark.parametrize(("key", "algorithm"), [(KEY, "RS256"), (KEY, "PS512"), (OTHER, "ES256")])
def test_a_token_that_was_signed_says_who_brings_it(tmp_path, key, algorithm):
    exchange = BearerExchange(tokens(keys_file(tmp_path, KEY, OTHER)))
    assert exchange.step(message(token_of(key, algorithm))) == b""
    assert (exchange.user, exchange.lifetime_ms) == ("app", 60_000)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (token_of(RSAKey.generate_key(2048, {"kid": "one"}), **EXPECTED), "BadSignatureError"),
        (token_of(RSAKey.generate_key(2048, {"kid": "unknown"}), **EXPECTED), "InvalidKeyIdError"),
        (token_of(**EXPECTED, exp=NOW - 30), "has expired"),
        (token_of(**EXPECTED, nbf=NOW + 31), "not valid yet"),
        (token_of(**EXPECTED, iat=NOW + 31), "not valid yet"),
        (token_of(**EXPECTED, exp=None), r"Expected `float`, got `null` - at `\$\.exp`"),
        (token_of(**EXPECTED, sub=""), "no claim sub"),
        (token_of(**EXPECTED, sub=5), "no claim sub"),
        (token_of(**EXPECTED, sub=None), "no claim sub"),
        (token_of(aud="kafka"), "another issuer"),
        (token_of(aud="kafka", iss="other"), "another issuer"),
        (token_of(iss="us"), "another audience"),
        (token_of(iss="us", aud="other"), "another audience"),
        (token_of(iss="us", aud=["other", "x"]), "another audience"),
        (unsigned(EXPECTED | {"sub": "app", "exp": NOW + 60}), "Algorithm of 'none'"),
        (token_of(**EXPECTED)[:-3], "BadSignatureError"),
        (with_the_public_key_as_a_password(), "Algorithm of 'HS256'"),
        ("a.b.c", "DecodeError"),
    ],
)
def test_a_token_that_is_not_taken_is_told_so_and_then_fails(tmp_path, token, why):
    expected = {"sasl_oauthbearer_expected_issuer": "us", "sasl_oauthbearer_expected_audience": ("log", "kafka")}
    exchange = BearerExchange(tokens(keys_file(tmp_path, KEY), **expected))
    assert exchange.step(message(token_of(**EXPECTED, exp=NOW - 29, nbf=NOW + 30, iat=NOW + 30))) == b""
    exchange = BearerExchange(tokens(keys_file(tmp_path, KEY), **expected))
    assert exchange.step(message(token)) == b'{"status":"invalid_token"}'
    with pytest.raises(AuthenticationFailed, match=why):
        exchange.step(b"\x01")
    assert exchange.user is None


@pytest.mark.parametrize(
    "data", [b"", b"n,,\x01\x01", b"y,,\x01auth=Bearer x\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"\xff"]
)
def test_a_message_that_is_none(tmp_path, data):
    with pytest.raises(AuthenticationFailed):
        BearerExchange(tokens(keys_file(tmp_path, KEY))).step(data)


def test_another_authorization_id_and_extensions(tmp_path):
    exchange = BearerExchange(tokens(keys_file(tmp_path, KEY)))
    assert exchange.step(message(token_of(), "a=other")) == b'{"status":"invalid_token"}'
    exchange = BearerExchange(tokens(keys_file(tmp_path, KEY)))
    assert exchange.step(f"n,a=app,\x01host=h\x01auth=Bearer {token_of()}\x01\x01".encode()) == b""


@given(st.binary(max_size=80) | st.text("n,\x01auth=Beri .a", max_size=60).map(str.encode))
def test_any_bytes_are_no_token(data):
    exchange = BearerExchange(Tokens(UNSECURED, ManualClock(NOW * 1000)))
    with contextlib.suppress(AuthenticationFailed):
        exchange.step(data)
    assert exchange.user is None


UNSECURED = config("", sasl_oauthbearer_unsecured=True)


def test_tokens_without_a_signature_are_taken_where_that_is_said(tmp_path):
    found = Tokens(UNSECURED, ManualClock(NOW * 1000))
    assert found.check(unsigned({"sub": "dev", "exp": NOW + 1}))[0] == "dev"
    for bad in (token_of(), unsigned({"sub": "dev", "exp": NOW + 1}, end="x"), unsigned({"sub": "d"}), "..", "a.b."):
        with pytest.raises(AuthenticationFailed):
            found.check(bad)
    with pytest.raises(ValueError, match=r"OAUTHBEARER needs sasl_oauthbearer_jwks_endpoint_url.*found none"):
        config("")
    with pytest.raises(ValueError, match="found both"):
        config("somewhere", sasl_oauthbearer_unsecured=True)


@pytest.mark.timeout(120)
def test_librdkafka_and_aiokafka_bring_tokens(tmp_path):
    def fresh():
        return token_of(exp=int(time.time()) + 3600)

    class Provider(AbstractTokenProvider):
        async def token(self):
            return fresh()

    async def send(bootstrap):
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Provider(),
        ) as producer:
            await producer.send_and_wait("t", b"two")

    with mainstem.embedded(broker=config(keys_file(tmp_path, KEY), connection_failed_authentication_delay_ms=1)) as log:
        settings = {
            "bootstrap.servers": log.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (fresh(), time.time() + 3600),
        }
        producer = Producer(settings)
        producer.produce("t", b"one")
        assert producer.flush(30) == 0
        asyncio.run(send(log.bootstrap))
        with RawClient(log.bootstrap) as raw:
            raw.call(17, 1, mechanism="OAUTHBEARER")
            answer = raw.call(36, 1, auth_bytes=message(fresh()))
            assert 3_590 < answer.session_lifetime.total_seconds() <= 3_600
        with RawClient(log.bootstrap) as raw:
            raw.call(17, 1, mechanism="OAUTHBEARER")
            assert raw.call(36, 1, auth_bytes=message(token_of())).auth_bytes == b'{"status":"invalid_token"}'
            assert raw.call(36, 1, auth_bytes=b"\x01").error_code is Code.sasl_authentication_failed


@pytest.mark.parametrize("exp", [2**63 - 1, 1.7e18, 1e308, 9.2e15, 10**400])
def test_a_token_that_never_expires_has_the_longest_lifetime_that_can_be_told(exp):
    """It was answered with an error, and its client taken all the same."""
    text = unsigned({"sub": "app", "exp": exp})
    unsecured = Tokens(config("", sasl_oauthbearer_unsecured=True), ManualClock(NOW * 1000))
    if exp == 10**400:
        with pytest.raises(AuthenticationFailed):
            unsecured.check(text)
    else:
        assert unsecured.check(text) == ("app", 2**31 * 1000)
