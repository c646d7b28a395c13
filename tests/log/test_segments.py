"""The list of a partition's segments: what holds an offset, how far may be read, what comes and goes."""

import pytest

from mainstem.log import AbortedTransaction, TopicConfig
from mainstem.log.segment import OpenFiles, Segment
from mainstem.log.segments import SegmentList
from mainstem.records import BatchHeader, decode_header
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import batch

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


def test_aborted_transactions_that_touch_a_range(segments):
    segments[0].add_aborted(AbortedTransaction(1, 2, 5, 6))
    segments[1].add_aborted(AbortedTransaction(2, 3, 12, 13))
    assert [each.producer_id for each in segments.aborted_between(0, 4)] == [1, 2]
    assert [each.producer_id for each in segments.aborted_between(6, 8)] == [2]
    assert segments.aborted_between(13, 30) == ()
