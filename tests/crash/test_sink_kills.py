"""kill -9 of drivers, of Spark's JVM, of Python workers and of the log, at random and at each step of the sink's
protocol: what was written is counted, and nothing of it is lost, there twice, or there in part.

The same with Spark's own Kafka sink in place of ours finds what is there twice, or the count would prove nothing.
"""

import json
import os
import random
import signal
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import mainstem
from mainstem import embedded_log
from mainstem.client.connection import Connection
from mainstem.client.internal import job_transactional_id
from mainstem.client.progress import Progress
from mainstem.client.topics import ensure_internal_topics
from tests.crash import test_sink_protocol as protocol
from tests.support.sink_books import Job, Totals, check_job, check_reader, check_stable, copies
from tests.support.sink_driver import OPENING, STEPS
from tests.support.sink_engine import ForkedEngine
from tests.support.sink_kills import World
from tests.support.waiting import wait_until

MANY = int(os.environ.get("MAINSTEM_KILLS", "200"))
LANES = 4  # engines side by side

Kill = tuple[str, str]
"""Who, and at which step; at any moment where that is empty."""


def some(seed: int) -> list[Kill]:
    """Few, since a driver takes a while to start."""
    steps = random.Random(seed).sample(STEPS, 6)
    at_steps = zip(("log", "worker", "driver", "log", "worker", "log"), steps, strict=True)
    return [*at_steps, ("worker", ""), ("JVM", ""), ("log", ""), ("worker", "")]


def a_round(seed: int) -> list[Kill]:
    """Each victim at each step, and as many at any moment."""
    found = [(victim, step) for victim in ("driver", "log") for step in (*OPENING, *STEPS)]
    found += [("worker", step) for step in STEPS]
    found += [("driver", ""), ("JVM", ""), ("zombie", "task_produced"), ("zombie", "ending")]
    found += 30 * [("log", "")] + 30 * [("worker", "")]
    random.Random(seed).shuffle(found)
    return found


def told(kills: Counter[str]) -> str:
    """So many of each victim."""
    found = Counter[str]()
    for name, count in kills.items():
        found[name.partition(" at ")[0] + (" at a step" if " at " in name else "")] += count
    return f"{kills.total()} kills: " + ", ".join(f"{count} {name}" for name, count in sorted(found.items()))


