"""What of a segment this process has appended lately: found in the page cache, it is what was written.

All else is checked when it is read, even if it is in the page cache: it may have left that meanwhile and come back from
the disk. So whoever is about to bring bytes back ends the trust in all that is there.
"""

import threading
from typing import Final

_SECONDS: Final = 100.0


class Trust:
    """Of one segment: where what was appended in the last minutes begins, by two marks, the older of which counts."""

    __slots__ = ("_before", "_ending", "_marked", "_marked_at", "floor", "size")

    def __init__(self, size: int) -> None:
        """Of a segment that has `size` bytes already, which this process has not checked."""
        self.floor = size
        """What begins below it is not trusted, however young it is."""
        self.size = size
        """What it has now, as it was told."""
        self._ending = threading.Lock()  # the loop, readers' threads and the writer's
        self._before = size
        self._marked = size
        self._marked_at: float | None = None

    def appended(self, size: int, now: float) -> None:
        """The segment has `size` bytes since now; told with each append."""
        self.size = size
        if self._marked_at is None:
            self._marked_at = now
        elif now - self._marked_at >= _SECONDS:
            self._before, self._marked, self._marked_at = self.begins(size, now), size, now

    def end(self, size: int) -> None:
        """Bytes of the segment, which has `size` now, may come back from the disk without being checked."""
        with self._ending:
            self.floor = max(self.floor, size)

    def begins(self, size: int, now: float) -> int:
        """What comes from this position on was appended less than five minutes ago; `size` where nothing was."""
        if self._marked_at is None or now - self._marked_at >= 2 * _SECONDS:
            return max(self.floor, size)
        return max(self.floor, self._before if now - self._marked_at < _SECONDS else self._marked)
