import errno
import hashlib
import hmac
import os
import socket
import threading

import pytest

from mainstem.client import BrokerUnavailable, TransactionFailed
from mainstem.core import TopicPartition
from mainstem.process.sink_claims import Claim, ClaimsAddress, ClaimsServer, send_claim
from tests.support.ports import free_port


class Joins:
    """What the driver's transaction does with a claim: one writer for each partition."""

    def __init__(self, sequence=0):
        self.sequence, self.joined = sequence, set()

    def __call__(self, partition):
        if partition in self.joined:
            raise TransactionFailed(f"{partition} is written already")
        self.joined.add(partition)
        return self.sequence


@pytest.fixture
def server():
    server = ClaimsServer()
    yield server
    server.close()


def test_the_first_claim_is_granted_with_its_sequence(server):
    joins = Joins(sequence=42)
    number = server.begin(joins)
    assert send_claim(server.address, Claim(number, "t", 3)) == 42
    assert joins.joined == {TopicPartition("t", 3)}
    assert server.refusal == ""


def test_claims_are_taken_again_once_there_are_files_to_be_had(monkeypatch):
    """After one accept without a free file, each claim of the job waited for 90 s, until it was started again."""
    real, failures = socket.create_server, [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), RuntimeError("no thread")]

    class Listener:
        def __init__(self, *args, **options):
            self._socket = real(*args, **options)

        def __getattr__(self, name):
            return getattr(self._socket, name)

        def accept(self):
            if failures:
                raise failures.pop()
            return self._socket.accept()

    monkeypatch.setattr(socket, "create_server", Listener)
    server = ClaimsServer()
    try:
        assert send_claim(server.address, Claim(server.begin(Joins(sequence=42)), "t", 3)) == 42
        assert failures == []
    finally:
        server.close()


def test_a_second_claim_is_refused_and_dooms_the_transaction(server):
    number = server.begin(Joins())
    send_claim(server.address, Claim(number, "t", 0))
    with pytest.raises(TransactionFailed, match="t-0: another attempt has claimed it"):
        send_claim(server.address, Claim(number, "t", 0))
    assert "t-0 is written already" in server.refusal
    server.begin(Joins())
    assert server.refusal == ""


def test_a_task_of_an_older_transaction_is_refused_and_dooms_nothing(server):
    old = server.begin(Joins())
    server.begin(Joins())
    with pytest.raises(TransactionFailed):
        send_claim(server.address, Claim(old, "t", 0))
    assert server.refusal == ""


def test_no_claim_is_granted_between_transactions(server):
    number = server.begin(Joins())
    server.end()
    with pytest.raises(TransactionFailed):
        send_claim(server.address, Claim(number, "t", 0))


def test_of_many_attempts_at_once_one_is_granted(server):
    number, granted = server.begin(Joins()), []

    def attempt():
        try:
            granted.append(send_claim(server.address, Claim(number, "t", 0)))
        except TransactionFailed:
            return

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert granted == [0]


def test_a_stranger_gets_no_answer(server):
    joins = Joins()
    number = server.begin(joins)
    forged = ClaimsAddress(server.address.host, server.address.port, b"guessed")
    with pytest.raises(BrokerUnavailable):
        send_claim(forged, Claim(number, "t", 0))
    assert joins.joined == set()


@pytest.mark.parametrize("length", [-1, 2**31 - 1])
def test_a_length_that_makes_no_sense_is_not_waited_for(server, length):
    joins = Joins()
    server.begin(joins)
    with socket.create_connection((server.address.host, server.address.port), timeout=5) as connection:
        nonce = connection.recv(16)
        connection.sendall(hmac.new(server.address.secret, nonce, hashlib.sha256).digest())
        connection.sendall(length.to_bytes(4, "big", signed=True))
        assert connection.recv(4) == b""
    assert joins.joined == set()


def test_a_driver_that_is_gone_is_told(server):
    gone = ClaimsServer()
    address = gone.address
    gone.close()
    with pytest.raises(BrokerUnavailable, match="no answer to a claim"):
        send_claim(address, Claim(1, "t", 0))


def test_a_driver_behind_another_name_listens_at_an_address_of_its_own_and_at_ports_that_are_let_through():
    """In a pod, or behind a firewall, tasks are told a name that the driver cannot bind."""
    port = free_port()
    servers = [ClaimsServer("localhost", bind="127.0.0.1", port=port) for _ in range(2)]
    try:
        assert [each.address.host for each in servers] == ["localhost", "localhost"]
        first, second = (each.address.port for each in servers)
        assert port <= first < second < port + 100
        servers[1].begin(lambda _: 7)
        assert send_claim(servers[1].address, Claim(1, "t", 0)) == 7
    finally:
        for each in servers:
            each.close()