def check(directory: Path, kills: list[Kill], seed: int) -> Counter[str]:
    drivers = 1 + sum((victim in ("driver", "JVM", "zombie")) + (step in OPENING) for victim, step in kills)
    with World(directory, seed, drivers=drivers) as world:
        world.kill(kills)
        world.finish()
        anomalies = world.anomalies()
    print(f"seed {seed}: {told(world.kills)}; {world.sent} records, {world.batches} batches: {anomalies}", flush=True)
    assert not anomalies, anomalies
    return world.kills


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_drivers_workers_and_the_log_are_killed(tmp_path):
    seed = random.randrange(1 << 30)
    assert check(tmp_path, some(seed), seed).total() >= 10


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(12 * 3600)
def test_drivers_workers_and_the_log_are_killed_many_times(tmp_path):
    """A fifth of MAINSTEM_KILLS, round by round; the others are those of engines, below."""
    kills, number = Counter[str](), 0
    while (left := MANY // 5 - kills.total()) > 0:
        seed, number = random.randrange(1 << 30), number + 1
        (directory := tmp_path / str(number)).mkdir()
        kills += check(directory, a_round(seed)[:left], seed)
    print(told(kills), "\n".join(f"{count:5} {name}" for name, count in sorted(kills.items())), sep="\n")


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_sparks_own_sink_is_caught_by_the_same_count(tmp_path):
    with World(tmp_path, seed=1, drivers=2, sparks_own=True) as world:
        world.kill([("driver", "task_produced copied")])  # what it copies is what is counted
        world.finish()
        lost, duplicated = world.duplicates()
    print(f"Spark's own sink, {told(world.kills)}: {lost} lost, {duplicated} duplicated of {world.sent} records")
    assert lost == 0
    assert duplicated > 0


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_must_not_go_on_is_refused_until_it_is_mended(tmp_path):
    """A batch longer than its transaction may take, a checkpoint that is gone, and one that is another run's."""
    with World(tmp_path, seed=2, drivers=2) as world:
        world.wait_for_batch("totalled")
        world.driver.tell("arm task_produced")
        world.wait_for(lambda: world.driver.at, "a batch is written")
        job = world.driver.job
        wait_until(lambda: job_transactional_id(job, "1") not in world.ongoing(), "the log aborts it", seconds=300)
        world.driver.go_on()
        world.wait_for(lambda: any("more than its timeout" in each for each in world.driver.failed), "it fails")
        world.wait_for_batch(job)

        world.kill_driver()
        gone, others = (tmp_path / "data" / "jobs" / f"{job}@1" / "checkpoint" for job in ("copied", "totalled"))
        gone.rename(kept := tmp_path / "kept")
        metadata = (others / "metadata").read_bytes()
        (others / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        world.start_driver()
        assert world.driver.wait(lambda: len(refused_of(world)) == 2), world.driver.failed
        assert all("the last commit belongs to checkpoint" in each for each in world.driver.refused)
        assert all("(bring back the checkpoint" in each for each in world.driver.refused)
        assert not world.driver.committed
        kept.rename(gone)
        (others / "metadata").write_bytes(metadata)
        wait_until(lambda: all(world.driver.committed[job] for job in ("copied", "totalled")), "both go on")
        world.driver.refused.clear()
        world.finish()
        anomalies = world.anomalies()
    assert not anomalies, anomalies


def refused_of(world: World) -> set[str]:
    """The jobs that wait for a person."""
    return {each.partition(":")[0] for each in world.driver.refused}


# -- engines, which start within a second


@pytest.mark.timeout(1800)
def test_an_engine_its_workers_and_its_log_are_killed(tmp_path):
    kill_engines(tmp_path, 24)


@pytest.mark.long
@pytest.mark.timeout(12 * 3600)
def test_an_engine_its_workers_and_its_log_are_killed_many_times(tmp_path):
    for number, count in enumerate(range(MANY - MANY // 5, 0, -100)):
        (directory := tmp_path / str(number)).mkdir()
        kill_engines(directory, min(count, 100))


def kill_engines(directory: Path, count: int) -> None:
    """Several side by side: an engine waits more than it computes."""
    seed, lock = random.randrange(1 << 30), threading.Lock()
    with mainstem.embedded(child=True) as log:
        connection = Connection(log.bootstrap)
        ensure_internal_topics(connection)
        benches = [protocol.Bench(connection, directory / str(number)) for number in range(LANES)]

        def kill_some(number: int) -> Counter[str]:
            dice, kills = random.Random(seed + number), Counter[str]()
            while kills.total() < count / LANES:
                with lock:  # the log is there
                    benches[number].put(dice.randint(20, 200))
                kill_engine(benches[number], log, lock, dice, kills)
            return kills

        with ThreadPoolExecutor(LANES) as threads:
            kills = sum(threads.map(kill_some, range(LANES)), Counter[str]())
        for bench in benches:
            exit_code, failure = ForkedEngine(bench.config()).end()
            assert exit_code == 0, failure
            bench.check()
    records = sum(bench.records for bench in benches)
    print(f"seed {seed}: {told(kills)}; {records} records: nothing lost, duplicated or torn", flush=True)
    assert kills.total() >= count


def kill_engine(
    bench: protocol.Bench,
    log: embedded_log.ChildLog,
    lock: threading.Lock,
    dice: random.Random,
    kills: Counter[str],
) -> None:
    """One life of an engine that deals its rows otherwise than the one before; a batch that is run again goes to other
    partitions.
    """
    victims = {"engine at": 5, "engine": 3, "worker of an engine": 3, "log under an engine": 1}  # a log starts slowly
    (victim,) = dice.choices([*victims], [*victims.values()])
    step = dice.choice(protocol.STEPS)
    at_step = (step, 1 if step in protocol.ONCE else dice.randint(1, 3))
    config = bench.config(
        limit=dice.choice((20, 50, 100)),
        workers=dice.randint(1, 4),
        dealt=dice.randrange(1 << 30),
        pause_in_task=dice.uniform(0, 0.05),
        kill_at=at_step if victim == "engine at" else ("", 0),
    )
    engine = ForkedEngine(config)
    if victim != "engine at":
        if dice.random() < 0.8:
            engine.wait_for_batch()
        time.sleep(dice.uniform(0, 0.3))
    if victim == "engine":
        engine.process.kill()
    elif victim.startswith("log"):
        with lock:
            log.kill()
            kills[victim] += 1
            time.sleep(dice.uniform(0, 0.5))
            log.start()
    elif victim.startswith("worker"):
        with suppress(psutil.Error, IndexError):
            dice.choice(psutil.Process(engine.process.pid).children()).kill()
            kills[victim] += 1
    exit_code, failure = engine.end()
    assert exit_code in (0, 1, -signal.SIGKILL), exit_code
    assert "SinkRefused" not in failure, failure
    if exit_code == -signal.SIGKILL:
        kills[f"engine at {step}" if victim == "engine at" else victim] += 1


# -- the count itself

SOURCE = {0: {0: 0, 1: 1, 2: 2}, 1: {0: 10, 1: 11}}
READ = [{0: 2, 1: 1}, {0: 3, 1: 1}, {0: 3, 1: 2}]  # three batches: 0, 1, 10; 2; 11
ENDS = [{0: 2, 1: 1}, {0: 4, 1: 1}, {0: 4, 1: 3}]
COPIED = {0: [(0, 0), (1, 10), (3, 2)], 1: [(0, 1), (2, 11)]}
GOOD = {"read": READ, "ends": ENDS, "batches": [0, 1, 2], "written": COPIED, "stable": {0: [0, 3, 4], 1: [1, 2, 3]}}


def anomalies_of(case):
    progress = [
        Progress("copied", "1", batch, {"in": read}, {}, {"out": ends})
        for batch, read, ends in zip(case["batches"], case["read"], case["ends"], strict=True)
    ]
    return check_job(Job("copied", "in", "out", copies), SOURCE, progress, case["written"], case["stable"])


@pytest.mark.parametrize(("changed", "found"), [
    ({}, []),
    ({"written": COPIED | {1: [(2, 11)]}}, ["lost", "torn"]),
    ({"written": COPIED | {1: [(0, 1), (2, 11), (4, 11)]}}, ["duplicated", "torn"]),  # the batch was written again
    ({"written": COPIED | {1: [(0, 1), (1, 1), (2, 11)]}}, ["duplicated", "torn"]),
    ({"written": COPIED | {0: [(0, 0), (1, 10), (3, 2), (9, 7)]}}, ["duplicated", "torn"]),
    ({"written": {0: [(0, 0), (1, 10)], 1: [(0, 1), (1, 2), (2, 11)]}}, ["torn"]),  # a row is where another batch wrote
    ({"read": READ[:2], "ends": ENDS[:2], "batches": [0, 1]}, ["torn"]),  # rows without a commit
    ({"read": READ[:2], "ends": ENDS[:2], "batches": [0, 1],
      "written": {0: COPIED[0], 1: [(0, 1)]}}, ["lost"]),  # the last batch was never written
    ({"batches": [0, 1, 1]}, ["duplicated"]),
    ({"batches": [0, 1, 3]}, ["lost"]),
    ({"stable": {0: [1]}}, ["torn"]),  # one of two rows was visible
])  # fmt: skip
def test_each_broken_promise_is_found(changed, found):
    anomalies = anomalies_of(GOOD | changed)
    assert [name for name in anomalies.__struct_fields__ if getattr(anomalies, name)] == found, anomalies


def test_what_a_reader_saw_and_what_is_stable_stays():
    written = {0: [(0, "a"), (2, "b"), (3, "c")]}
    assert not check_reader("out", {0: [(0, "a"), (2, "b")]}, written)
    assert check_reader("out", {0: [(0, "a"), (3, "c")]}, written).torn  # it was given what came before later, or never
    assert check_reader("out", {0: [(0, "a"), (2, "x")]}, written).torn
    assert check_reader("out", {0: [(0, "a"), (0, "a")]}, written).backward
    assert check_reader("out", {0: [*written[0], (5, "d")]}, written).lost
    assert not check_stable("out", {0: [0, 3, 4]})
    assert check_stable("out", {0: [3, 0]}).backward


def test_totals_are_told_by_batch():
    totals = Totals(lanes=2, in_a_window=10)
    assert set(totals([1, 3, 2, 11])) == {(1, 0, 2, 4), (0, 0, 1, 2), (1, 1, 1, 11)}
    assert set(totals([5])) == {(1, 0, 3, 9)}
