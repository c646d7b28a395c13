"""Where every node carries out every operation: do they all come to the same state?

After every so many operations each node appends a digest of its state and of its answers since the one before, and
compares what others say of the same offset with its own. Whoever disagrees with more than half of all nodes has
diverged; where no half can agree any more, nobody knows who is right, and all have.
"""

from collections import Counter
from hashlib import blake2b
from typing import Any

import msgspec

from mainstem.replicate.errors import Diverged
from mainstem.replicate.records import Answer, Digest

_KEPT = 64  # offsets that others may still speak of


class _Own(msgspec.Struct, frozen=True):
    digest: Digest
    offsets: tuple[int, ...]  # of the operations that its answers are of


class Digests:
    """What one node has come to, and what others say of it.

    Args:
        node: this one.
        nodes: how many there are.
        every: how many operations lie between two digests; 0 for none.
    """

    def __init__(self, node: str, nodes: int, *, every: int) -> None:
        self.disputed: int = -1
        """The last offset of which another node says something else, with no half that agrees so far; -1: none."""
        self.answers: list[tuple[int, str]] = []
        """Offset and hash of each answer since the last digest."""
        self._node, self._nodes, self._every = node, nodes, every
        self._own: dict[int, _Own] = {}
        self._others: dict[int, dict[str, Digest]] = {}

    def answered(self, offset: int, answer: Answer) -> bool:
        """An operation was carried out; true if a digest is due."""
        if not self._every:
            return False
        hashed = blake2b(msgspec.json.encode(answer, order="sorted"), digest_size=4).hexdigest()
        self.answers.append((offset, hashed))
        return len(self.answers) >= self._every

    def take(self, state: str) -> Digest:
        """This node's digest after the last operation, to be appended.

        Raises:
            Diverged: others have said something else.
        """
        offsets, hashes = zip(*self.answers, strict=True)
        digest = Digest(self._node, offsets[-1], state, list(hashes))
        self.answers = []
        self._own[digest.offset] = _Own(digest, offsets)
        _forget(self._own)
        self._compare(digest.offset)
        return digest

    def read(self, digest: Digest) -> None:
        """Another node's digest was read, or this one's of an earlier run.

        Raises:
            Diverged: more than half of the nodes say something else than this one, or no half can agree.
        """
        if digest.node != self._node:
            self._others.setdefault(digest.offset, {})[digest.node] = digest
            _forget(self._others)
            self._compare(digest.offset)

    def _compare(self, offset: int) -> None:
        own = self._own.get(offset)
        others = self._others.get(offset, {})
        if own is None or all(_same(each, own.digest) for each in others.values()):
            if own is not None and self.disputed == offset:
                self.disputed = -1
            return
        said = Counter((each.state, tuple(each.answers)) for each in (own.digest, *others.values()))
        (most, agree), more_than_half = said.most_common(1)[0], self._nodes // 2 + 1
        if agree >= more_than_half:
            if most == (own.digest.state, tuple(own.digest.answers)):
                self.disputed = -1
                return
            raise _diverged(own, next(each for each in others.values() if (each.state, tuple(each.answers)) == most))
        if agree + self._nodes - sum(said.values()) < more_than_half:
            raise _diverged(own, next(each for each in others.values() if not _same(each, own.digest)))
        self.disputed = offset


def _same(one: Digest, other: Digest) -> bool:
    return one.state == other.state and one.answers == other.answers


def _forget(kept: dict[int, Any]) -> None:
    while len(kept) > _KEPT:
        del kept[next(iter(kept))]


def _diverged(own: _Own, other: Digest) -> Diverged:
    """The first answer that differs tells the operation; states that differ without it are known to the digest only."""
    pairs = zip(own.offsets, own.digest.answers, other.answers, strict=False)
    first = next((offset for offset, mine, theirs in pairs if mine != theirs), -1)
    where = (
        f"the operation at offset {first}" if first >= 0 else f"the operations {own.offsets[0]} to {own.offsets[-1]}"
    )
    return Diverged(
        f"{where}: expected state {other.state} after offset {other.offset}, as {other.node} says, found {own.digest.state}",
        offset=first,
    )
