from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

from mainstem.log import SystemDisk, TopicConfig
from mainstem.log.retention import expired_before
from mainstem.log.segment import OpenFiles, Segment

NOW = 1_000_000


def segments(*shapes):
    """(records, bytes, latest timestamp) of each."""
    result, offset = [], 0
    for count, size, latest in shapes:
        segment = Segment(Path(), offset, OpenFiles(SystemDisk(), 1))
        segment.size, segment.max_timestamp = size, latest
        offset += count
        segment.next_offset = offset
        result.append(segment)
    return result


def test_old_segments_go_from_the_beginning():
    made = segments((10, 100, NOW - 900), (10, 100, NOW - 300), (10, 100, NOW - 900))
    assert expired_before(made, 0, 30, TopicConfig(retention_ms=500), NOW) == 10
    assert expired_before(made, 0, 30, TopicConfig(retention_ms=100), NOW) == 30  # the active one too
    assert expired_before(made, 0, 30, TopicConfig(retention_ms=-1), NOW) == 0
    assert expired_before(made, 0, 30, TopicConfig(retention_ms=100, cleanup_policy="compact"), NOW) == 0


def test_a_segment_of_which_compaction_left_nothing_holds_up_nothing():
    made = segments((10, 0, -1), (10, 100, NOW - 900), (10, 0, -1), (10, 100, NOW))
    assert expired_before(made, 0, 40, TopicConfig(retention_ms=500, cleanup_policy="compact,delete"), NOW) == 30
    made = segments((10, 100, NOW - 900), (0, 0, -1))
    assert expired_before(made, 0, 10, TopicConfig(retention_ms=500), NOW) == 10


def test_what_is_too_much_goes_but_never_the_active_segment():
    made = segments((10, 100, NOW), (10, 100, NOW), (10, 100, NOW))
    forever = {"retention_ms": -1}
    assert expired_before(made, 0, 30, TopicConfig(retention_bytes=250, **forever), NOW) == 0
    assert expired_before(made, 0, 30, TopicConfig(retention_bytes=200, **forever), NOW) == 10
    assert expired_before(made, 0, 30, TopicConfig(retention_bytes=0, **forever), NOW) == 20


def test_nothing_goes_that_is_not_durable():
    made = segments((10, 100, NOW - 900), (10, 100, NOW - 900))
    assert expired_before(made, 0, 15, TopicConfig(retention_ms=1), NOW) == 10


def test_records_without_a_timestamp_stay():
    """By their age, which nobody knows; by their size they go like any."""
    made = segments((10, 100, -1), (10, 100, -1))
    assert expired_before(made, 0, 20, TopicConfig(retention_ms=1), NOW) == 0
    assert expired_before(made, 0, 20, TopicConfig(retention_ms=1, retention_bytes=100), NOW) == 10


shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99), st.integers(0, NOW)), min_size=1, max_size=6)


@given(shapes, st.integers(-1, NOW), st.integers(-1, 400), st.integers(0, 10))
def test_it_never_goes_back_and_ends_at_a_segment(given_shapes, retention_ms, retention_bytes, start):
    made = segments(*given_shapes)
    config = TopicConfig(retention_ms=retention_ms, retention_bytes=retention_bytes)
    found = expired_before(made, start, made[-1].next_offset, config, NOW)
    assert found in {start, *(segment.next_offset for segment in made)}
    assert found >= start
