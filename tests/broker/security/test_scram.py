"""SCRAM: the examples of the RFCs, every way in which a message can be wrong, and users that are not there."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.security.credentials import Credentials, Mechanism, credential_of
from mainstem.broker.security.errors import AuthenticationFailed
from mainstem.broker.security.scram import ScramExchange


class NoFacts:
    """Of a log without any."""

    @staticmethod
    def below(prefix):
        return iter(())


CREDENTIALS = Credentials(NoFacts(), {"user": "pencil", "a,b=c": "x"})


class Client:
    """The other side, written from the RFC."""

    def __init__(self, mechanism, user, password, header="n,,"):
        self.mechanism, self.password, self.header = mechanism, password, header
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r=abc"

    def first(self):
        return (self.header + self.bare).encode()

    def final(self, answer):
        fields = dict(each.split("=", 1) for each in answer.decode().split(","))
        hash_name = self.mechanism.hash
        salted = hashlib.pbkdf2_hmac(hash_name, self.password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
        unsigned = f"c={base64.b64encode(self.header.encode()).decode()},r={fields['r']}"
        signed = f"{self.bare},{answer.decode()},{unsigned}".encode()
        key = hmac.digest(salted, b"Client Key", hash_name)
        signature = hmac.digest(hashlib.new(hash_name, key).digest(), signed, hash_name)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        server = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
        self.expected = b"v=" + base64.b64encode(server)
        return f"{unsigned},p={proof}".encode()


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize(("user", "password"), [("user", "pencil"), ("a,b=c", "x")])
def test_who_knows_the_password_is_known_and_knows_that_we_know_it(mechanism, user, password):
    exchange, client = ScramExchange(mechanism, CREDENTIALS), Client(mechanism, user, password)
    final = client.final(exchange.step(client.first()))
    assert exchange.user is None
    assert exchange.step(final) == client.expected
    assert exchange.user == user
    with pytest.raises(AuthenticationFailed):
        exchange.step(final)


@pytest.mark.parametrize(("user", "password"), [("user", "pencil2"), ("nobody", "pencil")])
def test_a_wrong_password_and_a_user_that_is_not_there_fail_alike(user, password):
    told = set()
    for _ in range(2):
        exchange, client = ScramExchange(Mechanism.SHA_256, CREDENTIALS), Client(Mechanism.SHA_256, user, password)
        answer = exchange.step(client.first())
        told.add(answer.partition(b",")[2])
        with pytest.raises(AuthenticationFailed, match=r"^wrong user or password$"):
            exchange.step(client.final(answer))
        assert exchange.user is None
    assert len(told) == 1, "each time the same salt and iterations, as of a user that is there"


def test_rfc_7677():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    mechanism = Mechanism.SHA_256
    made = credential_of(mechanism, mechanism.iterated(b"pencil", salt, 4096), salt, 4096)
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    signed = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}".encode()
    signature = mechanism.hmac(made.stored_key, signed)
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hashlib.sha256(key).digest() == made.stored_key
    assert base64.b64encode(mechanism.hmac(made.server_key, signed)) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=user,r=a b",
    ],
)
def test_a_first_message_that_is_none(first):
    with pytest.raises(AuthenticationFailed):
        ScramExchange(Mechanism.SHA_256, CREDENTIALS).step(first)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"c=biws", b"c=eSws"), (b",r=abc", b",r=abd"), (b"p=", b"p=A"), (b",p=", b",q="), (b"p=", b"p==")],
)
def test_a_final_message_of_another_exchange(old, new):
    exchange, client = ScramExchange(Mechanism.SHA_256, CREDENTIALS), Client(Mechanism.SHA_256, "user", "pencil")
    final = client.final(exchange.step(client.first()))
    with pytest.raises(AuthenticationFailed):
        exchange.step(final.replace(old, new))
    assert exchange.user is None


@given(st.lists(st.binary(max_size=60) | st.text("nyp=,ar\0" + "user", max_size=40).map(str.encode), max_size=3))
def test_any_bytes_fail_in_order(messages):
    exchange = ScramExchange(Mechanism.SHA_512, CREDENTIALS)
    for message in messages:
        try:
            exchange.step(message)
        except AuthenticationFailed:
            break
    assert exchange.user is None


def test_an_authorization_id_is_the_user_or_none():
    exchange = ScramExchange(Mechanism.SHA_256, CREDENTIALS)
    client = Client(Mechanism.SHA_256, "user", "pencil", header="y,a=user,")
    exchange.step(client.final(exchange.step(client.first())))
    assert exchange.user == "user"
