"""Who leads, by claims in the log alone: no group, no lock, no clock that nodes would have to agree on.

    offset   7 claim n1 | 8 (7,1) | 9 (7,2) | 10 claim n2 | 11 (7,3) | 12 (10,1) | 13 (10,3) | 14 (10,4)
    hi       7            7         7         10            10         10          10          10
                          accepted  accepted                stale      accepted    gap         dead

`Lineage` is the rule of every reader: the term is the offset of the newest claim, and a record (term, seq) is accepted
if it is of this term and the one that comes next. All read the same log, so all accept the same records. `Election` is
one node's part: when to claim, when to say that it is there. Neither does I/O; the time is passed in.
docs/decisions/replication.md says why it is safe.
"""

import math
import random
from enum import Enum, auto

import msgspec

from mainstem.replicate.errors import Unreadable


class Verdict(Enum):
    """What a reader does with a primary's record."""

    ACCEPTED = auto()
    STALE = auto()
    """Of a term before: its writer was deposed when it arrived."""
    DUPLICATE = auto()
    """The producer sent it again."""
    GAP = auto()
    """One before it was lost. What follows may be computed on it: the term has ended here."""
    DEAD = auto()
    """After a gap of its term."""


class Lineage:
    """Which records count: the same for every reader of the log.

    Args:
        fenced: False takes records of earlier terms, too. That loses updates: it is for tests and demonstrations of
            what a term is good for, and for nothing else.
    """

    def __init__(self, *, fenced: bool = True) -> None:
        self.fenced = fenced
        self.hi = -1
        """The newest claim's offset: the term."""
        self.last = 0
        """The sequence of the last accepted record of the term."""
        self.dead = False
        """Nothing of this term is accepted any more."""

    def claim(self, offset: int) -> None:
        """A claim was read: a new term begins."""
        self.hi, self.last, self.dead = offset, 0, False

    def judge(self, offset: int, term: int, seq: int) -> Verdict:
        """What to do with the record (term, seq) that was read at `offset`.

        Raises:
            Unreadable: no claim has this term. A primary reads its claim before it writes: this is another log.
        """
        if term > self.hi:
            raise Unreadable(
                f"offset {offset}: expected a term up to {self.hi}, found {term}: its claim is not in this log"
            )
        if term < self.hi:
            return Verdict.STALE if self.fenced else Verdict.ACCEPTED
        if self.dead:
            return Verdict.DEAD
        if seq <= self.last:
            return Verdict.DUPLICATE
        if seq > self.last + 1:
            self.dead = True
            return Verdict.GAP
        self.last = seq
        return Verdict.ACCEPTED


class Timing(msgspec.Struct, frozen=True):
    """When a primary says that it is there, and how long others hear nothing before they claim: safe whatever it is.

    `jitter_seconds` is added at random to the silence, so that seldom two claim at once.
    """

    heartbeat_seconds: float = 0.3
    silence_seconds: float = 1.5
    jitter_seconds: float = 1.0


class Wish(Enum):
    """What a node wants to do now."""

    NOTHING = auto()
    BEAT = auto()
    LOOK = auto()
    """Ask how far the log goes: a node that was asleep first reads what was written meanwhile."""
    CLAIM = auto()


class Election:
    """One node's part: hand it what is read, and ask what to do.

    Args:
        author: this run of the node; a claim by it is ours.
        timing: how patient it is.
        draw: its randomness.
        lineage: the readers' rule.

    Times are seconds of a clock that never runs backwards.
    """

    def __init__(self, author: str, timing: Timing, draw: random.Random, lineage: Lineage | None = None) -> None:
        self.lineage = lineage or Lineage()
        self.leader = ""
        """The node of the newest claim."""
        self.own_term = -1
        """The term that this node leads; -1 where it leads none."""
        self.seq = 0
        """The last one that it has given, in its own term."""
        self._author, self._timing, self._draw = author, timing, draw
        self._heard = self._said = -math.inf
        self._patience = 0.0
        self._again = -math.inf  # when to look again, where the log did not answer
        self._asked = False
        self._end: int | None = None  # where the log ended when we looked

    def start(self, now: float) -> None:
        """The log is read so far: from now on the silence of a primary counts."""
        self._hear(now)
        if self.lineage.hi < 0:  # nobody has ever led: there is no one to wait for
            self._patience = self._timing.jitter_seconds * self._draw.random()

    def claim_read(self, offset: int, node: str, author: str, now: float) -> bool:
        """A claim was read; true if it is ours: everything before it is read, and this node leads."""
        self.lineage.claim(offset)
        self.leader = node
        self.own_term = offset if author == self._author else -1
        self.seq = 0
        self._hear(now)
        self._said = now - self._timing.heartbeat_seconds  # a new primary says so at once
        return self.own_term >= 0

    def record_read(self, offset: int, term: int, seq: int, now: float) -> Verdict:
        """A primary's record was read; the caller applies what is accepted."""
        verdict = self.lineage.judge(offset, term, seq)
        if verdict is Verdict.ACCEPTED:
            self._hear(now)
        elif verdict is Verdict.GAP:
            self.leader = ""
            if term == self.own_term:
                self.own_term = -1
                self._patience = 0.0  # we are there, and know first that nobody leads
        return verdict

    def leads(self, now: float) -> bool:
        """Whether to take requests: it has read its claim and no later one, and its records come back."""
        return self.own_term >= 0 and now - self._heard < self._timing.silence_seconds

    def primary(self, now: float) -> str:
        """The node that takes requests, as far as is known; "" where nothing was heard for too long."""
        return self.leader if now - self._heard < self._timing.silence_seconds else ""

    def next_record(self, now: float) -> tuple[int, int]:
        """Term and sequence of the record that is appended now; only where it leads."""
        assert self.own_term >= 0, "only a primary gives sequences"
        self.seq += 1
        self._said = now
        return self.own_term, self.seq

    def wish(self, now: float, position: int) -> Wish:
        """What to do now; `position` is the next offset to read. Do it, then ask again at `due`."""
        if now >= self._succeeds_at():
            return self._succeed(now, position)
        # What is on its way says it, too.
        if self.own_term >= 0 and self.seq == self.lineage.last and now >= self._said + self._timing.heartbeat_seconds:
            return Wish.BEAT
        return Wish.NOTHING

    def _succeed(self, now: float, position: int) -> Wish:
        if not self._asked:
            self._asked = True
            return Wish.LOOK
        if self._end is None or position < self._end:
            return Wish.NOTHING
        self._hear(now)  # patient again, until the claim comes back
        return Wish.CLAIM

    def looked(self, end: int | None, now: float) -> None:
        """How far the log goes; None where it did not say: ask again."""
        if end is None:
            self._asked = False
            self._again = now + self._timing.heartbeat_seconds
        else:
            self._end = end

    def due(self) -> float:
        """When `wish` may have something new, without anything being read or answered."""
        succeed = math.inf if self._asked else self._succeeds_at()
        speaks = self.own_term >= 0 and self.seq == self.lineage.last
        return min(succeed, self._said + self._timing.heartbeat_seconds) if speaks else succeed

    def _succeeds_at(self) -> float:
        return max(self._heard + self._patience, self._again)

    def _hear(self, now: float) -> None:
        self._heard = now
        self._patience = self._timing.silence_seconds + self._timing.jitter_seconds * self._draw.random()
        self._again, self._asked, self._end = -math.inf, False, None
