"""The gateway as a process: its start, its end, and what happens when it is killed in mid-stream."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from mainstem.client.catalog import TopicEntry, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_topic
from mainstem.client.writer import TransactionalWriter, read_source
from mainstem.connect.gateway import Gateway, GatewayTakenOver
from mainstem.connect.gateway_config import CollectorConfig, GatewayConfig
from mainstem.core import Superseded
from mainstem.records.fingerprint import fingerprint_sum
from mainstem.registry import Registry, avro
from mainstem.registry.quarantine import quarantine_topic
from tests.support import processes
from tests.support.gateway_process import GatewayProcess
from tests.support.ports import free_port
from tests.support.records import committed
from tests.support.serving import served
from tests.support.waiting import wait_until

SCHEMA = '{"type":"record","name":"E","fields":[{"name":"n","type":"long"}]}'


@pytest.fixture
def name():
    return f"g{uuid.uuid4().hex[:8]}"


@pytest.fixture
def gateway(log_connection, name):
    gateway = GatewayProcess(log_connection.bootstrap, collector={"name": name})
    yield gateway
    gateway.stop()


def make_topic(connection, gateway, topic):
    ensure_topic(connection, topic, 2)
    Registry(gateway.url).register(f"{topic}-value", SCHEMA)
    write_catalog(connection, {f"topic:{topic}": TopicEntry("stream", ("n",), None, f"{topic}-value")})


def test_it_answers_health_and_stops_in_order(log_connection, gateway):
    gateway.start()
    health = httpx.get(f"{gateway.url}/health").json()
    assert health["status"] == "ok"
    assert health["collector"]["name"] == gateway.settings["collector"]["name"]
    assert httpx.get(f"{gateway.url}/subjects").status_code == 200
    for method, path, status, code in (
        ("GET", "/nothing", 404, "not_found"),
        ("PUT", "/token", 405, "method_not_allowed"),
    ):
        answer = httpx.request(method, gateway.url + path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert gateway.stop() == 0


def test_who_waits_for_a_token_is_told_as_soon_as_it_stops(log_connection, gateway):
    gateway.start()
    with closing(TransactionalWriter(log_connection, f"fleet{uuid.uuid4().hex[:8]}")) as writer:
        writer.open()
        writer.begin()
        writer.commit({"state": "streaming", "slot": "s", "lsn": 16})
        ask = {"params": {"source": writer.source, "lsn": "1/0", "timeout": 300}, "timeout": 60}
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(httpx.get, f"{gateway.url}/token", **ask)
            with contextlib.suppress(TimeoutError):  # until it is under way
                asked.result(1)
            began = time.monotonic()
            assert gateway.stop() == 0
            assert time.monotonic() - began < 8  # the server itself is patient for 10 s
            assert (asked.result().status_code, asked.result().json()["error"]["code"]) == (503, "stopping")


class Poster:
    """Posts batches with ids, and sends a batch again, as it was, until it is answered."""

    def __init__(self, gateway, topic, batches, size):
        self.gateway, self.topic = gateway, topic
        self.batches = [[b * size + n for n in range(size)] for b in range(batches)]
        self.retries = 0
        self.answered = 0
        self._lock = threading.Lock()

    def post(self, number):
        events = [{"n": n} if n % 50 else {"n": f"bad {n}"} for n in self.batches[number]]
        with httpx.Client(timeout=10) as http:
            while True:
                try:
                    answer = http.post(
                        f"{self.gateway.url}/v1/topics/{self.topic}/events",
                        json=events,
                        headers={"Idempotency-Key": f"batch-{number}"},
                    )
                except httpx.HTTPError:
                    answer = None
                if answer is not None and answer.status_code == 200:
                    with self._lock:
                        self.answered += 1
                    return answer.json()["results"]
                assert answer is None or answer.status_code in {429, 503}, answer.text
                with self._lock:
                    self.retries += 1
                time.sleep(0.05)


@pytest.mark.timeout(900)  # on a busy machine each start of a gateway takes long
def test_killed_in_mid_stream_nothing_is_lost_and_nothing_is_there_twice(log_connection, gateway, name):
    gateway.start()
    make_topic(log_connection, gateway, name)
    poster = Poster(gateway, name, batches=80, size=40)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(poster.post, number) for number in range(len(poster.batches))]
        for share in (0.25, 0.6):
            while poster.answered < share * len(poster.batches):
                time.sleep(0.002)
            gateway.kill()
            gateway.start()
        results = [answer.result(120) for answer in answers]
    assert poster.retries > 0
    registry = Registry(gateway.url)
    messages = committed(log_connection, name)
    found = {(m.partition(), m.offset()): avro.decode(m.value(), registry.schema)["n"] for m in messages}
    expected = [n for batch in poster.batches for n in batch if n % 50]
    assert sorted(found.values()) == expected
    for batch, answer in zip(poster.batches, results, strict=True):
        for n, result in zip(batch, answer, strict=True):
            if n % 50:
                assert found[result["partition"], result["offset"]] == n
            else:
                assert (result["status"], result["code"]) == ("rejected", "unfit")
    kept = [avro.decode(m.value(), registry.schema)["value"] for m in committed(log_connection, quarantine_topic(name))]
    assert sorted(kept) == sorted(b'{"n":"bad %d"}' % n for batch in poster.batches for n in batch if n % 50 == 0)
    # the collector's own books, which the audit compares with what readers saw
    books = read_source(log_connection, name).written[name]
    for partition, written in books.items():
        mine = [(m.key(), m.value()) for m in messages if m.partition() == partition]
        assert (written.count, written.hash) == (len(mine), fingerprint_sum(mine))


def start_log(directory, address):
    command = [sys.executable, "-m", "mainstem", "log", "start", "--data", directory, "--listen", address]
    process = processes.start(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert process.stdout.readline().startswith("listening on")
    process.stdout.close()
    return process


def test_its_health_is_that_of_the_log_also_where_nobody_posts(tmp_path, name):
    """It was well until a post failed, and after that ill until one succeeded, which a load balancer never let come."""
    address = f"127.0.0.1:{free_port()}"
    log = start_log(tmp_path / "log", address)
    with GatewayProcess(address, collector={"name": name}) as gateway:

        def health():
            return httpx.get(f"{gateway.url}/health", timeout=60)

        assert health().status_code == 200
        processes.stop(log, signal_number=signal.SIGKILL)
        wait_until(lambda: health().status_code == 503, "the log is missed")
        assert health().json()["problems"][0].startswith("log: ")
        log = start_log(tmp_path / "log", address)
        wait_until(lambda: health().status_code == 200, "the log is found again")
    processes.stop(log)


def test_a_registry_that_reads_no_more_is_ill(log_connection, name):
    """What was written since was not seen by anybody, and all was well."""
    config = GatewayConfig(collector=CollectorConfig(name=name))
    gateway = Gateway(log_connection, config, on_taken_over=lambda: None)
    with served(gateway.app) as url:
        assert httpx.get(f"{url}/health", timeout=60).json()["problems"] == []
        gateway._store._stopping.set()
        gateway._store._reader.join(60)
        answer = httpx.get(f"{url}/health", timeout=60)
    assert answer.status_code == 503
    assert answer.json()["problems"] == ["registry: it reads no more of _schemas; start the gateway again"]


@pytest.mark.timeout(900)
def test_the_log_killed_under_a_gateway_loses_and_doubles_nothing(tmp_path, name):
    address = f"127.0.0.1:{free_port()}"
    log = start_log(tmp_path / "log", address)
    with GatewayProcess(address, collector={"name": name}) as gateway:
        connection = Connection(address)
        make_topic(connection, gateway, name)
        poster = Poster(gateway, name, batches=40, size=40)
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(poster.post, number) for number in range(len(poster.batches))]
            while poster.answered < 10:
                time.sleep(0.002)
            processes.stop(log, signal_number=signal.SIGKILL)
            log = start_log(tmp_path / "log", address)
            for answer in answers:
                answer.result(300)
        registry = Registry(gateway.url)
        found = sorted(avro.decode(m.value(), registry.schema)["n"] for m in committed(connection, name))
        assert found == [n for batch in poster.batches for n in batch if n % 50]
        assert registry.register(f"{name}-other", '"int"') > 0  # the registry has found its log again too
    processes.stop(log)


def test_a_stopped_gateway_that_comes_back_appends_nothing_and_ends(log_connection, gateway, name):
    gateway.start()
    make_topic(log_connection, gateway, name)
    assert httpx.post(f"{gateway.url}/v1/topics/{name}/events", json=[{"n": 1}]).status_code == 200
    gateway.process.send_signal(signal.SIGSTOP)
    with GatewayProcess(log_connection.bootstrap, collector={"name": name}) as heir:
        assert httpx.post(f"{heir.url}/v1/topics/{name}/events", json=[{"n": 2}], timeout=30).status_code == 200
        gateway.process.send_signal(signal.SIGCONT)
        answer = httpx.post(f"{gateway.url}/v1/topics/{name}/events", json=[{"n": 3}], timeout=30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "taken_over")
        assert answer.headers["retry-after"] == "1"
        assert gateway.process.wait(30) == 2
        assert issubclass(GatewayTakenOver, Superseded)  # a supervisor that started it again would take the id back
        assert httpx.post(f"{heir.url}/v1/topics/{name}/events", json=[{"n": 4}], timeout=30).status_code == 200
        registry = Registry(heir.url)
        assert sorted(avro.decode(m.value(), registry.schema)["n"] for m in committed(log_connection, name)) == [
            1,
            2,
            4,
        ]


@pytest.mark.long
def test_a_log_that_is_not_there_is_told(name):
    gateway = GatewayProcess(f"127.0.0.1:{free_port()}", collector={"name": name})
    with pytest.raises(AssertionError, match="did not start: 'BrokerUnavailable: "):
        gateway.start()
    gateway.stop()
