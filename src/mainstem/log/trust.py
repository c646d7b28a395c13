"""What of a segment this process has appended lately: found in the page cache, it is what was written.

All else is checked when it is read, even if it is in the page cache: it may have left that meanwhile and come back from
the disk.
"""

from typing import Final

_SECONDS: Final = 100.0


class Trust:
    """Of one segment: where what was appended in the last minutes begins, by two marks, the older of which counts."""

    __slots__ = ("_before", "_marked", "_marked_at")

    def __init__(self) -> None:
        self._before = 0
        self._marked = 0
        self._marked_at: float | None = None

    def appended(self, before: int, size: int, now: float) -> None:
        """The segment had `before` bytes at first, and has `size` since now; told with each append."""
        if self._marked_at is None:
            self._before, self._marked, self._marked_at = before, before, now
        elif now - self._marked_at >= _SECONDS:
            self._before, self._marked, self._marked_at = self.begins(size, now), size, now

    def begins(self, size: int, now: float) -> int:
        """What comes from this position on was appended less than five minutes ago; `size` where nothing was."""
        if self._marked_at is None or now - self._marked_at >= 2 * _SECONDS:
            return size
        return self._before if now - self._marked_at < _SECONDS else self._marked
