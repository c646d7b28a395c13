"""How much memory the segments' look-ups may take: what a checkpoint has brought to their files may be left there."""

from collections.abc import Iterable

from mainstem.log.segment import Segment

MOST_BYTES = 128 * 2**20
"""Of all partitions: 20 bytes for each 4 KB of records (`index.interval.bytes`), or for each batch that is larger."""


class LookUps:
    """Which segments have theirs in memory, those used least lately first; on the event loop."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._sizes: dict[Segment, int] = {}
        self.size_bytes = 0

    def used(self, segment: Segment) -> None:
        """Somebody looks something up in the segment, or it has more than before; others may have to leave for that."""
        if segment.retired:  # `forget` was told; somebody still reads it
            return
        self._put(segment)
        if self.size_bytes > self._most:
            for other in list(self._sizes):
                if other is not segment:
                    self._leave(other)
                if self.size_bytes <= self._most:
                    return

    def forget(self, segments: Iterable[Segment]) -> None:
        """They are retired."""
        for segment in segments:
            self.size_bytes -= self._sizes.pop(segment, 0)

    def _leave(self, segment: Segment) -> None:
        segment.unload_indexes()
        size = segment.look_up_bytes
        self.size_bytes += size - self._sizes.pop(segment)
        if size:  # not in its file yet
            self._sizes[segment] = size

    def _put(self, segment: Segment) -> None:
        size = segment.look_up_bytes
        self.size_bytes += size - self._sizes.pop(segment, 0)
        self._sizes[segment] = size
