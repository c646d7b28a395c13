"""What is said of a splice, from its books and a scan. Whole splices are in tests/process/test_splice."""

import msgspec
import pytest

from mainstem.audit.books import Count, PartitionBooks, Verdict
from mainstem.audit.splices import SpliceBooks, splice_lines
from mainstem.client.progress import Read, Written
from mainstem.client.splices import At, Part
from mainstem.core import TopicPartition

NOTHING = Written()


def scanned(*hashes, start=0, compacted=0):
    """Records at the offsets from `start` on, of partition 0 of topic `a`, with the running count at each."""
    counts = [sum((Count(1, each) for each in hashes[:number]), Count()) for number in range(len(hashes) + 1)]
    end = start + len(hashes) + compacted
    at = {start + number: count for number, count in enumerate(counts)}
    return PartitionBooks(TopicPartition("a", 0), start, end, counts[-1], 0, 0, compacted, at)


def spliced(rows, total, *, start=0, end=None, parts=(), other=NOTHING, current="1", written=None):
    """A splice that has passed on `rows` records of topic `a` whose fingerprints are `total` in sum."""
    read = {0: Read(start=start, end=start + rows if end is None else end, rows=rows, hash=total)}
    at = At("1", "a", {0: read[0].end}, read=read, parts=list(parts), other=other)
    return SpliceBooks("a.all", at, at.told if written is None else written, current)


@pytest.mark.parametrize(
    ("scan", "splice", "verdict", "detail"),
    [
        (scanned(5, 6, 7), spliced(3, 18), Verdict.BALANCED, ""),
        (scanned(5, 6, 7), spliced(2, 11), Verdict.IN_FLIGHT, "1 records to go"),
        (scanned(5, 6, 7), spliced(2, 13, start=1), Verdict.BALANCED, ""),  # it began there, after a cutover
        (scanned(5, 6, 7), spliced(2, 11, end=3), Verdict.WRONG, "of the offsets 0 to 3"),  # one was lost
        (scanned(5, 6, 7), spliced(4, 25, end=3), Verdict.WRONG, "of the offsets 0 to 3"),  # one was there twice
        (scanned(5, 6, 7), spliced(3, 19), Verdict.WRONG, "hashes differ"),
        (scanned(5, 6, 7), spliced(3, 18, current="2"), Verdict.IN_FLIGHT, "it has not followed the cutover to version 2"),
        (scanned(5, 6), spliced(2, 11, written=Written(1, 5)), Verdict.WRONG,
         "by what it has read it has written 2 records, and says 1"),
        (scanned(5, 6), spliced(2, 11, other=Written(3, 3)), Verdict.BALANCED, ""),
        (scanned(7, start=2), spliced(3, 18), Verdict.COMPACTED, "records were cleaned since"),
        (scanned(7, start=4), spliced(3, 18), Verdict.WRONG, "offsets 3 to 4 were deleted before it read them"),
        (scanned(7, compacted=2), spliced(3, 18), Verdict.COMPACTED, "records were cleaned since"),
        (scanned(7, compacted=2), spliced(4, 18, end=3), Verdict.WRONG, "of the offsets 0 to 3"),
    ],
)  # fmt: skip
def test_what_was_passed_on_is_held_against_the_log(scan, splice, verdict, detail):
    (line,) = splice_lines([scan], [splice])
    assert (line.verdict, line.detail) == (verdict, detail)
    assert (line.tier, line.name) == ("reader", "splice a.all")


def test_what_was_passed_on_of_a_version_before_stays_in_the_books():
    part = Part("2", "a", {0: Read(start=0, end=2, rows=2, hash=11)})
    lines = splice_lines([scanned(5, 6, 7, 8)], [spliced(1, 8, start=3, parts=[part])])
    assert [(line.verdict, line.expected, line.found, line.detail) for line in lines] == [
        (Verdict.BALANCED, 2, 2, "passed on until version 1 was"),
        (Verdict.BALANCED, 1, 1, ""),
    ]
    lost = msgspec.structs.replace(part, read={0: Read(start=0, end=2, rows=1, hash=5)})
    assert splice_lines([scanned(5, 6)], [spliced(0, 0, start=2, parts=[lost])])[0].verdict is Verdict.WRONG


def test_partitions_that_are_not_asked_for_have_no_line():
    splice = spliced(3, 18)
    assert splice_lines([], [splice]) == []
    assert set(splice.positions()) == {(TopicPartition("a", 0), 0), (TopicPartition("a", 0), 3)}
