"""Every node carries out every operation, in the order of the log; any node takes requests.

The log holds what was asked for (a logical, or command, log). There is no leader: who appends waits until it reads its
own record back, and the answer is what its state says there.
"""

import math
import uuid
from collections.abc import Callable
from typing import Any

from mainstem.replicate.digests import Digests
from mainstem.replicate.errors import NotApplied, Unreadable
from mainstem.replicate.machine import Effect, Machine, Service
from mainstem.replicate.records import Answer, Barrier, Digest, Opening, Operation, Record, Request
from mainstem.replicate.replica import Replica

_MOST_AUTHORS = 1000  # runs of nodes; of more, the one that has not written for longest is forgotten


class StateMachine(Replica):
    """A replica that carries out operations.

    Args:
        node: its name, one of `nodes`.
        service: makes the service in its first state. What it does must follow from its state and the operation alone.
        nodes: how many nodes there are: more than half decide who has diverged.
        digest_every: operations between two digests; 0 for none.
        author: this run of the node; each run has another.
    """

    kind = "state-machine"

    def __init__(
        self,
        node: str,
        service: Callable[[], Service],
        *,
        nodes: int,
        digest_every: int = 100,
        author: str = "",
        **limits: int,
    ) -> None:
        super().__init__(node, author or f"{node}.{uuid.uuid4().hex[:8]}", Machine(service, **limits))
        self.digests = Digests(node, nodes, every=digest_every)
        self.operations = 0
        self._number = 0
        self._waiting: dict[int, tuple[int, Any]] = {}  # number -> ticket, and the question of a read
        self._numbers: dict[int, int] = {}  # ticket -> number
        self._authors: dict[str, int] = {}  # the last number of each; the one that wrote last is last

    def write(self, operation: Any, request: Request | None, now: float) -> int:
        return self._ask(lambda number: Operation(self.author, number, operation, request))

    def read(self, question: Any, now: float) -> int:
        return self._ask(lambda number: Barrier(self.author, number), question)

    def open_client(self, now: float) -> int:
        return self._ask(lambda number: Opening(self.author, number))

    def _ask(self, record: Callable[[int], Record], question: Any = None) -> int:
        self._append(record(self._number + 1))
        self._number += 1
        ticket = self._ticket()
        self._waiting[self._number] = (ticket, question)
        self._numbers[ticket] = self._number
        return ticket

    def forget(self, ticket: int) -> None:
        self._waiting.pop(self._numbers.pop(ticket, 0), None)

    def start(self, now: float) -> None:
        self.live = True

    def tick(self, now: float) -> bool:
        return False

    def looked(self, end: int | None, now: float) -> None:
        """Nobody is elected."""

    def due(self) -> float:
        return math.inf

    def status(self, now: float) -> dict[str, Any]:
        return {"role": "replica", "operations": self.operations, "disputed": self.digests.disputed}

    def _read(self, offset: int, record: Record, now: float) -> None:
        match record:
            case Operation():
                if self._is_next(offset, record):
                    self._carry_out(offset, record)
            case Opening():
                if self._is_next(offset, record):
                    self.machine.open_client(offset)
                    self._answer(record, offset, Answer(offset))
            case Barrier():
                if record.author == self.author and record.number in self._waiting:
                    self._answer(record, offset, self.machine.query(self._waiting[record.number][1]))
            case Digest():
                self.digests.read(record)
            case _:
                raise Unreadable(
                    f"offset {offset}: expected an operation, found a primary's record",
                    hint="all nodes of a topic replicate in the same way: state machine, or primary and backups",
                )

    def _is_next(self, offset: int, record: Operation | Opening) -> bool:
        """Whether it counts: a producer that got no answer sends again, and what comes twice is carried out once."""
        before = self._authors.pop(record.author, 0)
        self._authors[record.author] = max(before, record.number)
        if len(self._authors) > _MOST_AUTHORS:
            del self._authors[next(iter(self._authors))]
        if record.number > before:
            return True
        if record.author == self.author and record.number in self._waiting:  # it came after a later one
            ticket, _ = self._waiting.pop(record.number)
            self._numbers.pop(ticket)
            self._settle(ticket, offset, None, NotApplied(f"offset {offset}: overtaken by a later record of this node"))
        return False

    def _carry_out(self, offset: int, record: Operation) -> None:
        decided = self.machine.decide(record.operation, record.request)
        if isinstance(decided, Effect):
            self.machine.commit(decided)
        answer = decided.answer if isinstance(decided, Effect) else decided
        self.operations += 1
        self._answer(record, offset, answer)
        if self.digests.answered(offset, answer):
            digest = self.digests.take(self.machine.digest())
            if self.live:  # of what others have compared long ago nothing is said again
                self._append(digest)

    def _answer(self, record: Operation | Opening | Barrier, offset: int, answer: Answer) -> None:
        if record.author == self.author and record.number in self._waiting:
            ticket, _ = self._waiting.pop(record.number)
            self._numbers.pop(ticket)
            self._settle(ticket, offset, answer)

    def _dump(self) -> dict[str, Any]:
        return {"operations": self.operations, "authors": self._authors, "answers": self.digests.answers}

    def _load(self, extra: dict[str, Any]) -> None:
        self.operations, self._authors = extra["operations"], dict(extra["authors"])
        self.digests.answers = [(offset, hashed) for offset, hashed in extra["answers"]]
