"""Two drivers of one version, step by step, in every order that there is: a new one fences between any two steps of the
one before, which goes on and does not know.

The log and the checkpoint are a model, `decide` is the sink's own; that the sink takes its steps in this order is
`test_sink_commit.py`'s. Whoever is not given another turn was killed, so that each state is the end of some run too.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from mainstem.client.progress import Marker
from mainstem.process.sink_decision import Decision, SinkRefused, decide

ROWS = 3  # of the input; a batch has one or two
STEPS = ("fence", "read_marker", "look", "plan", "decide", "produce", "sync", "end", "write_down")
"""What a driver does, in this order; after the last one it goes on with the next plan."""


class Batch(NamedTuple):
    number: int
    end: int  # the first row that is not in it


class Driver(NamedTuple):
    """`at`: its next step, or why it has ended; `marker`: what it has read; `produced`: rows of its batch."""

    at: str
    epoch: int = 0
    marker: Batch | None = None
    batch: int = 0
    start: int = 0
    end: int = 0  # 0: not planned yet
    produced: int = 0


class State(NamedTuple):
    """`transaction` is the open one, of the driver that has fenced last; `output` has those that are committed, each
    with the rows that its batch was planned for.
    """

    epoch: int = 0
    transaction: tuple[int, ...] = ()
    output: tuple[tuple[tuple[int, ...], range], ...] = ()
    marker: Batch | None = None
    plans: tuple[int, ...] = ()  # the ends of the batches
    synced: int = 0  # so many of them
    commits: frozenset[int] = frozenset()
    drivers: tuple[Driver, ...] = ()
    cuts: int = 0

    def with_driver(self, number: int, driver: Driver, **changes: Any) -> "State":
        """Which one is which does not matter, nor what one that has ended knew: fewer states are told apart."""
        if driver.at not in STEPS:
            driver = Driver(driver.at, driver.epoch)
        drivers = sorted((*self.drivers[:number], driver, *self.drivers[number + 1 :]), key=str)
        return self._replace(drivers=tuple(drivers), **changes)

    def cut(self) -> "Iterator[State]":
        """What a power cut may leave: no driver, and of what Spark has written what was synced, or more."""
        ended = tuple(Driver("killed", each.epoch) for each in self.drivers)
        for plans in {self.plans, self.plans[: self.synced]}:
            for written in {len(plans), *self.commits}:
                commits = frozenset(each for each in self.commits if each < written)
                yield self._replace(drivers=ended, plans=plans, commits=commits, cuts=self.cuts + 1)


Decide = Callable[[Batch | None, int, int, int], str]


def decided(marker: Batch | None, batch: int, start: int, end: int) -> str:
    """As the sink decides; the last commit is `marker`."""

    def at(offset: int) -> dict[str, dict[str, dict[int, int]]]:
        return {"s": {"t": {0: offset}}}

    found = None if marker is None else Marker("job", "v1", "ours", marker.number, at(marker.end))
    starts = at(start) if batch else None
    try:
        decision = decide(found, checkpoint="ours", batch=batch, end_offsets=at(end), start_offsets=starts)
    except SinkRefused:
        return "refused"
    return "produce" if decision is Decision.RUN else "write_down"


def by_number_alone(marker: Batch | None, batch: int, start: int, end: int) -> str:
    """Not as the sink decides."""
    return "produce" if marker is None or batch > marker.number else "write_down"


class Rules(NamedTuple):
    """The sink's, unless a test breaks one."""

    order: tuple[str, ...] = STEPS
    decide: Decide = decided
    fences: bool = True  # the log refuses what comes of an older driver

    def after(self, step: str) -> str:
        place = self.order.index(step) + 1
        return self.order[place] if place < len(self.order) else "plan"

    def steps(self, state: State, number: int) -> Iterator[State]:
        """What driver `number` may make of it with its next step; nothing where it has ended."""
        driver = state.drivers[number]
        if driver.at not in self.order:
            return
        then = driver._replace(at=self.after(driver.at))
        if driver.at in ("produce", "end") and self.fences and driver.epoch != state.epoch:
            yield state.with_driver(number, driver._replace(at="fenced"))
        elif driver.at == "fence":
            yield state.with_driver(number, then._replace(epoch=state.epoch + 1), epoch=state.epoch + 1, transaction=())
        elif driver.at == "read_marker":
            yield state.with_driver(number, then._replace(marker=state.marker))
        elif driver.at == "look":  # the last batch that is planned, if it is not written down, else the next one
            last = len(state.plans) - 1
            batch = last if last >= 0 and last not in state.commits else last + 1
            start = state.plans[batch - 1] if batch else 0
            yield state.with_driver(number, then._replace(batch=batch, start=start, end=(*state.plans, 0)[batch]))
        elif driver.at == "plan":
            yield from self._plans(state, number, driver, then)
        elif driver.at == "decide":
            to = self.decide(driver.marker, driver.batch, driver.start, driver.end)
            yield state.with_driver(number, driver._replace(at=to, produced=0))
        elif driver.at == "produce":
            row = driver.start + driver.produced
            step = then if row + 1 == driver.end else driver
            yield state.with_driver(
                number, step._replace(produced=driver.produced + 1), transaction=(*state.transaction, row)
            )
        elif driver.at == "sync":
            yield state.with_driver(number, then, synced=max(state.synced, driver.batch + 1))
        elif driver.at == "end":
            marker, rows = Batch(driver.batch, driver.end), range(driver.start, driver.end)
            output = (*state.output, (state.transaction, rows))
            yield state.with_driver(number, then._replace(marker=marker), output=output, transaction=(), marker=marker)
        else:
            after = then._replace(batch=driver.batch + 1, start=driver.end, end=0)
            yield state.with_driver(number, after, commits=state.commits | {driver.batch})

    def _plans(self, state: State, number: int, driver: Driver, then: Driver) -> Iterator[State]:
        if driver.end:
            yield state.with_driver(number, then)
        elif driver.start == ROWS:
            yield state.with_driver(number, driver._replace(at="done"))
        elif len(state.plans) != driver.batch:  # Spark does not overwrite one
            yield state.with_driver(number, driver._replace(at="not alone"))
        else:
            for end in {min(driver.start + rows, ROWS) for rows in (1, 2)}:
                yield state.with_driver(number, then._replace(end=end), plans=(*state.plans, end))

    def following(self, state: State, drivers: int, cuts: int) -> Iterator[State]:
        for number in range(len(state.drivers)):
            yield from self.steps(state, number)
        if len(state.drivers) < drivers:
            yield state._replace(drivers=(*state.drivers, Driver(self.order[0])))
        if state.cuts < cuts:
            yield from state.cut()


