"""Every run of a few nodes, up to a bound: each claims and writes when it likes, appends arrive in any order or never.

Time plays no part: a node that may claim at any moment does more than any clock could make it do.
"""

import copy
from collections.abc import Callable
from typing import Any

import msgspec

from mainstem.replicate.election import Lineage, Verdict
from mainstem.replicate.machine import Machine
from mainstem.replicate.primary_backup import PrimaryBackup
from mainstem.replicate.records import Claim, Result, decode, encode
from tests.replicate.simulation import Chain, Violation, _order


class Still:
    """Randomness that is none."""

    def random(self) -> float:
        return 0.5


class Bounds(msgspec.Struct, frozen=True):
    """How much happens in a run at most. Whatever is appended may also never arrive."""

    nodes: int = 2
    claims: int = 2
    writes: int = 3
    repeats: int = 1
    restarts: int = 0


class State:
    """Where a run is: the log, the nodes, and what is on its way."""

    def __init__(self, nodes: list[PrimaryBackup]) -> None:
        self.log: tuple[bytes, ...] = ()
        self.nodes = nodes
        self.flying: tuple[bytes, ...] = ()
        self.claims = self.writes = self.repeats = self.restarts = 0
        self.tickets: dict[tuple[str, int], int] = {}
        self.acknowledged: frozenset[int] = frozenset()
        self.refused: frozenset[int] = frozenset()

    def fork(self) -> "State":
        other = copy.copy(self)
        other.nodes = [_fork(node) for node in self.nodes]
        other.tickets = dict(self.tickets)
        return other

    def key(self) -> Any:
        """What the future depends on."""
        flying = tuple(sorted(self.flying))
        bounds = (self.claims, self.writes, self.repeats, self.restarts)
        return (self.log, flying, bounds, self.acknowledged, self.refused, tuple(_key(node) for node in self.nodes))


def _key(node: PrimaryBackup) -> Any:
    election = node.election
    ahead = tuple(node._ahead.service.order) if node._ahead else None  # type: ignore[attr-defined]
    pending = tuple((seq, each.answer) for seq, each in node._pending.items())
    return (node.author, node.position, election.own_term, election.seq, pending, ahead, tuple(_order(node)))


def _fork(node: PrimaryBackup) -> PrimaryBackup:
    other = copy.copy(node)
    other.machine = _fork_machine(node.machine)
    other._ahead = _fork_machine(node._ahead) if node._ahead else None
    other.election = copy.copy(node.election)
    other.election.lineage = copy.copy(node.election.lineage)
    other._pending, other._seqs = dict(node._pending), dict(node._seqs)
    other.appends, other.settled = [], []
    return other


def _fork_machine(machine: Machine) -> Machine:
    other = copy.copy(machine)
    other.service = Chain()
    other.service.load(machine.service.dump())
    return other


class Explorer:
    """Walks through all states; `run` raises Violation with the way that led there."""

    def __init__(
        self,
        bounds: Bounds,
        kind: type[PrimaryBackup] = PrimaryBackup,
        lineage: Callable[[], Lineage] = Lineage,
    ) -> None:
        self.bounds, self.kind, self.lineage = bounds, kind, lineage
        self.states = 0
        self.runs = 0

    def run(self) -> None:
        start = State([self._made(f"n{number}") for number in range(self.bounds.nodes)])
        seen = {start.key()}
        waiting: list[tuple[State, tuple[str, ...]]] = [(start, ())]
        while waiting:
            state, way = waiting.pop()
            self.states += 1
            for name, action in self._actions(state):
                after = state.fork()
                try:
                    action(after)
                    self._collect(after)
                except Violation as error:
                    raise Violation(f"{error}: {' / '.join((*way, name))}") from error
                key = after.key()
                if key not in seen:
                    seen.add(key)
                    waiting.append((after, (*way, name)))

    def _made(self, name: str) -> PrimaryBackup:
        self.runs += 1
        node = self.kind(name, Chain, lineage=self.lineage(), draw=Still(), author=name)  # type: ignore[arg-type]
        node.start(0.0)
        return node

    def _actions(self, state: State) -> list[tuple[str, Callable[[State], None]]]:
        found: list[tuple[str, Callable[[State], None]]] = []
        bounds = self.bounds
        for at, node in enumerate(state.nodes):
            name = node.node
            if state.claims < bounds.claims:
                found.append((f"{name} claims", lambda s, at=at: _claim(s, at)))
            if state.writes < bounds.writes and node.election.leads(0.0) and node._ahead:
                found.append((f"{name} writes", lambda s, at=at: _write(s, at)))
            if node.position < len(state.log):
                found.append((f"{name} reads", lambda s, at=at: _read(s, at)))
            if state.restarts < bounds.restarts:
                found.append((f"{name} starts anew", lambda s, at=at: self._restart(s, at)))
        for value in sorted(set(state.flying)):
            found.append((f"{value.decode()} arrives", lambda s, value=value: _arrive(s, value, again=False)))
            if state.repeats < bounds.repeats:
                found.append(
                    (f"{value.decode()} arrives and again", lambda s, value=value: _arrive(s, value, again=True))
                )
        return found

    def _restart(self, state: State, at: int) -> None:
        name = state.nodes[at].node
        state.restarts += 1
        state.tickets = {key: each for key, each in state.tickets.items() if key[0] != state.nodes[at].author}
        state.nodes[at] = self._made(name)
        state.nodes[at].author = state.nodes[at].election._author = f"{name}.{state.restarts}"

    def _collect(self, state: State) -> None:
        for node in state.nodes:
            state.flying += tuple(node.take_appends())
            for settled in node.take_settled():
                operation = state.tickets.pop((node.author, settled.ticket), None)
                if operation is None:
                    continue
                if settled.answer is None:
                    state.refused |= {operation}
                    continue
                order = self._order(state.log)
                if operation not in order:
                    raise Violation(f"{operation} was acknowledged, and is not in {order}")
                state.acknowledged |= {operation}
        if not state.acknowledged | state.refused:
            return
        order = self._order(state.log)
        if not state.acknowledged <= set(order):
            raise Violation(f"of {set(state.acknowledged)}, acknowledged, only {order} are left")
        if state.refused & set(order):
            raise Violation(f"{set(state.refused)} were told never to be carried out: {order}")

    def _order(self, log: tuple[bytes, ...]) -> list[int]:
        """What any reader makes of the log, without a replica."""
        lineage, order = self.lineage(), list[int]()
        for offset, value in enumerate(log):
            record = decode(offset, value)
            if isinstance(record, Claim):
                lineage.claim(offset)
            elif isinstance(record, Result) and lineage.judge(offset, record.term, record.seq) is Verdict.ACCEPTED:
                order.append(record.changes[1])
        return order


def _claim(state: State, at: int) -> None:
    node = state.nodes[at]
    state.claims += 1
    state.flying += (encode(Claim(node.node, node.author)),)


def _write(state: State, at: int) -> None:
    node = state.nodes[at]
    state.writes += 1
    ticket = node.write(state.writes, None, 0.0)
    state.tickets[node.author, ticket] = state.writes


def _read(state: State, at: int) -> None:
    node = state.nodes[at]
    node.receive(node.position, state.log[node.position], 0.0)


def _arrive(state: State, value: bytes, *, again: bool) -> None:
    state.log += (value,)
    delivered = list(state.flying)
    if again:
        state.repeats += 1
    else:
        delivered.remove(value)
    state.flying = tuple(delivered)
