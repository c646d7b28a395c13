"""The books of splices: what each has passed on of the outputs of versions is what these hold between its positions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from mainstem.audit.books import Count, Line, PartitionBooks, Verdict
from mainstem.client.progress import Read, Written
from mainstem.client.splices import At, Part
from mainstem.core import TopicPartition


class SpliceBooks(msgspec.Struct, frozen=True):
    """A splice as its state says, which was written with its records.

    Attributes:
        name: of it, and of its topic.
        at: with books.
        written: all that it has written to its topic.
        current: the version that it is to pass on.
    """

    name: str
    at: At
    written: Written
    current: str

    @property
    def parts(self) -> list[Part]:
        """What it has passed on, and last what it passes on now."""
        return [*self.at.parts, Part(self.at.version, self.at.output, self.at.read or {})]

    def positions(self) -> Iterator[tuple[TopicPartition, int]]:
        """Where the running counts of a scan are asked for."""
        for part in self.parts:
            for partition, read in part.read.items():
                yield TopicPartition(part.output, partition), read.start
                yield TopicPartition(part.output, partition), read.end


def splice_lines(scans: Sequence[PartitionBooks], splices: Iterable[SpliceBooks]) -> list[Line]:
    """A line for each partition that a splice passes on, or has passed on before its readers were moved.

    Args:
        scans: of the partitions, with `at` filled for the `positions`.
        splices: as they said before the scan.
    """
    found: Mapping[TopicPartition, PartitionBooks] = {each.partition: each for each in scans}
    lines = []
    for splice in splices:
        parts = splice.parts
        for part, after in zip(parts, [*parts[1:], None], strict=True):
            for partition, read in sorted(part.read.items()):
                book = found.get(TopicPartition(part.output, partition))
                if book is not None:
                    lines.append(_line(book, splice, read, after))
    return lines


def _line(book: PartitionBooks, splice: SpliceBooks, read: Read, after: Part | None) -> Line:
    """Hold against the log what was passed on of a partition; `after`: what is passed on since, None: this still is."""
    start, end = min(read.start, book.end), min(read.end, book.end)
    upto = book.at.get(end, book.data) if end >= book.start else Count()
    seen, expected = (
        Count(read.count, read.hash),
        upto - (book.at.get(start, book.data) if start >= book.start else Count()),
    )

    def line(verdict: Verdict, detail: str) -> Line:
        return Line(book.partition, "reader", f"splice {splice.name}", verdict, expected.count, seen.count, detail)

    if after is None and end < book.start:
        return line(Verdict.WRONG, f"offsets {end} to {book.start} were deleted before it read them")
    gone = book.compacted + max(0, book.start - start)  # offsets whose records it may have seen and we cannot any more
    if not (expected.count <= seen.count <= expected.count + gone if gone else seen == expected):
        why = "hashes differ" if seen.count == expected.count else f"of the offsets {start} to {end}"
        return line(Verdict.WRONG, why)
    if after is not None:
        return line(Verdict.COMPACTED if gone else Verdict.BALANCED, f"passed on until version {after.version} was")
    told = splice.at.told
    if told != splice.written:
        return line(
            Verdict.WRONG, f"by what it has read it has written {told.count} records, and says {splice.written.count}"
        )
    if upto.count < book.data.count:
        return line(Verdict.IN_FLIGHT, f"{book.data.count - upto.count} records to go")
    if splice.at.version != splice.current:
        return line(Verdict.IN_FLIGHT, f"it has not followed the cutover to version {splice.current}")
    return line(Verdict.COMPACTED if gone else Verdict.BALANCED, "records were cleaned since" if gone else "")
