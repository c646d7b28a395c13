"""Leader epochs of a partition: from which offset each was the leader's (KIP-101, KIP-320)."""

from bisect import bisect_right
from operator import itemgetter

NO_EPOCH = -1

_ENDLESS = 2**63


def epoch_at(known: tuple[tuple[int, int], ...], offset: int) -> tuple[int, int]:
    """Of a batch that begins at `offset`: its epoch, and the offset where the next epoch begins.

    A batch may begin before the log start offset, where the first epoch that is still known begins by now.
    """
    place = max(1, bisect_right(known, offset, key=itemgetter(1)))
    return known[place - 1][0], known[place][1] if place < len(known) else _ENDLESS


class LeaderEpochs:
    """Pairs (epoch, first offset), both rising."""

    __slots__ = ("_epochs", "_known", "_starts")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._known: tuple[tuple[int, int], ...] | None = None
        for epoch, start in entries or []:
            self.assign(epoch, start)

    def entries(self) -> list[tuple[int, int]]:
        """Each epoch and its first offset, in order."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def known(self) -> tuple[tuple[int, int], ...]:
        """`entries` as they are now, for who reads in a thread."""
        if self._known is None:
            self._known = tuple(self.entries())
        return self._known

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that batches from `start_offset` on are of `epoch`; nothing to do for the latest one."""
        if self._epochs and epoch <= self._epochs[-1]:
            return
        self._known = None
        while self._starts and self._starts[-1] >= start_offset:  # an epoch in which nothing was appended
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    def truncate_after(self, end_offset: int) -> None:
        """Forget epochs that begin at `end_offset` or later."""
        self._known = None
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()

    def truncate_before(self, start_offset: int) -> None:
        """Forget epochs that end at or before `start_offset`; the one that holds it then starts there."""
        self._known = None
        while len(self._starts) > 1 and self._starts[1] <= start_offset:
            del self._epochs[0], self._starts[0]
        if self._starts and self._starts[0] < start_offset:
            self._starts[0] = start_offset

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch at or below `epoch`, and the offset where the next larger one begins.

        With epochs 1 from 0 and 4 from 10, and log end offset 15: 1 gives (1, 10), 3 gives (1, 10), 4 gives (4, 15),
        0 gives (0, 0): what was of epoch 0 ends where 1 begins; 5 gives (-1, -1): it is not known here;
        neither is -1, which is no epoch, but -2 gives (-2, 0), as in Kafka.
        """
        if not self._epochs or epoch == NO_EPOCH or epoch > self._epochs[-1]:
            return (NO_EPOCH, -1)
        if epoch < self._epochs[0]:
            return (epoch, self._starts[0])
        place = bisect_right(self._epochs, epoch)
        end = self._starts[place] if place < len(self._starts) else log_end_offset
        return (self._epochs[place - 1], end)
