"""The replicated arithmetic service of "The Log", both ways, while its processes die and wake up again.

    python -m examples.arithmetic.demo [--bootstrap HOST:PORT]

1. The same script runs against three nodes of each model while a node is killed (SIGKILL), started again, stopped
   (SIGSTOP) until another has taken over, and woken up (SIGCONT). The answers are the same, and those of plain Python.
2. A primary that was deposed while a record of it was on its way: with the fence the record counts for nothing; without
   it an update that was acknowledged is lost. The interleaving is printed from the log.
3. `x+=random`: where all nodes carry it out, they stop at that operation; where one does, all is well.

Without --bootstrap it starts a log of its own; the second part always does. Exit code 0 only if all is so.
"""

import argparse
import contextlib
import random
import sys
import threading
import time
import uuid
from collections.abc import Iterator

import mainstem
from examples.arithmetic.client import Client, ask
from examples.arithmetic.cluster import Cluster, Late
from examples.arithmetic.history import read_log, timeline
from examples.arithmetic.operations import Arithmetic
from examples.arithmetic.relay import Relay
from examples.arithmetic.service import MODELS
from mainstem.client.connection import Connection
from mainstem.core.logging import configure
from mainstem.replicate import Lineage, Machine
from mainstem.replicate.election import Verdict
from mainstem.replicate.machine import Effect
from mainstem.replicate.records import Admission, Beat, Claim, Record, Result

TIMING = ("--heartbeat-ms", "100", "--silence-ms", "600", "--jitter-ms", "400")
ATTEMPTS = 10
ATTEMPT_S = 10.0  # within which each step of one must have happened


