"""Bytes that are no request, or nearly one: an error or a closed connection, never a crash, a hang, or endless memory.

What is sent are requests of every API that is served, with bits flipped, bytes cut out, doubled and put in, and lengths
that lie; through a socket, to a process of its own whose memory has a limit. `make test-long` sends more than ten
million bytes.
"""

import os
import random
import socket
import ssl
import struct
import subprocess
import sys
import uuid

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.broker.handlers import load_handlers
from mainstem.wire import codec, frames
from tests.support import processes
from tests.support.certificates import Authority
from tests.support.ports import free_ports
from tests.support.properties import examples
from tests.support.raw import RawClient
from tests.support.rights import REQUESTS, Secrets

MEMORY_LIMIT = 1 << 31
"""Bytes of address space of the log: a length that lies must not be believed."""

MOST_RESIDENT = 200 << 20
BYTES_PER_EXAMPLE = 40_000
INTERESTING = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)
ALLOWED = (  # not to create or grow: thousands of partitions are a request like any other, and take a minute
    (2, "*", 3, (3, 4, 8, 10, 11)),
    (3, "*", 3, (2,)),
    (4, "kafka-cluster", 3, (8, 9, 10, 12)),
    (5, "*", 3, (2,)),
)
sent: list[int] = []
"""Bytes of each connection."""


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """A log with little memory: its process, and its addresses: for anybody, for who logs in, and over TLS."""
    directory, (port, tls_port) = tmp_path_factory.mktemp("fuzzed"), free_ports(2)
    certificate, key = Authority(directory).issue("log")
    (directory / "mainstem.toml").write_text(
        "[broker]\nauthorizer_enable = true\nsuper_users = ['User:root']\nqueued_max_request_bytes = 16777216\n"
        "group_initial_rebalance_delay_ms = 0\nconnection_failed_authentication_delay_ms = 1\n"
        f"[broker.listeners.admin]\nport = {port}\nprotocol = 'SASL_PLAINTEXT'\nsasl_enabled_mechanisms = ['PLAIN']\n"
        f"[broker.listeners.tls]\nport = {tls_port}\nprotocol = 'SSL'\n"
        f"certificate_file = '{certificate}'\nkey_file = '{key}'\n"
    )
    command = [sys.executable, "-m", "mainstem", "log", "start", "--data", str(directory / "data")]
    command += ["--listen", "127.0.0.1:0", "--config", str(directory / "mainstem.toml"), "--log-level", "error"]
    said = (directory / "said").open("wb")
    process = processes.start(
        command, stdout=subprocess.PIPE, stderr=said, env=os.environ | {"MAINSTEM_BROKER__USERS__ROOT": "r"}
    )
    assert process.stdout is not None
    bootstrap = process.stdout.readline().decode().strip().removeprefix("listening on ")
    psutil.Process(process.pid).rlimit(psutil.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    with RawClient(f"127.0.0.1:{port}") as admin:
        admin.call(17, 1, mechanism="PLAIN")
        assert admin.call(36, 1, auth_bytes=b"\0root\0r").error_code == 0
        admin.create_topic("t")
        entry = {"resource_pattern_type": 3, "principal": "User:ANONYMOUS", "host": "*", "permission_type": 3}
        creations = [
            entry | {"resource_type": kind, "resource_name": name, "operation": operation}
            for kind, name, _, operations in ALLOWED
            for operation in operations
        ]
        assert all(each.error_code == 0 for each in admin.call(30, 2, creations=creations).results)
    yield process, bootstrap, f"127.0.0.1:{port}", f"127.0.0.1:{tls_port}"
    processes.stop(process)
    process.stdout.close()
    said.close()
    assert b"Traceback" not in (directory / "said").read_bytes()


def frame(api_key, version, fields):
    body = bytes(codec.encode_request(api_key, version, fields))
    tags = b"\0" if frames.is_flexible(api_key, version) else b""
    return struct.pack(">hhih", api_key, version, 7, 1) + b"c" + tags + body


def corpus():
    """One request of each kind, without its size, and of each API and version one with nothing in it."""
    secrets = Secrets("t", uuid.uuid4(), "g", "x", "new")
    found = [frame(api_key, version, fields(secrets)) for api_key, version, _, fields in REQUESTS]
    found.append(frame(17, 1, {"mechanism": "PLAIN"}))
    found.append(frame(36, 1, {"auth_bytes": b"\0a\0b"}))
    for api_key, handler in load_handlers().items():
        versions = range(handler.min_version, handler.max_version + 1)
        found += [struct.pack(">hhih", api_key, version, 7, 1) + b"c" + bytes(40) for version in versions]
    return found


CORPUS = corpus()


def mutated(corpus, chance):
    """One of them, after some changes."""
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.choice((0, 1, 1, 2, 4, 8))):
        at = chance.randrange(len(data)) if data else 0
        how = chance.randrange(7)
        if how == 0 and data:
            data[at] ^= 1 << chance.randrange(8)
        elif how == 1 and data:
            data[at] = chance.choice(INTERESTING)
        elif how == 2:
            del data[at : at + chance.choice((1, 2, 4, 40))]
        elif how == 3:
            data[at:at] = chance.randbytes(chance.choice((1, 4, 40)))
        elif how == 4:
            data[at:at] = data[at : at + chance.choice((1, 8, 200))] * chance.choice((1, 2, 20))
        elif how == 5:
            data[at : at + 4] = struct.pack(">i", chance.choice((-1, 0, 1, 0x7FFF, 1 << 24, 2**31 - 1, -(2**31))))
        else:
            data = data[:at]
    return bytes(data)


