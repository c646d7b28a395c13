"""One node, elected, carries out the operations and logs what they change; the others assign it.

The log holds the results (a physical log). The primary works on a copy that is ahead of the log; it is taken anew each
time that the node is elected, so that nothing of a term before is left in it. What everybody has, the primary included,
is made of accepted records alone, and only what is read back accepted is answered.
"""

import random
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from mainstem.replicate.election import Election, Lineage, Timing, Verdict, Wish
from mainstem.replicate.errors import NotApplied, NotPrimary, TooLarge, Unreadable
from mainstem.replicate.machine import Effect, Machine, Service, told
from mainstem.replicate.records import Admission, Answer, Beat, Claim, Led, Record, Request, Result, decode, encode
from mainstem.replicate.replica import Replica


class _Waiting(msgspec.Struct, frozen=True):
    """Who waits for a record of the primary's own term. `answer`, or else `question`, where the record has none."""

    ticket: int
    answer: Answer | None = None
    question: Any = None


class PrimaryBackup(Replica):
    """A replica that leads or follows.

    Args:
        node: its name; whoever asks a backup is told the primary's.
        service: makes the service in its first state.
        timing: how patient it is with a primary that says nothing.
        lineage: the readers' rule; another than the default is for tests and demonstrations.
        draw: its randomness.
        author: this run of the node; each run has another.
    """

    kind = "primary-backup"

    def __init__(
        self,
        node: str,
        service: Callable[[], Service],
        *,
        timing: Timing | None = None,
        lineage: Lineage | None = None,
        draw: random.Random | None = None,
        author: str = "",
        **limits: int,
    ) -> None:
        super().__init__(node, author or f"{node}.{uuid.uuid4().hex[:8]}", Machine(service, **limits))
        self.election = Election(self.author, timing or Timing(), draw or random.Random(), lineage)
        self.discarded = 0
        """Records that did not count: of primaries that were deposed, or sent twice."""
        self._ahead: Machine | None = None  # the primary's copy
        self._pending: dict[int, _Waiting] = {}  # by the sequence in the own term
        self._seqs: dict[int, int] = {}  # ticket -> sequence

    def write(self, operation: Any, request: Request | None, now: float) -> int:
        ahead = self._leading(now)
        decided = ahead.decide(operation, request)
        if isinstance(decided, Answer):
            # It rests on records that may not be accepted yet: it counts when this one is.
            return self._say(Beat, now, _Waiting(self._ticket(), answer=decided))
        return self._say(
            lambda term, seq: self._tried(ahead, Result(term, seq, *decided)), now, _Waiting(self._ticket())
        )

    def _tried(self, ahead: Machine, result: Result) -> Result:
        """What to append: what the copy has carried out. A result that no node can assign would stop all of them."""
        copied = False
        try:
            read = decode(self.position, encode(result))  # what everybody will read
            assert isinstance(read, Result)
            copied = True
            ahead.commit(Effect(read.answer, read.changes, read.request))
        except Exception as error:
            if isinstance(error, TooLarge) and not copied:
                raise
            # The copy may have half of it: another is taken when all that is on its way is read back.
            self._ahead = None
            return Result(result.term, result.seq, Answer(error=told(error)), None, result.request)
        return result

    def read(self, question: Any, now: float) -> int:
        self._leading(now)
        return self._say(Beat, now, _Waiting(self._ticket(), question=question))

    def open_client(self, now: float) -> int:
        self._leading(now)
        return self._say(Admission, now, _Waiting(self._ticket()))

    def _leading(self, now: float) -> Machine:
        if not self.election.leads(now) or self._ahead is None:
            primary = self.election.primary(now)
            raise NotPrimary("" if primary == self.node else primary)
        return self._ahead

    def _say(self, record: Callable[[int, int], Record], now: float, waiting: _Waiting) -> int:
        # Encoded first: one that is too large must leave no gap.
        election = self.election
        self._append(record(election.own_term, election.seq + 1))
        _, seq = election.next_record(now)
        self._pending[seq] = waiting
        self._seqs[waiting.ticket] = seq
        return waiting.ticket

    def forget(self, ticket: int) -> None:
        self._pending.pop(self._seqs.pop(ticket, 0), None)

    def start(self, now: float) -> None:
        self.live = True
        self.election.start(now)

    def tick(self, now: float) -> bool:
        if not self.live:
            return False
        match self.election.wish(now, self.position):
            case Wish.BEAT:
                self._append(Beat(*self.election.next_record(now)))
            case Wish.CLAIM:
                self._append(Claim(self.node, self.author))
            case Wish.LOOK:
                return True
            case Wish.NOTHING:
                pass
        return False

    def looked(self, end: int | None, now: float) -> None:
        self.election.looked(end, now)

    def due(self) -> float:
        return self.election.due()

    def status(self, now: float) -> dict[str, Any]:
        election = self.election
        return {
            "role": "primary" if election.leads(now) else "backup",
            "primary": election.primary(now),
            "term": election.lineage.hi,
            "seq": election.lineage.last,
            "pending": len(self._pending),
            "discarded": self.discarded,
        }

    def _read(self, offset: int, record: Record, now: float) -> None:
        if isinstance(record, Claim):
            self._lose(offset, f"offset {offset}: {record.node} is the primary now")
            if self.election.claim_read(offset, record.node, record.author, now):
                self._ahead = self.machine.clone()
        elif isinstance(record, Led):
            self._judge(offset, record, now)
        else:
            raise Unreadable(
                f"offset {offset}: expected a primary's record, found an operation",
                hint="all nodes of a topic replicate in the same way: state machine, or primary and backups",
            )

    def _judge(self, offset: int, record: Led, now: float) -> None:
        own = record.term == self.election.own_term
        verdict = self.election.record_read(offset, record.term, record.seq, now)
        if verdict is Verdict.ACCEPTED:
            self._apply(offset, record, own=own)
            if own:
                self._answer(offset, record)
                if self._ahead is None and record.seq == self.election.seq:
                    self._ahead = self.machine.clone()
        else:
            self.discarded += 1
            if own and verdict is Verdict.GAP:
                self._lose(offset, f"offset {offset}: a record before it was lost, and the term with it")

    def _apply(self, offset: int, record: Led, *, own: bool) -> None:
        if isinstance(record, Result):
            effect = Effect(record.answer, record.changes, record.request)
            self.machine.commit(effect)
            if self._ahead is not None and not own:  # only where nothing is fenced: others' results count as well
                self._ahead.commit(effect)
        elif isinstance(record, Admission):
            self.machine.open_client(offset)
            if self._ahead is not None:  # the id was not known before it was read back
                self._ahead.open_client(offset)

    def _answer(self, offset: int, record: Led) -> None:
        waiting = self._pending.pop(record.seq, None)
        if waiting is None:
            return
        del self._seqs[waiting.ticket]
        match record:
            case Result():
                answer = record.answer
            case Admission():
                answer = Answer(offset)
            case Beat():
                answer = waiting.answer or self.machine.query(waiting.question)
        self._settle(waiting.ticket, offset, answer)

    def _lose(self, offset: int, why: str) -> None:
        """The own term is over: what of it was not read so far will be accepted by nobody."""
        self._ahead = None
        for waiting in self._pending.values():
            self._settle(waiting.ticket, offset, None, NotApplied(why))
        self._pending, self._seqs = {}, {}

    def _dump(self) -> dict[str, Any]:
        lineage = self.election.lineage
        return {"hi": lineage.hi, "last": lineage.last, "dead": lineage.dead, "leader": self.election.leader}

    def _load(self, extra: dict[str, Any]) -> None:
        lineage = self.election.lineage
        lineage.hi, lineage.last, lineage.dead = extra["hi"], extra["last"], extra["dead"]
        self.election.leader = extra["leader"]
