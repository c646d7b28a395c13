"""What both kinds of replica are to the node that drives them: records and requests in, appends and outcomes out.

A replica does no I/O and knows no clock. Its node hands it every record of the partition in order (`receive`), the time
(`tick`), and what is asked (`write`, `read`, `open_client`: each gives a ticket); then it appends what is in `appends`
and tells whoever waits for a ticket what is in `settled`.
"""

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from mainstem.replicate.machine import Machine, MachineDump
from mainstem.replicate.records import Answer, Record, Request, decode, encode


class Settled(msgspec.Struct, frozen=True):
    """The outcome of a ticket: an answer that is in the log at `offset`, or an error.

    A replica that answers has carried out everything up to `offset`, included.
    """

    ticket: int
    answer: Answer | None
    offset: int
    error: Exception | None = None


class ReplicaDump(msgspec.Struct, frozen=True):
    """A replica's whole state; everything below `position` is in it."""

    kind: str
    position: int
    machine: MachineDump
    extra: dict[str, Any]


class Replica(ABC):
    """The state of one node, made of the records below `position`."""

    kind: str
    """In which of the ways the service is replicated; part of what is kept on the disk."""

    def __init__(self, node: str, author: str, machine: Machine) -> None:
        self.node, self.author = node, author
        self.machine = machine
        self.position = 0
        """The next offset to read."""
        self.live = False
        """Whether it takes part; before, it only reads."""
        self.appends: list[bytes] = []
        self.settled: list[Settled] = []
        self._tickets = 0

    @abstractmethod
    def write(self, operation: Any, request: Request | None, now: float) -> int:
        """Carry out an operation; the ticket is settled with its answer once it is in the log, for good.

        Raises:
            NotPrimary, TooLarge: it is not carried out.
        """

    @abstractmethod
    def read(self, question: Any, now: float) -> int:
        """Ask the service; the answer holds everything that was answered to anybody before this call.

        Raises:
            NotPrimary: ask the node that it names.
        """

    @abstractmethod
    def open_client(self, now: float) -> int:
        """Know a client more; the answer's value is its id.

        Raises:
            NotPrimary: ask the node that it names.
        """

    @abstractmethod
    def forget(self, ticket: int) -> None:
        """Nobody waits for this ticket any more."""

    def receive(self, offset: int, value: bytes | None, now: float) -> None:
        """The record at `offset` was read.

        Raises:
            Unreadable, Diverged: this replica cannot go on.
        """
        self._read(offset, decode(offset, value), now)
        self.position = offset + 1

    def reached(self, position: int) -> None:
        """Nothing is below `position` but what was received: markers of transactions and the like take offsets."""
        self.position = max(self.position, position)

    @abstractmethod
    def start(self, now: float) -> None:
        """What was in the log when the node started is read: from now on it takes part."""

    @abstractmethod
    def tick(self, now: float) -> bool:
        """Do what the time asks for; true if the node shall ask where the log ends, and tell `looked`."""

    @abstractmethod
    def looked(self, end: int | None, now: float) -> None:
        """Where the log ends; None where it did not say."""

    @abstractmethod
    def due(self) -> float:
        """When to call `tick` again if nothing happens before."""

    @abstractmethod
    def status(self, now: float) -> dict[str, Any]:
        """What people want to know."""

    def take_appends(self) -> list[bytes]:
        """What to append now, in this order."""
        appends, self.appends = self.appends, []
        return appends

    def take_settled(self) -> list[Settled]:
        """The outcomes since the last call."""
        settled, self.settled = self.settled, []
        return settled

    def dump(self) -> ReplicaDump:
        return ReplicaDump(self.kind, self.position, self.machine.dump(), self._dump())

    def load(self, dump: ReplicaDump) -> None:
        """Go on from a dump, before anything is received."""
        self.position = dump.position
        self.machine.load(dump.machine)
        self._load(dump.extra)

    @abstractmethod
    def _read(self, offset: int, record: Record, now: float) -> None: ...

    @abstractmethod
    def _dump(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load(self, extra: dict[str, Any]) -> None: ...

    def _append(self, record: Record) -> None:
        self.appends.append(encode(record))

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _settle(self, ticket: int, offset: int, answer: Answer | None, error: Exception | None = None) -> None:
        self.settled.append(Settled(ticket, answer, offset, error))