def framed(data, chance):
    """With its size, which may lie."""
    size = len(data) if chance.random() < 0.95 else chance.choice((-1, 0, 3, len(data) + 9, 1 << 26, 2**31 - 1))
    return struct.pack(">i", size) + data


def connect(bootstrap):
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def tls_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def first_bytes_of_tls():
    """What a client says first."""
    said = ssl.MemoryBIO()
    client = tls_context().wrap_bio(ssl.MemoryBIO(), said)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


def send(connection, data):
    """In pieces; what is answered is not waited for."""
    with connection:
        try:
            for start in range(0, len(data), 3000):
                connection.sendall(data[start : start + 3000])
                connection.setblocking(False)
                try:
                    while connection.recv(65_536):
                        pass
                except (BlockingIOError, ssl.SSLWantReadError):
                    pass
                connection.settimeout(10)
        except (
            ConnectionError,
            TimeoutError,
            ssl.SSLError,
        ):  # it was closed, or nothing more is read: answers are not taken
            pass


def check_alive(process, bootstrap):
    assert process.poll() is None, "the log has ended"
    with RawClient(bootstrap) as good:
        good._socket.settimeout(20)
        assert good.call(18, 0).error_code == 0
    assert psutil.Process(process.pid).memory_info().rss < MOST_RESIDENT


@pytest.fixture(scope="module")
def counted(limited):
    """At least a million bytes were sent; ten million in the long profile."""
    process, bootstrap, *_ = limited
    yield
    assert sum(sent) >= (10_000_000 if examples(1) > 1 else 1_000_000)
    check_alive(process, bootstrap)


@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("counted")
@settings(max_examples=examples(30))
@given(st.integers(0, 2**63), st.booleans())
def test_bytes_that_are_nearly_requests(limited, seed, unknown):
    """On the plain listener, and by clients that have not said who they are."""
    process, bootstrap, unknowns, _ = limited
    chance = random.Random(seed)
    left = BYTES_PER_EXAMPLE
    while left > 0:
        data = b"".join(framed(mutated(CORPUS, chance), chance) for _ in range(chance.choice((1, 1, 3, 10))))
        send(connect(unknowns if unknown else bootstrap), data)
        left -= len(data)
        sent.append(len(data))
    check_alive(process, bootstrap)


@pytest.mark.timeout(3000)
@settings(max_examples=examples(10))
@given(st.integers(0, 2**63))
def test_bytes_that_are_nearly_tls_and_nearly_requests_within_it(limited, seed):
    process, bootstrap, _, over_tls = limited
    chance, hello, context = random.Random(seed), first_bytes_of_tls(), tls_context()
    for _ in range(10):
        send(connect(over_tls), mutated([hello], chance) + chance.randbytes(chance.choice((0, 0, 1_000))))
        inside = context.wrap_socket(connect(over_tls))
        send(inside, b"".join(framed(mutated(CORPUS, chance), chance) for _ in range(3)))
    broken = context.wrap_socket(connect(over_tls))
    with socket.socket(fileno=broken.detach()) as beneath:  # a record that no key fits
        beneath.sendall(b"\x17\x03\x03\x01\x00" + chance.randbytes(256))
    check_alive(process, bootstrap)
    with context.wrap_socket(connect(over_tls)) as good:
        good.sendall(struct.pack(">i", len(asked := frame(18, 0, {}))) + asked)
        assert good.recv(4), "it is answered"


def test_many_clients_that_announce_much_and_send_little(limited):
    process, bootstrap, unknowns, _ = limited
    clients = [connect(unknowns if number % 2 else bootstrap) for number in range(200)]
    for number, client in enumerate(clients):
        announced = struct.pack(">i", 500_000 if number % 2 else 100_000_000)
        client.sendall(announced + b"\0\0\0\x0d" + bytes(50_000))
    check_alive(process, bootstrap)
    for client in clients:
        client.close()
