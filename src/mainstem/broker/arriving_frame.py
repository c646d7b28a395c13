"""A frame that has arrived in part, in a buffer of its own.

Its room grows as its bytes arrive: four bytes that announce a hundred megabytes get room for what was sent. From here
to the file nothing is copied but by growing, which is why a large frame does not grow in small steps.
"""

from typing import Final

FIRST_ROOM: Final = 4_096
"""Bytes. Who sends little, slowly, is to hold little."""
_GROWTH: Final = 4  # times what has arrived: a frame of a megabyte grows twice


class ArrivingFrame:
    """What has arrived of a frame of `size` bytes, which are `filled`, and `room` for some more."""

    __slots__ = ("_view", "filled", "room", "size")

    def __init__(self, size: int, begun: memoryview, more: int) -> None:
        """`begun` is there already, and is copied; `more`: bytes that it has room for beyond the first."""
        self.size = size
        self.filled = len(begun)
        self.room = bytearray(min(size, self.filled + max(FIRST_ROOM, more)))
        self._view = memoryview(self.room)
        self._view[: self.filled] = begun

    @property
    def missing(self) -> int:
        """Bytes that have been announced and have not arrived."""
        return self.size - self.filled

    @property
    def free(self) -> memoryview:
        """Where what comes next belongs."""
        assert self.filled < len(self.room), "nothing is read before there is room for it"
        return self._view[self.filled :]

    @property
    def least_growth(self) -> int:
        """Bytes that a frame whose room is used up needs before more of it is read; 0 while there is room."""
        if self.filled < len(self.room):
            return 0
        return min(self.size - len(self.room), max(FIRST_ROOM, len(self.room) // _GROWTH))

    @property
    def most_growth(self) -> int:
        """Bytes that are of use to it next."""
        return min(self.size, _GROWTH * len(self.room)) - len(self.room)

    def grow(self, more: int) -> None:
        """Make room for so many bytes more."""
        arrived = self.room  # the transport still has a view of it, so it cannot be resized
        self.room = bytearray(len(arrived) + more)
        self.room[: len(arrived)] = arrived
        self._view = memoryview(self.room)
