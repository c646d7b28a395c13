"""The election and what is answered, on thousands of random runs and on all small ones; each rule is needed."""

import random

import pytest

from mainstem.replicate.election import Lineage
from mainstem.replicate.primary_backup import PrimaryBackup
from mainstem.replicate.replica import Replica
from mainstem.replicate.state_machine import StateMachine
from tests.replicate.exhaustive import Bounds, Explorer
from tests.replicate.mutants import MUTANTS, AnswersWhenSent, KeepsItsCopy, NoGap, NoSequence, made
from tests.replicate.simulation import Chain, Violation, World, terms, violation

SHORT, LONG = 3_000, 100_000
STEPS = 400


def many(seeds: range, make) -> None:
    acknowledged = claims = 0
    for seed in seeds:
        world = World(seed, make)
        try:
            world.run(STEPS)
        except Violation as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        acknowledged += len(world.acknowledged)
        claims += terms(world.log)
    # A run in which nothing happens keeps every promise.
    assert acknowledged > 5 * len(seeds)
    assert make is state_machine or claims > 2 * len(seeds)


def state_machine(node: str, author: str, draw: random.Random) -> Replica:
    return StateMachine(node, Chain, nodes=3, digest_every=5, author=author)


def test_primary_and_backups_keep_their_promises():
    many(range(SHORT), made())


@pytest.mark.long
def test_primary_and_backups_keep_their_promises_in_many_runs():
    many(range(SHORT, SHORT + LONG), made())


def test_state_machines_keep_their_promises():
    many(range(500), state_machine)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_without_any_rule_a_promise_is_broken(mutant):
    assert any(violation(seed, MUTANTS[mutant], STEPS) for seed in range(SHORT)), "the checker does not see it"


def test_all_runs_of_two_nodes_with_two_claims_and_two_writes():
    explorer = Explorer(Bounds(claims=2, writes=2, repeats=1))
    explorer.run()
    assert explorer.states > 20_000


@pytest.mark.long
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(claims=2, writes=2, repeats=1, restarts=1),
        Bounds(claims=3, writes=2, repeats=0),
        Bounds(nodes=3, claims=3, writes=2, repeats=0),
    ],
)
def test_all_runs_of_more(bounds):
    explorer = Explorer(bounds)
    explorer.run()
    assert explorer.states > 10_000


@pytest.mark.parametrize(
    ("kind", "lineage"),
    [
        (PrimaryBackup, lambda: Lineage(fenced=False)),
        (PrimaryBackup, NoSequence),
        (PrimaryBackup, NoGap),
        (KeepsItsCopy, Lineage),
        (AnswersWhenSent, Lineage),
    ],
    ids=["no fence", "no sequence", "no gap rule", "keeps its copy", "acknowledges when sent"],
)
def test_without_any_rule_a_small_run_breaks_a_promise(kind, lineage):
    with pytest.raises(Violation, match=" / "):
        Explorer(Bounds(claims=2, writes=3, repeats=1), kind, lineage).run()
