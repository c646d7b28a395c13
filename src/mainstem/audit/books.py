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

from mainstem.client.reports import Report
from mainstem.core import TopicPartition
from mainstem.records.fingerprint import MODULUS


class Count(msgspec.Struct, frozen=True):
    """`count` records whose fingerprints sum to `hash` (modulo 2**64)."""

    count: int = 0
    hash: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.count + other.count, (self.hash + other.hash) % MODULUS)

    def __sub__(self, other: "Count") -> "Count":
        return Count(self.count - other.count, (self.hash - other.hash) % MODULUS)


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
    readers: Iterable[Report],
    known: Mapping[TopicPartition, Collection[str]] | None = None,
) -> list[Line]:
    """Compare every tier of every partition.

    Args:
        books: one scan per partition, with `at` filled for the readers' positions.
        before: the writers' statements read before the scan,
        after: and after it; where both agree, nothing was written meanwhile and the comparison is exact.
        readers: what the readers state, read before the scan.
        known: who should read a partition: a line says so where one of them has said nothing yet.
    """
    early, late = _by_partition(before), _by_partition(after)
    reports: dict[TopicPartition, dict[str, Report]] = {}
    for report in readers:
        reports.setdefault(TopicPartition(report.topic, report.partition), {})[report.reader] = report
    lines: list[Line] = []
    for book in sorted(books, key=lambda book: book.partition):
        lines.append(_offsets(book))
        if book.partition in late:
            lines.append(_writers(book, early.get(book.partition, {}), late[book.partition]))
        told = reports.get(book.partition, {})
        lines += [_reader(book, said) for _, said in sorted(told.items())]
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
        why = _difference(found.count - high.count)
        return Line(book.partition, "writer", names, Verdict.WRONG, high.count, found.count, why)
    inside = low.count <= found.count <= high.count
    verdict = Verdict.IN_FLIGHT if inside else Verdict.WRONG
    return Line(book.partition, "writer", names, verdict, high.count, found.count, "written to while counted")


def _difference(more: int) -> str:
    if more == 0:
        return "hashes differ"
    return f"{more} more than its writers count: twice, or another client's" if more > 0 else f"{-more} are missing"


def _reader(book: PartitionBooks, said: Report) -> Line:
    """Hold against the log what a reader says to have read."""
    reader, seen = said.reader, Count(said.count, said.hash)
    if said.end < book.start:
        detail = f"offsets {said.end} to {book.start} were deleted before it read them"
        return Line(book.partition, "reader", reader, Verdict.WRONG, book.start, said.end, detail)
    expected = book.at.get(min(said.end, book.end), book.data)
    gone = book.compacted + book.start  # offsets whose records it may have seen and we cannot any more
    balanced, detail = Verdict.BALANCED, f"{said.late} of them behind the watermark" if said.late else ""
    if gone:
        fits = expected.count <= seen.count <= expected.count + gone
        balanced, detail = Verdict.COMPACTED, "records were cleaned since"
    else:
        fits = seen == expected
    if not fits:
        why = "hashes differ" if seen.count == expected.count else f"up to offset {said.end}"
        return Line(book.partition, "reader", reader, Verdict.WRONG, expected.count, seen.count, why)
    if expected.count < book.data.count:
        behind = f"{book.data.count - expected.count} records to go"
        return Line(book.partition, "reader", reader, Verdict.IN_FLIGHT, expected.count, seen.count, behind)
    return Line(book.partition, "reader", reader, balanced, expected.count, seen.count, detail)
