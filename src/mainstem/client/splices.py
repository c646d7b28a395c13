"""Where a splice is, and its books: what it keeps in `__mainstem.sources` under `splice:<name>`, beside what it wrote.

    other + what was read of all parts = what it has written to its topic

A part is a piece of the output of one version that is passed on as it is; `other` are the rows by which two versions of
a table differ, and what was written before there were books.
"""

import msgspec

from mainstem.client.progress import Read, Written

MOST_PARTS = 50  # that are over; of the older ones the counts alone are kept, in `other`


class Pending(msgspec.Struct, frozen=True):
    """The version that comes, its topic, and from where on that is passed on, once the rows that differ are written: so
    many are by now. `since_ms`: of the cutover. Whoever goes on with those rows takes the end of then for `offsets`.
    """

    version: str
    output: str
    offsets: dict[int, int]
    since_ms: int
    written: int = 0


class Part(msgspec.Struct, frozen=True):
    """What was passed on of the topic of a version, by partition."""

    version: str
    output: str
    read: dict[int, Read]


class At(msgspec.Struct, frozen=True):
    """How far a splice is: of the topic of a version up to `offsets`; then, where there is one, the move.

    Attributes:
        read: what was passed on of that topic, by partition, from where the splice began with it; None in states of
            before there were books.
        parts: those that are over.
        other: what it has written besides.
    """

    version: str
    output: str
    offsets: dict[int, int]
    move: Pending | None = None
    read: dict[int, Read] | None = None
    parts: list[Part] = []
    other: Written = Written()

    def with_books(self, written: Written) -> "At":
        """The same with books that begin now, unless it has some.

        Args:
            written: all that the splice has written.
        """
        if self.read is not None:
            return self
        return msgspec.structs.replace(self, read=unread(self.offsets), other=written)

    def then(self, version: str, output: str, offsets: dict[int, int]) -> "At":
        """From here on the output of another version, from `offsets` on."""
        parts = [*self.parts, Part(self.version, self.output, self.read or {})]
        old, parts = parts[:-MOST_PARTS], parts[-MOST_PARTS:]
        other = sum((counted(each.read) for each in old), self.other)
        return At(version, output, offsets, read=unread(offsets), parts=parts, other=other)

    @property
    def told(self) -> Written:
        """What it has written, by the books of what it has read."""
        return sum((counted(each.read) for each in self.parts), self.other) + counted(self.read or {})


def source_name(splice: str) -> str:
    """Under which name a splice keeps its position and its books, beside those of sources."""
    return f"splice:{splice}"


def unread(offsets: dict[int, int]) -> dict[int, Read]:
    """Books that begin at `offsets`."""
    return {partition: Read(start=offset, end=offset) for partition, offset in offsets.items()}


def counted(read: dict[int, Read]) -> Written:
    """The records of all partitions."""
    return sum((Written(each.count, each.hash) for each in read.values()), Written())