def script(length: int, seed: int) -> list[str]:
    """Operations whose answers depend on their order, a division by zero among them."""
    draw = random.Random(seed)
    operations = []
    for number in range(length):
        variable, operand = draw.choice("xyz"), draw.choice(("1", "2", "3", "5", "-7", "0.5"))
        sign = draw.choice(("+=", "-=", "*=", "/=")) if number % 7 else "+="
        operations.append(f"{variable}?" if number % 5 == 4 else f"{variable}{sign}{operand}")
    operations[length // 2] = "x/=0"
    return operations


def expected(operations: list[str]) -> list[str]:
    """The answers of one process that never fails."""
    machine, answers = Machine(Arithmetic), []
    for each in operations:
        if each.endswith("?"):
            answers.append(str(machine.query(each[:-1]).value))
            continue
        effect = machine.decide(each, None)
        assert isinstance(effect, Effect)
        machine.commit(effect)
        answers.append(effect.answer.error or str(effect.answer.value))
    return answers


class Pauses:
    """How long the client waited for each answer."""

    def __init__(self) -> None:
        self.longest = 0.0

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.longest = max(self.longest, time.monotonic() - began)


def under_fire(cluster: Cluster, operations: list[str], say: bool = True) -> list[str]:
    """The answers to a script. A node is killed after its first quarter and is back after the second, when another is
    stopped, which wakes up after the third.
    """
    client, answers, pauses = Client(list(cluster.addresses.values()), try_seconds=0.5), [], Pauses()
    quarter, victim, zombie = len(operations) // 4, "", ""
    for number, operation in enumerate(operations):
        if number == quarter:
            victim = cluster.primary()
            cluster.kill(victim)
        elif number == 2 * quarter:
            cluster.start(victim)
            zombie = cluster.primary()
            cluster.stop(zombie)
        elif number == 3 * quarter:
            cluster.wake(zombie)
        with pauses.measured():
            answers.append(client.operate(operation))
    if say:
        print(f"  {victim} killed and started again, {zombie} stopped and woken up; {len(operations)} answers,")
        print(f"  {client.tries} tries, the longest wait for an answer {pauses.longest:.2f} s")
    return answers


def same_state(cluster: Cluster) -> bool:
    """Whether all nodes come to the same state; those that have only just been started are waited for."""
    cluster.wait_until(lambda: all(cluster.status(node) for node in cluster.nodes), "all nodes answer")
    basis = max(cluster.status(node)["position"] for node in cluster.nodes)
    for node in cluster.nodes:
        cluster.local(node, "x", basis)
    # Between two looks a primary may say that it is there, but the state stays.
    return len({cluster.status(node)["state"] for node in cluster.nodes}) == 1


def play(bootstrap: str, model: str, operations: list[str]) -> list[str] | None:
    """The answers of one model; None if its nodes did not end in one state."""
    topic = f"arithmetic-{model}-{uuid.uuid4().hex[:8]}"
    print(f"{model}:")
    with Cluster(model, bootstrap, "--digest-every", "20", *TIMING, topic=topic) as cluster:
        answers = under_fire(cluster, operations)
        same = same_state(cluster)
        for node in cluster.nodes:
            cluster.kill(node)
            cluster.start(node, wait=False)
        same = same and same_state(cluster)
    log = read_log(Connection(bootstrap), topic)
    if model == "primary-backup":
        for line in timeline(log):
            print(f"  {line}")
    print(f"  {len(log)} records; all nodes in one state, also after all were killed: {'yes' if same else 'NO'}")
    return answers if same else None


def models_agree(bootstrap: str) -> bool:
    operations = script(400, seed=1)
    truth = expected(operations)
    found = {model: play(bootstrap, model, operations) for model in MODELS}
    for model, answers in found.items():
        print(f"{model}: {'all answers are those of plain Python' if answers == truth else 'ANSWERS DIFFER'}")
    return all(answers == truth for answers in found.values())


class Missed(AssertionError):
    """It went another way than it was to go: on a busy machine a primary may be deposed before it has done its part."""


def zombie(*, fenced: bool) -> tuple[str, list[tuple[int, int, Record]]]:
    """What x is in the end, and the log: x+=5, x+=1 that is held back while its primary is deposed, x+=10."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(Missed):
            return _zombie(fenced=fenced)
    raise Missed(f"in {ATTEMPTS} attempts no record of a primary arrived after the claim of the next")


def _zombie(*, fenced: bool) -> tuple[str, list[tuple[int, int, Record]]]:
    options = [*TIMING, *([] if fenced else ["--unsafe-without-fence"])]
    with mainstem.embedded() as log, contextlib.ExitStack() as stack:
        relays = {f"n{number}": stack.enter_context(Relay(log.bootstrap)) for number in (1, 2, 3)}
        bootstraps = {node: relay.address for node, relay in relays.items()}
        cluster = stack.enter_context(Cluster("primary-backup", bootstraps, *options))
        first = cluster.primary()
        Client([cluster.addresses[first]]).operate("x+=5")
        relays[first].hold()
        one_more = (cluster.addresses[first], "/ops", {"op": "x+=1"}, 60.0)
        threading.Thread(target=ask, args=one_more, daemon=True).start()  # it is told that this is not carried out
        deadline = time.monotonic() + ATTEMPT_S
        while not (status := cluster.status(first)).get("pending"):
            if time.monotonic() > deadline or status.get("role", "primary") != "primary":
                raise Missed
            time.sleep(0.005)
        cluster.stop(first)
        others = [cluster.addresses[node] for node in cluster.nodes if node != first]
        said = Client(others).operate("x+=10")
        assert said == "15", said
        before = len(read_log(Connection(log.bootstrap), cluster.topic))
        relays[first].release()
        cluster.wake(first)
        records = read_log(Connection(log.bootstrap), cluster.topic)
        deadline = time.monotonic() + ATTEMPT_S
        while not any(_is_late(records, before)):
            if time.monotonic() > deadline:
                raise Missed
            records = read_log(Connection(log.bootstrap), cluster.topic)
        return Client(others).operate("x?"), records


def _is_late(records: list[tuple[int, int, Record]], first: int) -> Iterator[bool]:
    """Of each result from offset `first` on, whether a later claim came before it."""
    newest = -1
    for offset, _, record in records:
        if isinstance(record, Claim):
            newest = offset
        elif isinstance(record, Result) and offset >= first:
            yield record.term < newest


def interleaving(records: list[tuple[int, int, Record]], *, fenced: bool) -> Iterator[str]:
    """The claims and results of a log, with what a reader makes of them."""
    lineage, nodes = Lineage(fenced=fenced), dict[int, str]()
    for offset, _, record in records:
        if isinstance(record, Claim):
            lineage.claim(offset)
            nodes[offset] = record.node
            yield f"offset {offset:4}: {record.node} claims: term {offset}"
        elif isinstance(record, (Beat, Admission)):
            lineage.judge(offset, record.term, record.seq)
        elif isinstance(record, Result):
            verdict = lineage.judge(offset, record.term, record.seq)
            late = ", late" if record.term < lineage.hi else ""
            taken = "counts" if verdict is Verdict.ACCEPTED else f"is discarded ({verdict.name.lower()})"
            yield f"offset {offset:4}: {nodes[record.term]} writes x={record.changes['x']} in term {record.term}{late}: {taken}"


def fence_is_needed() -> bool:
    fine = True
    for fenced, right in ((True, "15"), (False, "6")):
        found, records = zombie(fenced=fenced)
        print(f"{'with' if fenced else 'WITHOUT'} the fence: x+=5, x+=1 under way when its primary is deposed, x+=10:")
        for line in interleaving(records, fenced=fenced):
            print(f"  {line}")
        lost = "" if found == "15" else ": the 10 that were acknowledged are lost"
        print(f"  x? {found}{lost}")
        fine = fine and found == right
    return fine


def randomness_is_found(bootstrap: str) -> bool:
    fine = True
    for model in MODELS:
        topic = f"arithmetic-random-{model}-{uuid.uuid4().hex[:8]}"
        options = ("--allow-random", "--digest-every", "10", *TIMING)
        with Cluster(model, bootstrap, *options, topic=topic) as cluster:
            client = Client(list(cluster.addresses.values()), seconds=5.0)
            cluster.primary()
            for number in range(20):
                with contextlib.suppress(Exception):
                    client.operate("x+=random" if number == 4 else "x+=1")
                if any(process.poll() is not None for process in cluster.processes.values()):
                    break
            if model == "primary-backup":
                fine = fine and same_state(cluster)
                print(f"x+=random, {model}: all nodes in one state: {'yes' if fine else 'NO'}")
                continue
            deadline = time.monotonic() + 60
            while not (ended := [node for node, process in cluster.processes.items() if process.poll() is not None]):
                if time.monotonic() > deadline:
                    raise Late("no node has noticed that it has another state than the others")
                time.sleep(0.05)
            said = cluster.kill(ended[0]).strip().splitlines()[-1:]
            print(f"x+=random, {model}: {ended[0]} says: {''.join(said)[:200]}")
            fine = fine and "the operation at offset" in "".join(said)
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description="The arithmetic service, both ways, while its processes die.")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a log to use; default: one of its own")
    given = parser.parse_args()
    configure("arithmetic-demo", level="warning")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        bootstrap = given.bootstrap or stack.enter_context(mainstem.embedded()).bootstrap
        fine = all([models_agree(bootstrap), fence_is_needed(), randomness_is_found(bootstrap)])
    print(f"{'all as it should be' if fine else 'NOT as it should be'}, {time.monotonic() - began:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
