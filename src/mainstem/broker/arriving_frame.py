"""A frame that has arrived in part, in a buffer of its own.

Its room is what has arrived until there is room for all of it in the budget of requests; then it grows as its bytes
arrive: four bytes that announce a hundred megabytes get room for what was sent. From here to the file nothing is copied
but by growing.
"""

from typing import Final

FIRST_GROWTH: Final = 1_048_576  # bytes; producers' requests are no larger, as clients have it
_GROWTH: Final = 4  # times what has arrived


class ArrivingFrame:
    """What has arrived of a frame of `size` bytes, which are `filled`, and `room` for some more."""

    __slots__ = ("_view", "filled", "may_grow", "room", "size")

    def __init__(self, size: int, begun: memoryview) -> None:
        """`begun` is there already, and is copied."""
        self.size = size
        self.filled = len(begun)
        self.may_grow = False
        """There is room for all of it."""
        self.room = bytearray(begun)
        self._view = memoryview(self.room)

    @property
    def missing(self) -> int:
        """Bytes that have been announced and have not arrived."""
        return self.size - self.filled

    @property
    def is_full(self) -> bool:
        """What comes next has no room yet."""
        return self.filled == len(self.room)

    @property
    def free(self) -> memoryview:
        """Where what comes next belongs."""
        assert not self.is_full, "nothing is read before there is room for it"
        return self._view[self.filled :]

    def grow(self) -> None:
        """Make room for what comes next."""
        arrived = self.room  # the transport still has a view of it, so it cannot be resized
        self.room = bytearray(min(self.size, max(FIRST_GROWTH, _GROWTH * len(arrived))))
        self.room[: len(arrived)] = arrived
        self._view = memoryview(self.room)
