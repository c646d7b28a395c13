"""Nodes, clients and a log in one thread, driven by a seed: appends are delayed, repeated, reordered and lost, nodes
crash, start anew, or sleep and wake up as zombies. The replicas are the real ones; checked is what users are promised.

    acknowledged          is in the log for good, once, and its answer follows from what is before it
    told "not applied"    never is
    every replica         has a prefix of what all have at the end
    every read            holds what was answered to anybody before it was asked, and writes come after it
"""

import random
from collections.abc import Callable
from typing import Any

from mainstem.replicate.errors import NotApplied, NotPrimary, Unreadable
from mainstem.replicate.records import Request, decode
from mainstem.replicate.replica import Replica, Settled


class Violation(AssertionError):
    """A promise is broken."""


class Chain:
    """A service whose state is the order of its operations, and whose answers say what came before them."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def execute(self, operation: int) -> tuple[int, list[int]]:
        before = self.order[-1] if self.order else 0
        return before, [before, operation]

    def assign(self, changes: list[int]) -> None:
        before, operation = changes
        last = self.order[-1] if self.order else 0
        if before != last:
            raise Violation(f"{operation} was computed after {before}, and comes after {last}: an update is lost")
        if operation in self.order:
            raise Violation(f"{operation} is carried out twice")
        self.order.append(operation)

    def query(self, question: Any) -> int:
        return len(self.order)

    def dump(self) -> list[int]:
        return self.order

    def load(self, dump: list[int]) -> None:
        self.order = list(dump)


MakeReplica = Callable[[str, str, random.Random], Replica]
"""Of a node, a run of it, and its randomness."""


class _Node:
    def __init__(self, replica: Replica, end: int, pace: float) -> None:
        self.replica = replica
        self.end = end  # of the log when it started
        self.sleeps_until = self.deaf_until = 0
        self.looks = False
        self.now, self.pace = 0.0, pace  # each node's clock goes as it likes


class _Asked:
    def __init__(self, operation: int, request: Request | None, floor: int) -> None:
        self.operation, self.request = operation, request  # 0: a read, -1: a client
        self.floor = floor  # how many operations any answer had told of


class World:
    """One run: `steps` of whatever the seed says.

    Args:
        seed: all of its randomness.
        make: a replica of a node.
        nodes: how many there are.
    """

    def __init__(self, seed: int, make: MakeReplica, nodes: int = 3) -> None:
        self.draw = random.Random(seed)
        self.make, self.log = make, list[bytes]()
        self.runs = 0
        self.step = 0
        self.flying: list[tuple[_Node, bytes]] = []
        self.asked: dict[tuple[int, int], _Asked] = {}  # by node and ticket
        self.open: list[_Asked] = []  # requests that nobody has answered: they are sent again
        self.acknowledged: dict[int, tuple[int, int]] = {}  # operation -> what came before it, offset
        self.refused: set[int] = set()  # told that it will never be carried out
        self.clients: dict[int, int] = {}  # id -> the last number
        self.floor = 0
        self.operations = 0
        # Some logs are nearly as they should be: only then a term lasts.
        self.reordered, self.repeated, self.lost = (self.draw.choice((0.0, 0.02, 0.2)) for _ in range(3))
        self.disturbed = self.draw.choice((0.3, 1, 4))
        self.nodes = [self._start(f"n{number}") for number in range(nodes)]
        self.actions: list[Callable[[_Node], None]] = [self._read, self._tick, self._ask, self._deliver, self._disturb]

    def run(self, steps: int) -> None:
        """Raises Violation."""
        for self.step in range(steps):
            node = self.draw.choice(self.nodes)
            if node.sleeps_until <= self.step:
                self.draw.choices(self.actions, (30, 25, 15, 40, self.disturbed))[0](node)
            else:
                self._deliver(node)  # what it had sent goes on its way
        for node in self.nodes:
            node.sleeps_until = node.deaf_until = 0
            while node.replica.position < len(self.log):
                self._read(node)
        self._check()

    # -- what happens

    def _start(self, name: str) -> _Node:
        self.runs += 1
        replica = self.make(name, f"{name}.{self.runs}", random.Random(self.draw.random()))
        node = _Node(replica, len(self.log), self.draw.choice((0.2, 1.0, 2.0)))
        if not self.log:
            replica.start(0.0)
        return node

    def _read(self, node: _Node) -> None:
        replica = node.replica
        if node.deaf_until > self.step:
            return
        for _ in range(self.draw.randint(1, 6)):
            if replica.position < len(self.log):
                replica.receive(replica.position, self.log[replica.position], node.now)
                self._collect(node)
        if not replica.live and replica.position >= node.end:
            replica.start(node.now)
        self._collect(node)

    def _tick(self, node: _Node) -> None:
        node.now += node.pace * self.draw.expovariate(4.0)
        if node.looks and self.draw.random() < 0.7:
            node.looks = False
            node.replica.looked(self.draw.choice((len(self.log), len(self.log), None)), node.now)
        node.looks = node.replica.tick(node.now) or node.looks
        self._collect(node)

    def _deliver(self, _: _Node) -> None:
        """Any record that is under way arrives; it may arrive again later, or never."""
        if not self.flying:
            return
        at = self.draw.randrange(len(self.flying)) if self.draw.random() < self.reordered else 0
        node, value = self.flying[at]
        fate = self.draw.random()
        if fate >= self.repeated * 0.5:
            del self.flying[at]
        if fate < 1 - self.lost * 0.5:
            self.log.append(value)
            delivered = getattr(node.replica, "delivered", None)
            if delivered is not None:  # of a mutant that believes it
                delivered(len(self.log) - 1, value, node.now)
                self._collect(node)

    def _disturb(self, node: _Node) -> None:
        match self.draw.randrange(4):
            case 0:  # it crashes; what it has sent may still arrive
                self.asked = {key: each for key, each in self.asked.items() if key[0] != id(node)}
                self.nodes[self.nodes.index(node)] = self._start(node.replica.node)
            case 1:
                node.sleeps_until = self.step + self.draw.randint(20, 200)
            case 2:
                node.deaf_until = self.step + self.draw.randint(20, 200)
            case 3:
                node.now += 5.0  # its clock jumps

    def _ask(self, node: _Node) -> None:
        """A client asks, mostly one that believes to be asked rightly."""
        able = [each for each in self.nodes if each.replica.live and each.sleeps_until <= self.step]
        leading = [each for each in able if each.replica.status(each.now)["role"] != "backup"]
        wanted = leading if leading and self.draw.random() < 0.9 else able
        for _ in range(self.draw.randint(1, 3) if wanted else 0):
            self._ask_one(self.draw.choice(wanted))

    def _ask_one(self, node: _Node) -> None:
        chance = self.draw.random()
        if chance < 0.15 and self.open:
            asked = self.draw.choice(self.open)  # sent again, perhaps to another node, while the first may be under way
        elif chance < 0.4:
            asked = _Asked(0, None, self.floor)
        elif chance < 0.45:
            asked = _Asked(-1, None, self.floor)
        else:
            self.operations += 1
            asked = _Asked(self.operations, self._request(), self.floor)
        try:
            if asked.operation > 0:
                ticket = node.replica.write(asked.operation, asked.request, node.now)
            elif asked.operation == 0:
                ticket = node.replica.read("length", node.now)
            else:
                ticket = node.replica.open_client(node.now)
        except NotPrimary:
            return
        if asked.request is not None and asked not in self.open:
            self.open.append(asked)
        self.asked[id(node), ticket] = asked
        self._collect(node)

    def _request(self) -> Request | None:
        if not self.clients or self.draw.random() < 0.3:
            return None
        client = self.draw.choice(sorted(self.clients))
        self.clients[client] += 1
        return Request(client, self.clients[client])

    def _collect(self, node: _Node) -> None:
        self.flying += [(node, value) for value in node.replica.take_appends()]
        for settled in node.replica.take_settled():
            asked = self.asked.pop((id(node), settled.ticket), None)
            if asked is not None:
                self._answered(asked, settled)

    # -- what is promised

    def _answered(self, asked: _Asked, settled: Settled) -> None:
        if settled.answer is None:
            assert isinstance(settled.error, NotApplied)
            if asked.request is None and asked.operation > 0:  # with one it may have been sent elsewhere, too
                self.refused.add(asked.operation)
            return
        if settled.answer.unknown:
            raise Violation(f"{asked.request} is not known: {settled.answer.error}")
        if asked.operation < 0:
            self.clients[settled.answer.value] = 0
        elif asked.operation == 0:
            if settled.answer.value < asked.floor:
                raise Violation(f"a read tells of {settled.answer.value} operations, {asked.floor} were told of before")
            self.floor = max(self.floor, settled.answer.value)
        else:
            if asked in self.open:
                self.open.remove(asked)
            answer = (settled.answer.value, asked.floor)
            if self.acknowledged.setdefault(asked.operation, answer)[0] != answer[0]:
                raise Violation(f"operation {asked.operation} has two answers")

    def _check(self) -> None:
        reference = self.make("reference", "reference", random.Random(0))
        for offset, value in enumerate(self.log):
            reference.receive(offset, value, 0.0)
        order = _order(reference)
        for node in self.nodes:
            found = _order(node.replica)
            if found != order:
                raise Violation(f"{node.replica.node} has {found}, and the log is {order}")
        for operation, (before, floor) in self.acknowledged.items():
            if operation not in order:
                raise Violation(f"{operation} was acknowledged, and is lost")
            at = order.index(operation)
            if (order[at - 1] if at else 0) != before:
                raise Violation(f"{operation} was answered as after {before}, and is after {order[at - 1]}")
            if at < floor:
                raise Violation(f"{operation} was asked for when {floor} were told of, and is number {at}")
        if lied := self.refused & set(order):
            raise Violation(f"{lied} were told never to be carried out, and are")


def _order(replica: Replica) -> list[int]:
    service = replica.machine.service
    assert isinstance(service, Chain)
    return service.order


def violation(seed: int, make: MakeReplica, steps: int = 400) -> str:
    """What goes wrong with this seed; "" where all is as promised."""
    try:
        World(seed, make).run(steps)
    except (Violation, Unreadable) as error:
        return str(error)
    return ""


def terms(log: list[bytes]) -> int:
    """How many claims are in a log."""
    return sum(decode(offset, value).__class__.__name__ == "Claim" for offset, value in enumerate(log))
