"""Two nodes are killed, over and over, while sessions write and read with their tokens, at either node, and readers of
a job are moved to and fro: no answer is older than what its token has seen, or of a version before. At the end views
have what was written, and the books balance.
"""

import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from mainstem.audit.report import audit
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_internal_topics
from mainstem.registry.client import Registry
from tests.serve.fleet import Fleet, header
from tests.serve.node_process import NodeProcess
from tests.serve.played import PlayedJob, cutover
from tests.support.live import running_registry
from tests.support.waiting import wait_until

SESSIONS = 3


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def world(request):
    log = request.getfixturevalue("mainstem_log" if request.param == "embedded" else "kafka_broker")
    connection = Connection(log.bootstrap)
    ensure_internal_topics(connection)
    with running_registry(connection) as url:
        yield World(connection, Registry(url))


class World:
    """A table, a job with two versions, and how many reads there were."""

    def __init__(self, connection, registry):
        self.fleet = Fleet(connection, registry)
        self.job = PlayedJob(self.fleet, registry)
        for version in "12":
            self.job.start(version)
        self.lock, self.reads, self.done = threading.Lock(), threading.Semaphore(0), threading.Event()
        self.rows, self.nodes = {}, []
        self.views = {
            "planes": {"kind": "key-value", "topics": self.fleet.planes, "versions": True},
            "names": {"kind": "search", "topics": self.fleet.planes},
            "flights": {"kind": "sql", "topics": [self.job.name, self.fleet.planes]},
            "seats": {"kind": "key-value", "topics": self.job.name},
        }

    def derive(self, tailnum, seats):
        """A row of the source, and what both versions make of it; its token alone."""
        with self.lock:
            token = self.job.write(tailnum, seats)
            for version in "12":
                self.job.run(version, (tailnum, seats))
        return token

    def ask(self, draw, call, path, **options):
        """The answer of one of the nodes: one that was killed is up again soon, and the other one is meanwhile."""
        options.setdefault("params", {})["timeout"] = 60
        while True:
            try:
                answer = call(f"{draw.choice(self.nodes).url}/views/{path}", **options)
            except httpx.TransportError:
                continue
            assert answer.status_code == 200, answer.text
            self.reads.release()
            return answer.json()

    def session(self, number):
        """Keys that nobody else writes; the cookie carries the token, but for that of a write."""
        draw, fleet = random.Random(number), self.fleet
        with httpx.Client(timeout=90) as http:
            for seats in range(1, 1_000_000):
                if self.done.is_set():
                    return
                tailnum = f"N{number}-{draw.randrange(5)}"
                token = fleet.write(fleet.planes, (tailnum, f"maker{seats}", seats))
                self.rows[tailnum] = seats
                row = self.ask(draw, http.get, "planes/row", params={"tailnum": tailnum}, headers=header(token))
                assert row["row"]["seats"] == seats
                hits = self.ask(draw, http.get, "names/search", params={"q": f'tailnum:"{tailnum}"'})["hits"]
                assert [hit["row"]["seats"] for hit in hits if hit["row"]["tailnum"] == tailnum] == [seats]
                sql = f"SELECT seats FROM {fleet.planes.replace('-', '_')} WHERE tailnum = ?"
                found = self.ask(draw, http.post, "flights/query", json={"sql": sql, "parameters": [tailnum]})
                assert found["rows"] == [[seats]]
                token = self.derive(tailnum, seats)
                row = self.ask(draw, http.get, "seats/row", params={"tailnum": tailnum}, headers=header(token))
                assert row["row"]["seats"] == seats
                assert row["row"]["manufacturer"] == f"v{row['versions'][self.job.name]}"

    def move(self, draw, version):
        """After a cutover, all that its token leads to is of that version."""
        with self.lock:
            token = cutover(self.fleet, (self.job, version))
        with httpx.Client(timeout=90) as http:
            row = self.ask(draw, http.get, "seats/row", params={"tailnum": "M1"}, headers=header(token))
            assert row["versions"] == {self.job.name: version}
            sql = f"SELECT manufacturer FROM {self.job.name.replace('-', '_')} WHERE tailnum = 'M1'"
            found = self.ask(draw, http.post, "flights/query", json={"sql": sql})  # the cookie has it
            assert found["rows"] == [[f"v{version}"]]

    def balanced(self):
        lines = audit(self.fleet.connection, [self.fleet.planes, self.job.name, self.job.output("2")])
        told = [line for line in lines if line.name.startswith("view ")]
        assert not [line for line in told if line.verdict.value == "WRONG"], told
        return {line.verdict.value for line in told} == {"balanced"}


def kill_loop(world, directory, kills):
    draw = random.Random(kills)
    world.derive("M1", 1)
    world.nodes = [NodeProcess(world.fleet, directory / name, name=name, **world.views) for name in ("one", "two")]
    for node in world.nodes:
        node.start()
    version = "1"
    try:
        with ThreadPoolExecutor(SESSIONS) as threads:
            sessions = [threads.submit(world.session, number) for number in range(SESSIONS)]
            try:
                for kill in range(kills):
                    for _ in range(draw.randint(1, 20)):
                        assert world.reads.acquire(timeout=120)
                        assert not any(each.done() for each in sessions)
                    if kill % 3 == 1:
                        version = "12"[version == "1"]
                        world.move(draw, version)
                    node = draw.choice(world.nodes)
                    node.end(signal.SIGKILL)
                    node.start()
            finally:
                world.done.set()
            for each in sessions:
                each.result()
        wait_until(world.balanced, "all is told to the audit")
    finally:
        for node in world.nodes:
            node.end(signal.SIGTERM)
    for node in world.nodes:
        with world.fleet.node(directory / node.name, **world.views) as http:
            rows = http.get("/views/planes/rows?timeout=60").json()["rows"]
            assert {row["tailnum"]: row["seats"] for row in rows} == world.rows


def test_no_read_with_a_token_is_old_while_nodes_are_killed(world, tmp_path):
    kill_loop(world, tmp_path, kills=6)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_read_with_a_token_is_old_while_nodes_are_killed_many_times(world, tmp_path):
    kill_loop(world, tmp_path, kills=200)
