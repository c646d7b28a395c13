"""Nodes of a replicated service are killed, stopped and woken up: clients get the answers of one that never fails."""

import random
import threading
import time
import uuid
from itertools import pairwise

import pytest

from examples.arithmetic.client import Client, NoAnswer, ask
from examples.arithmetic.cluster import Cluster
from examples.arithmetic.demo import TIMING, expected, same_state, script, under_fire, zombie
from examples.arithmetic.history import read_log, terms
from examples.arithmetic.service import MODELS
from mainstem.client import Connection
from tests.support.linearizability import Call, variables_are_linearizable

models = pytest.mark.parametrize("model", MODELS)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("mainstem_log" if request.param == "embedded" else "kafka_broker").bootstrap


def cluster_of(model: str, bootstrap: str, *options: str) -> Cluster:
    return Cluster(
        model, bootstrap, "--digest-every", "20", *TIMING, *options, topic=f"replicas-{uuid.uuid4().hex[:8]}"
    )


@models
def test_a_script_has_the_same_answers_while_nodes_die_and_wake_up(bootstrap, model):
    operations = script(120, seed=7)
    with cluster_of(model, bootstrap) as cluster:
        assert under_fire(cluster, operations, say=False) == expected(operations)
        assert same_state(cluster)


@pytest.mark.kafka
@pytest.mark.timeout(300)
@models
def test_a_script_has_the_same_answers_while_the_leaders_of_its_topic_are_killed(kafka_cluster, model):
    operations = script(240, seed=11)
    with cluster_of(model, kafka_cluster.bootstrap) as cluster:
        client, answers, killed = Client(list(cluster.addresses.values())), [], list[int]()
        for number, operation in enumerate(operations):
            if number % 80 == 40:
                for broker in killed[-1:]:
                    kafka_cluster.start(broker)
                    kafka_cluster.wait_until_in_sync()
                killed.append(kafka_cluster.leader(cluster.topic, 0))
                kafka_cluster.kill(killed[-1])
            answers.append(client.operate(operation))
        assert len(killed) == 3
        assert answers == expected(operations)
        assert same_state(cluster)


@models
def test_all_nodes_killed_at_once_come_back_with_what_was_acknowledged(bootstrap, model):
    operations = script(40, seed=3)
    with cluster_of(model, bootstrap) as cluster:
        client = Client(list(cluster.addresses.values()))
        answers = [client.operate(each) for each in operations[:20]]
        for node in cluster.nodes:
            cluster.kill(node)
        for node in cluster.nodes:
            cluster.start(node, wait=False)
        answers += [client.operate(each) for each in operations[20:]]
        assert answers == expected(operations)
        assert same_state(cluster)


def test_without_a_fence_a_zombie_undoes_what_was_acknowledged():
    """The control: what the fence is for. The record of a deposed primary arrives late in both runs."""
    assert zombie(fenced=True)[0] == "15"
    assert zombie(fenced=False)[0] == "6"


class Clients:
    """Threads that ask for this and that, and note what they were told."""

    OPERATIONS = ("+=1", "*=2", "-=3", "/=2", "/=0", "?", "?")

    def __init__(self, cluster: Cluster, count: int) -> None:
        self.cluster, self.calls = cluster, list[Call]()
        self.stopping = threading.Event()
        # Others in each round: the search for an order takes longer the more unanswered calls there are of one.
        self.variables = ("x", "y")
        self.longest = 0.0
        self.threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(count)]

    def __enter__(self) -> "Clients":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        addresses = list(self.cluster.addresses.values())
        client = Client(draw.sample(addresses, len(addresses)), try_seconds=0.5)
        while not self.stopping.is_set():
            op, began = draw.choice(self.variables) + draw.choice(self.OPERATIONS), time.monotonic()
            if draw.random() < 0.1:
                self._ask_once(draw.choice(addresses), op, began)
                continue
            try:
                answer = client.operate(op)
            except NoAnswer:
                answer = None
            ended = time.monotonic()
            self.longest = max(self.longest, ended - began)
            self.calls.append(Call(op, answer, began, ended))
            time.sleep(0.002)  # or the history has more calls than can be checked

    def _ask_once(self, address: str, op: str, began: float) -> None:
        """Without an id and without patience: what becomes of it, nobody may know."""
        said = ask(address, "/ops", {"op": op}, 0.3)
        if said is not None and said.status in (200, 422):
            answer = said.body["value"] if said.status == 200 else said.body["error"]
            self.calls.append(Call(op, answer, began, time.monotonic()))
        elif said is None or said.status not in (307, 400, 503):
            self.calls.append(Call(op, None, began))


def disturb(cluster: Cluster, draw: random.Random) -> None:
    """Kill a node and start it again, or stop one until another leads and wake it up; mostly the primary."""
    leads = cluster.model == "primary-backup" and draw.random() < 0.7
    victim = cluster.primary() if leads else draw.choice(cluster.awake)
    if draw.random() < 0.5:
        cluster.kill(victim)
        cluster.primary()
        cluster.start(victim)
    else:
        cluster.stop(victim)
        cluster.primary()
        time.sleep(draw.uniform(0, 0.3))
        cluster.wake(victim)


def under_disturbance(bootstrap: str, model: str, rounds: int, seed: int) -> None:
    with cluster_of(model, bootstrap) as cluster:
        cluster.primary()
        with Clients(cluster, 4) as clients:
            for number in range(rounds):
                clients.variables = (f"x{number}", f"y{number}")
                before = len(clients.calls)
                disturb(cluster, random.Random(seed := seed + 1))
                cluster.wait_until(
                    lambda at=before: len(clients.calls) > at + 100, "100 calls between two disturbances"
                )
        assert same_state(cluster)
        assert variables_are_linearizable(clients.calls) == ""
        unknown = sum(call.answer is None for call in clients.calls)
        print(f"{model}: {len(clients.calls)} calls, {unknown} unanswered, the longest {clients.longest:.2f} s")
    if model == "primary-backup":
        found = terms(read_log(Connection(bootstrap), cluster.topic))
        silences = [(each.began_ms - before.said_ms) / 1000 for before, each in pairwise(found)]
        print(f"{len(found)} terms, {sum(each.discarded for each in found)} discarded, silences {sorted(silences)}")


@models
def test_what_concurrent_clients_are_told_fits_one_order(bootstrap, model):
    under_disturbance(bootstrap, model, rounds=3, seed=1)


@pytest.mark.long
@models
def test_what_concurrent_clients_are_told_fits_one_order_for_long(bootstrap, model):
    under_disturbance(bootstrap, model, rounds=60, seed=1000)
