"""Replicas that leave out one rule each. The checkers must find all of them."""

import random
from collections.abc import Callable
from typing import Any

from mainstem.replicate.election import Lineage, Timing, Verdict
from mainstem.replicate.primary_backup import PrimaryBackup
from mainstem.replicate.records import Answer, Claim, Record, Request, Result, decode
from tests.replicate.simulation import Chain, MakeReplica

TIMING = Timing(0.3, 1.0, 1.0)


class NoSequence(Lineage):
    """Takes what the producer sent again."""

    def judge(self, offset: int, term: int, seq: int) -> Verdict:
        verdict = super().judge(offset, term, seq)
        return Verdict.ACCEPTED if verdict is Verdict.DUPLICATE else verdict


class NoGap(Lineage):
    """Goes on after a lost record."""

    def judge(self, offset: int, term: int, seq: int) -> Verdict:
        verdict = super().judge(offset, term, seq)
        if verdict is Verdict.GAP:
            self.dead, self.last = False, seq
            return Verdict.ACCEPTED
        return verdict


class AnswersWhenSent(PrimaryBackup):
    """Acknowledges before the record is read back."""

    def write(self, operation: Any, request: Request | None, now: float) -> int:
        ticket = super().write(operation, request, now)
        record = decode(0, self.appends[-1])
        if isinstance(record, Result):
            self._settle(ticket, 0, record.answer)
        return ticket


class LeadsWhenSent(PrimaryBackup):
    """Leads as soon as its claim is in the log, without reading what is before it."""

    def delivered(self, offset: int, value: bytes, now: float) -> None:
        record = decode(offset, value)
        if isinstance(record, Claim) and record.author == self.author:
            self.election.own_term, self.election.seq = offset, 0
            self.election._heard = now
            self._ahead = self.machine.clone()

    def _read(self, offset: int, record: Record, now: float) -> None:
        if isinstance(record, Claim) and record.author == self.author and offset == self.election.own_term:
            self.election.lineage.claim(offset)
        else:
            super()._read(offset, record, now)


class ReadsAtOnce(PrimaryBackup):
    """Answers reads from what it has, as long as it believes that it leads."""

    def read(self, question: Any, now: float) -> int:
        self._leading(now)
        ticket = self._ticket()
        self._settle(ticket, 0, self.machine.query(question))
        return ticket


class KeepsItsCopy(PrimaryBackup):
    """Goes on, when it is elected again, with what it had computed before."""

    def _read(self, offset: int, record: Record, now: float) -> None:
        before = self._ahead
        super()._read(offset, record, now)
        self._ahead = self._ahead and (before or self._ahead)


class AnswersRepeatsAtOnce(PrimaryBackup):
    """Answers what it has carried out before without waiting until that is read back."""

    def write(self, operation: Any, request: Request | None, now: float) -> int:
        ahead = self._leading(now)
        decided = ahead.decide(operation, request)
        if isinstance(decided, Answer):
            ticket = self._ticket()
            self._settle(ticket, 0, decided)
            return ticket
        return super().write(operation, request, now)


def made(kind: type[PrimaryBackup] = PrimaryBackup, lineage: Callable[[], Lineage] = Lineage) -> MakeReplica:
    def make(node: str, author: str, draw: random.Random) -> PrimaryBackup:
        return kind(node, Chain, timing=TIMING, lineage=lineage(), draw=draw, author=author)

    return make


MUTANTS = {
    "no fence": made(lineage=lambda: Lineage(fenced=False)),
    "no sequence": made(lineage=NoSequence),
    "no gap rule": made(lineage=NoGap),
    "acknowledges when sent": made(AnswersWhenSent),
    "leads before its claim is read": made(LeadsWhenSent),
    "reads without a barrier": made(ReadsAtOnce),
    "keeps its copy": made(KeepsItsCopy),
    "answers repeats at once": made(AnswersRepeatsAtOnce),
}
