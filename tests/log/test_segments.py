"""The list of a partition's segments: what holds an offset, how far may be read, what comes and goes."""

import itertools
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainstem.log import AbortedTransaction, TopicConfig
from mainstem.log.segment import OpenFiles, Segment
from mainstem.log.segments import SegmentList, aborted_between
from mainstem.records import BatchHeader, decode_header
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import CountedList, batch

NOW = 1_700_000_000_000


def header(*, records: int = 1, timestamp: int = NOW) -> BatchHeader:
    return decode_header(batch(*[b"v"] * records, timestamp=timestamp))


def append(segments: SegmentList, offset: int, count: int = 1) -> Segment:
    """Count in a batch of so many records, as a partition does."""
    segment = segments.active
    segment.count_in(offset + count - 1, 100, NOW, 4_096)
    return segment


@pytest.fixture
def segments(tmp_path) -> SegmentList:
    """Segments of offsets 0 to 9, 10 to 19, and 20 to 29, which is active; 100 bytes each, all readable."""
    segments = SegmentList(tmp_path, OpenFiles(SimulatedDisk(tmp_path), 10))
    for base_offset in (0, 10, 20):
        segments.add(base_offset)
        append(segments, base_offset, 10)
    segments.advance(segments.active, 100, segments.active.latest)
    segments.changed = False
    return segments


def bases(segments) -> list[int]:
    return [segment.base_offset for segment in segments]


def test_an_offset_is_in_the_last_segment_that_begins_at_or_before_it(segments):
    found = {offset: segments.holding(offset).base_offset for offset in (0, 9, 10, 19, 20, 99)}
    assert found == {0: 0, 9: 0, 10: 10, 19: 10, 20: 20, 99: 20}
    assert segments.after(segments[0]) is segments[1]
    assert segments.after(segments[2]) is None
    segments.drop_before(10)
    assert segments.holding(3).base_offset == 10  # the first one there is


def test_an_empty_list_holds_nothing(tmp_path):
    segments = SegmentList(tmp_path, OpenFiles(SimulatedDisk(tmp_path), 10))
    assert segments.holding(0) is None
    assert segments.drop_before(5) == []
    assert (len(segments), segments.size_bytes) == (0, 0)


def test_what_is_readable_ends_at_the_high_watermark(segments):
    first, second, third = segments
    segments.advance(second, 40, (NOW, 13))
    assert [segments.readable_end(each) for each in (first, second, third)] == [100, 40, 0]
    assert segments.readable_latest == (NOW, 13)


def test_what_is_not_readable_can_be_cut_off(segments):
    _, second, third = segments
    segments.advance(second, 40, (NOW, 13))
    assert segments.cut(14) == [third]
    assert (third.retired, second.retired) == (True, False)
    assert (bases(segments), second.size, second.next_offset) == ([0, 10], 40, 14)


def test_a_segment_that_begins_at_the_high_watermark_stays_when_it_is_cut(segments):
    _, second, third = segments
    segments.advance(second, 100, (NOW, 19))
    assert segments.cut(20) == []
    assert (segments.active, third.size, third.next_offset) == (third, 0, 20)


def test_segments_before_the_log_start_leave_but_for_the_active_one(segments):
    first, second, third = segments
    assert segments.drop_before(9) == []
    assert not segments.changed
    assert segments.drop_before(10) == [first]
    assert segments.drop_before(500) == [second]
    assert (bases(segments), segments.changed) == ([20], True)
    assert (first.retired, second.retired, third.retired) == (True, True, False)


def test_a_compacted_segment_takes_the_place_of_its_neighbours(segments):
    first, second, third = segments
    cleaned = Segment(segments.directory, 0, segments.files)
    assert segments.replace(cleaned, [0, 10]) == [first, second]
    assert (list(segments), bases(segments), segments.changed) == ([cleaned, third], [0, 20], True)
    assert segments.holding(15) is cleaned
    assert segments.readable_end(third) == 100


def test_a_full_or_an_old_segment_is_followed_by_another(segments):
    third = segments.active
    config = TopicConfig(segment_bytes=10_000, segment_ms=1_000)
    assert segments.with_room(header(timestamp=NOW + 1_000), 30, config) is third
    late = segments.with_room(header(timestamp=NOW + 1_001), 30, config)
    assert (late.base_offset, segments.active) == (30, late)
    assert segments.with_room(header(timestamp=NOW + 9_999), 30, config) is late  # it is empty
    append(segments, 30)
    assert segments.with_room(header(), 31, TopicConfig(segment_bytes=120)).base_offset == 31
    append(segments, 31)
    assert segments.with_room(header(), 31 + 2**31, TopicConfig()).base_offset == 31 + 2**31


def between(segments: SegmentList, offset: int, end: int) -> tuple[AbortedTransaction, ...]:
    return aborted_between(segments.beginning_at(offset), offset, end)


def test_aborted_transactions_that_touch_a_range(segments):
    segments[0].add_aborted(AbortedTransaction(1, 2, 5, 3))
    segments[1].add_aborted(AbortedTransaction(2, 3, 12, 13))
    assert [each.producer_id for each in between(segments, 0, 4)] == [1, 2]
    assert [each.producer_id for each in between(segments, 0, 3)] == [1]
    assert [each.producer_id for each in between(segments, 6, 8)] == [2]
    assert between(segments, 13, 30) == ()


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["append", "abort", "commit", "roll"])), max_size=60))
def test_aborted_transactions_are_found_however_they_overlap(steps):
    segments = SegmentList(Path("/disk"), OpenFiles(SimulatedDisk(Path("/disk")), 10))
    segments.add(0)
    first_offsets: dict[int, int] = {}
    every = []
    end = 0
    for producer_id, step in steps:
        if step == "roll":
            segments.roll(end)
            continue
        if step == "append":
            first_offsets.setdefault(producer_id, end)
        elif (first_offset := first_offsets.pop(producer_id, None)) is not None and step == "abort":
            every.append(AbortedTransaction(producer_id, first_offset, end, min([*first_offsets.values(), end + 1])))
            segments.active.add_aborted(every[-1])
        append(segments, end)
        end += 1
    for start, stop in itertools.combinations(range(0, end + 1, 3), 2):
        expected = [each for each in every if each.last_offset >= start and each.first_offset < stop]
        assert list(between(segments, start, stop)) == expected


@pytest.mark.parametrize(("offset", "end", "found"), [(29_990, 30_000, 1), (0, 30, 3), (30_000, 30_001, 0)])
def test_a_read_does_not_look_at_each_aborted_transaction_of_a_segment(segments, offset, end, found):
    """Each read of committed records did, at the end of the log too: the more were aborted, the slower were all."""
    transactions = CountedList(AbortedTransaction(1, n * 10, n * 10 + 9, n * 10 + 10) for n in range(3_000))
    segments.drop_before(20)
    segments.active.aborted = transactions
    assert len(between(segments, offset, end)) == found
    assert transactions.looks < 30
