"""The balance: what writers say they wrote = what the log holds = what every reader says it saw.

Offsets are not records. In a partition's span of offsets

    span = data + control + aborted + compacted

`data` are the records that a read_committed consumer gets, `control` the commit and abort markers, `aborted` the
records of aborted transactions, `compacted` the offsets whose records the cleaner has removed. So counts of offsets
never stand in for counts of records, and each of the four is counted on its own.

Beside each count stands the sum, modulo 2**64, of the fingerprints of the counted records
(`mainstem.records.fingerprint`): a loss and a duplicate that cancel out in the count show in the sum, in any order.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from mainstem.core import TopicPartition

MODULUS = 1 << 64


class Count(msgspec.Struct, frozen=True):
    """`count` records whose fingerprints sum to `hash` (modulo 2**64)."""

    count: int = 0
    hash: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.count + other.count, (self.hash + other.hash) % MODULUS)


class PartitionBooks(msgspec.Struct, frozen=True):
    """What one scan of a partition found in the offsets from `start` (included) to `end` (not included).

    `at` holds the running `data` at the offsets that were asked for: readers' positions.
    """

    partition: TopicPartition
    start: int
    end: int
    data: Count
    control: int
    aborted: int
    compacted: int
    at: Mapping[int, Count] = {}

    @property
    def accounted(self) -> int:
        return self.data.count + self.control + self.aborted + self.compacted


class WriterStatement(msgspec.Struct, frozen=True):
    """All that `writer` has committed to `partition` since it exists."""

    writer: str
    partition: TopicPartition
    written: Count


class ReaderStatement(msgspec.Struct, frozen=True):
    """What `reader` did with the records of `partition` from offset `start` (included) to `end` (not included).

    `hash` sums the fingerprints of all of them, whatever became of each.
    """

    reader: str
    partition: TopicPartition
    start: int
    end: int
    rows: int
    hash: int
    quarantined: int = 0
    tombstones: int = 0
    filtered: int = 0
    late: int = 0

    @property
    def seen(self) -> Count:
        return Count(self.rows + self.quarantined + self.tombstones + self.filtered + self.late, self.hash % MODULUS)

    def __add__(self, after: "ReaderStatement") -> "ReaderStatement":
        return ReaderStatement(
            self.reader,
            self.partition,
            self.start,
            after.end,
            self.rows + after.rows,
            (self.hash + after.hash) % MODULUS,
            self.quarantined + after.quarantined,
            self.tombstones + after.tombstones,
            self.filtered + after.filtered,
            self.late + after.late,
        )


class ReaderBook:
    """What a reader says of one partition, joined from its statements in the order in which it made them.

    A reader that was started again may read from offset 0 again, or from any place where it has been, and state that
    again: so the book keeps what was said up to every such place, and a later statement replaces an earlier one.

    Attributes:
        odd: the first statement that joins on to no other, and how far the ones before it had come.
    """

    def __init__(self, first: ReaderStatement) -> None:
        self.odd: tuple[int, ReaderStatement] | None = None
        nothing = ReaderStatement(first.reader, first.partition, 0, 0, 0, 0)
        self._up_to = {0: nothing, first.start: nothing}

    def add(self, statement: ReaderStatement) -> None:
        if statement.start not in self._up_to:
            if self.odd is None:
                self.odd = self.position, statement
            self._up_to[statement.start] = self._up_to[max(each for each in self._up_to if each < statement.start)]
        if statement.end > statement.start or statement.seen.count:
            self._up_to[statement.end] = self._up_to[statement.start] + statement

    @property
    def position(self) -> int:
        """The offset up to which it has come."""
        return max(self._up_to)

    @property
    def total(self) -> ReaderStatement:
        """All that it says, as one statement; its `start` does not count."""
        return self._up_to[self.position]


class Verdict(StrEnum):
    """What the audit says of one line."""

    BALANCED = "balanced"
    IN_FLIGHT = "in flight"  # a reader has more to read or has said nothing yet, or a writer wrote while we counted
    COMPACTED = "compacted"  # the cleaner removed records: counts agree as far as they still can
    WRONG = "WRONG"


class Line(msgspec.Struct, frozen=True):
    """One line of the books. `missing` is expected minus found: positive is loss, negative duplication."""

    partition: TopicPartition
    tier: str
    name: str
    verdict: Verdict
    expected: int
    found: int
    detail: str = ""

    @property
    def missing(self) -> int:
        return self.expected - self.found


def balance(
    books: Sequence[PartitionBooks],
    before: Iterable[WriterStatement],
    after: Iterable[WriterStatement],
    readers: Iterable[ReaderStatement],
    known: Mapping[TopicPartition, Collection[str]] | None = None,
) -> list[Line]:
    """Compare every tier of every partition.

    Args:
        books: one scan per partition, with `at` filled for the readers' positions.
        before: the writers' statements read before the scan,
        after: and after it; where both agree, nothing was written meanwhile and the comparison is exact.
        readers: the readers' statements, read before the scan, in the order in which they were made.
        known: who should read a partition: a line says so where one of them has said nothing yet.
    """
    early, late = _by_partition(before), _by_partition(after)
    reports: dict[TopicPartition, dict[str, list[ReaderStatement]]] = {}
    for statement in readers:
        reports.setdefault(statement.partition, {}).setdefault(statement.reader, []).append(statement)
    lines: list[Line] = []
    for book in sorted(books, key=lambda book: book.partition):
        lines.append(_offsets(book))
        if book.partition in late:
            lines.append(_writers(book, early.get(book.partition, {}), late[book.partition]))
        told = reports.get(book.partition, {})
        lines += [_reader(book, name, said) for name, said in sorted(told.items())]
        silent = set((known or {}).get(book.partition, ())) - told.keys() if book.data.count else ()
        nothing = f"it has said nothing yet: {book.data.count} records to go"
        lines += [Line(book.partition, "reader", name, Verdict.IN_FLIGHT, 0, 0, nothing) for name in sorted(silent)]
    return lines


def _by_partition(statements: Iterable[WriterStatement]) -> dict[TopicPartition, dict[str, Count]]:
    result: dict[TopicPartition, dict[str, Count]] = {}
    for statement in statements:
        result.setdefault(statement.partition, {})[statement.writer] = statement.written
    return result


def _total(written: Mapping[str, Count]) -> Count:
    return sum(written.values(), Count())


def _offsets(book: PartitionBooks) -> Line:
    span = book.end - book.start
    parts = f"{book.data.count} data + {book.control} control + {book.aborted} aborted + {book.compacted} compacted"
    verdict = Verdict.BALANCED if book.accounted == span else Verdict.WRONG
    return Line(book.partition, "log", "offsets", verdict, span, book.accounted, parts)


def _writers(book: PartitionBooks, early: Mapping[str, Count], late: Mapping[str, Count]) -> Line:
    low, high, found = _total(early), _total(late), book.data
    names = ", ".join(sorted(late))
    if book.compacted or book.start:
        fits = found.count <= high.count <= found.count + book.compacted + book.start
        verdict = Verdict.COMPACTED if fits else Verdict.WRONG
        return Line(book.partition, "writer", names, verdict, high.count, found.count, "records were cleaned since")
    if low == high:
        if found == high:
            return Line(book.partition, "writer", names, Verdict.BALANCED, high.count, found.count)
        why = "hashes differ" if found.count == high.count else "counts differ"
        return Line(book.partition, "writer", names, Verdict.WRONG, high.count, found.count, why)
    inside = low.count <= found.count <= high.count
    verdict = Verdict.IN_FLIGHT if inside else Verdict.WRONG
    return Line(book.partition, "writer", names, verdict, high.count, found.count, "written to while counted")


def _reader(book: PartitionBooks, reader: str, said: Sequence[ReaderStatement]) -> Line:
    """Join the reader's statements, in the order in which it made them, and hold them against the log."""
    joined = ReaderBook(said[0])
    for statement in said:
        joined.add(statement)
    if joined.odd is not None:
        position, statement = joined.odd
        word = "a gap" if statement.start > position else "an overlap"
        detail = f"{word}: it speaks of offsets {statement.start} to {statement.end} after {position}"
        return Line(book.partition, "reader", reader, Verdict.WRONG, position, statement.start, detail)
    if joined.position < book.start:
        detail = f"offsets {joined.position} to {book.start} were deleted before it read them"
        return Line(book.partition, "reader", reader, Verdict.WRONG, book.start, joined.position, detail)
    return _held_against(book, reader, joined.position, joined.total.seen)


def _held_against(book: PartitionBooks, reader: str, position: int, seen: Count) -> Line:
    """The line of a reader that has seen `seen` up to offset `position`."""
    expected = book.at.get(min(position, book.end), book.data)
    gone = book.compacted + book.start  # offsets whose records it may have seen and we cannot any more
    balanced, detail = Verdict.BALANCED, ""
    if gone:
        fits = expected.count <= seen.count <= expected.count + gone
        balanced, detail = Verdict.COMPACTED, "records were cleaned since"
    else:
        fits = seen == expected
    if not fits:
        why = "hashes differ" if seen.count == expected.count else f"up to offset {position}"
        return Line(book.partition, "reader", reader, Verdict.WRONG, expected.count, seen.count, why)
    if expected.count < book.data.count:
        behind = f"{book.data.count - expected.count} records to go"
        return Line(book.partition, "reader", reader, Verdict.IN_FLIGHT, expected.count, seen.count, behind)
    return Line(book.partition, "reader", reader, balanced, expected.count, seen.count, detail)