def anomaly(state: State) -> str:
    """What is wrong with what readers see; empty where nothing is."""
    rows = Counter(row for transaction, _ in state.output for row in transaction)
    if any(transaction != tuple(batch) for transaction, batch in state.output):
        return "torn"
    if rows and rows.most_common(1)[0][1] > 1:
        return "duplicated"
    return "" if set(rows) == set(range(state.marker.end if state.marker else 0)) else "lost"


def explore(rules: Rules, *, drivers: int = 2, cuts: int = 0) -> tuple[dict[str, State], set[State]]:
    """All that can happen to so many drivers and with so many power cuts: of each anomaly that is found the first state
    that has it, and the states that have none.
    """
    found, seen, waiting = dict[str, State](), set[State](), deque([State()])
    while waiting:
        for state in rules.following(waiting.popleft(), drivers, cuts):
            if wrong := anomaly(state):
                found.setdefault(wrong, state)
            elif state not in seen:
                seen.add(state)
                waiting.append(state)
    return found, seen


def ends(states: set[State], *, of_the_newest: bool = False) -> set[str]:
    """How drivers end; the newest is the one that has fenced last."""
    every = ((state, driver) for state in states for driver in state.drivers if driver.at not in STEPS)
    return {driver.at for state, driver in every if not of_the_newest or driver.epoch == state.epoch}


@pytest.mark.parametrize(("drivers", "cuts"), [(2, 0), (2, 1), (3, 0), pytest.param(3, 1, marks=pytest.mark.long)])
def test_in_whatever_order_drivers_take_their_steps_each_batch_is_there_whole_and_once(drivers: int, cuts: int) -> None:
    found, states = explore(Rules(), drivers=drivers, cuts=cuts)
    assert found == {}
    assert ends(states) >= {"done", "fenced", "refused"}
    assert "refused" not in ends(states, of_the_newest=True)  # it is for those that are fenced and do not know


BROKEN = {
    "the marker is read before the fence": (Rules(order=("read_marker", "fence", *STEPS[2:])), {"duplicated"}),
    "what comes of an older driver is taken": (Rules(fences=False), {"duplicated", "torn"}),
    "a batch is skipped by its number, and its plan not synced": (
        Rules(order=tuple(step for step in STEPS if step != "sync"), decide=by_number_alone),
        {"lost", "duplicated"},
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_rule_that_is_broken_is_found_out(broken: str) -> None:
    rules, anomalies = BROKEN[broken]
    found, _ = explore(rules, cuts=1)
    assert set(found) == anomalies


def test_a_plan_that_is_not_synced_before_the_commit_leads_to_a_refusal() -> None:
    rules = Rules(order=tuple(step for step in STEPS if step != "sync"))
    found, states = explore(rules, cuts=1)
    assert found == {}
    assert "refused" in ends(states, of_the_newest=True)
