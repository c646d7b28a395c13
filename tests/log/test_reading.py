from pathlib import Path

import hypothesis.strategies as st
import pytest
from crc32c import crc32c
from hypothesis import given

from mainstem.log.reading import OffsetAndTimestamp, Part, cut, find_latest, find_timestamp, latest_of_batch, rest
from mainstem.log.segment import OpenFiles, Segment
from mainstem.records import CorruptBatch, Record, build_batch, decode_header, iter_headers
from mainstem.records.batch import CRC_FROM, MAGIC_AT
from mainstem.records.compression import UNPACKED_BYTES
from mainstem.records.record import assemble_batch
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import batch

ROOT = Path("/disk")
counts = st.lists(st.integers(1, 4), min_size=1, max_size=6)


def batches(given_counts, *, gap=0) -> bytes:
    offset, data = 100, b""
    for count in given_counts:
        data += batch(*[b"value"] * count, base_offset=offset)
        offset += count + gap
    return data


def part(content: bytes, *, dense: bool = True, verify: bool = True, end: int = 1_000) -> Part:
    return Part(memoryview(content), 100, dense, end, verify=verify)


@given(counts, st.integers(0, 2), st.data())
def test_whole_batches_from_the_offset_to_the_limit_within_the_bytes(given_counts, gap, data):
    content = batches(given_counts, gap=gap)
    headers = list(iter_headers(content))
    end = headers[-1].next_offset
    offset = data.draw(st.integers(100, end))
    limit = data.draw(st.sampled_from([h.base_offset for h in headers] + [end]))
    most = data.draw(st.integers(0, len(content) + 10))
    one = data.draw(st.booleans())
    start, stop, next_offset = cut(part(content, dense=gap == 0), offset, limit, most, at_least_one=one)
    expected = [h for h in headers if h.last_offset >= offset and h.base_offset < limit]
    taken, size = [], 0
    for header in expected:
        if size + header.size > most and not (one and not taken):
            break
        taken.append(header)
        size += header.size
    assert list(iter_headers(content[start:stop])) == taken
    assert next_offset == (taken[-1].next_offset if taken else offset)


def test_damage_is_found_where_it_is_asked_for():
    content = bytearray(batches([2, 2]))
    content[-1] ^= 1
    assert cut(part(content, verify=False), 100, 200, 10_000, at_least_one=True)[:2] == (0, len(content))
    with pytest.raises(CorruptBatch, match="offset 102: bad CRC"):
        cut(part(content), 100, 200, 10_000, at_least_one=True)
    first_only = decode_header(bytes(content)).size
    assert cut(part(content), 100, 200, first_only, at_least_one=True)[:2] == (0, first_only)


def test_a_damaged_magic_is_found_which_no_crc_covers():
    """A reader was given the batch, and said that its format is unknown."""
    content = bytearray(batches([2, 2]))
    content[MAGIC_AT] ^= 64
    with pytest.raises(CorruptBatch, match="offset 100: unknown format"):
        cut(part(content, verify=True), 100, 200, 10_000, at_least_one=True)


def test_the_index_says_how_the_first_batch_ends():
    content = memoryview(batches([2, 2]))
    assert cut(Part(content, 50, True, 1_000, 101), 100, 200, 10_000, at_least_one=True)[:2] == (0, len(content))
    with pytest.raises(CorruptBatch, match="offsets 100 to 101"):
        cut(Part(content, 100, True, 1_000, 107), 100, 200, 10_000, at_least_one=True)


def test_each_batch_begins_where_the_one_before_it_ends():
    gapped, one = batches([2, 2], gap=3), batches([2])
    with pytest.raises(CorruptBatch, match="offsets 105 to 106, expected 102"):
        cut(part(gapped), 100, 200, 10_000, at_least_one=True)
    assert cut(part(gapped, dense=False), 100, 200, 10_000, at_least_one=True)[:2] == (0, len(gapped))
    with pytest.raises(CorruptBatch, match="offsets 100 to 101, expected 102"):
        cut(part(one + one, dense=False), 100, 200, 10_000, at_least_one=True)
    with pytest.raises(CorruptBatch, match="below 106"):
        cut(part(gapped, dense=False, end=106), 100, 200, 10_000, at_least_one=True)


@given(counts, st.data())
def test_the_first_batch_that_is_not_all_there(given_counts, data):
    content = batches(given_counts)
    headers = list(iter_headers(content))
    have = data.draw(st.integers(0, len(content)))
    offset = data.draw(st.integers(100, headers[-1].last_offset))
    found = rest(part(content[:have]), offset, len(content))
    position = 0
    for header in headers:
        if position + header.size > have:
            assert found is not None
            start, size, next_offset = found
            assert (start, next_offset) == (position, header.base_offset)
            assert size >= min(header.size, len(content) - position) or have - position < 61
            return
        if header.last_offset >= offset:
            assert found is None
            return
        position += header.size
    assert found is None


def test_what_cannot_be_a_batch_is_not_skipped():
    content = bytearray(batches([1]))
    content[8:12] = (2**30).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match=r"bytes, .* are left"):
        rest(part(content), 100, len(content))
    with pytest.raises(CorruptBatch, match="a batch header is 61"):
        rest(part(b""), 100, 7)


def segment(times) -> Segment:
    result = Segment(ROOT, 0, OpenFiles(SimulatedDisk(ROOT), 2))
    for offset, time in enumerate(times):
        data = batch(b"v", base_offset=offset, timestamp=time, leader_epoch=3)
        position = result.append(decode_header(data), 100)
        result.file_to_write(position).write([data], position)
    return result


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=10), st.integers(0, 55), st.integers(0, 10), st.integers(0, 10)
)
def test_the_first_record_that_is_late_enough(times, timestamp, low, high):
    found = find_timestamp(made := segment(times), 0, made.size, timestamp, low, high)
    expected = [(o, t) for o, t in enumerate(times) if t >= timestamp and low <= o < high]
    assert ((found.offset, found.timestamp) if found else None) == (expected[0] if expected else None)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=10), st.integers(0, 10), st.integers(0, 10))
def test_the_first_of_the_latest(times, low, high):
    found = find_latest(made := segment(times), made.size, low, high)
    expected = [(-t, o) for o, t in enumerate(times) if low <= o < high]
    assert ((-found.timestamp, found.offset) if found else None) == (min(expected) if expected else None)


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=5),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_the_first_of_the_latest_of_batches_that_lie_partly_outside(batches, low, high):
    """A log may begin within a batch, whose header says the time of a record that is deleted."""
    made, offset = Segment(ROOT, 0, OpenFiles(SimulatedDisk(ROOT), 2)), 0
    for times in batches:
        data = build_batch(
            [Record(number, 1_000 + time, b"k", b"v") for number, time in enumerate(times)], base_offset=offset
        )
        position = made.append(decode_header(data), 100)
        made.file_to_write(position).write([data], position)
        offset += len(times)
    found = find_latest(made, made.size, low, high)
    flat = [1_000 + time for times in batches for time in times]
    expected = [(-t, o) for o, t in enumerate(flat) if low <= o < high]
    assert ((-found.timestamp, found.offset) if found else None) == (min(expected) if expected else None)


def test_a_segment_whose_headers_say_too_much_is_gone_through_twice(monkeypatch):
    """Once for each such batch: 20,000 of them kept a thread for minutes, and the end of the log waited."""
    made, looked_at = Segment(ROOT, 0, OpenFiles(SimulatedDisk(ROOT), 2)), []
    for offset in range(50):
        data = bytearray(batch(b"v", base_offset=offset, timestamp=1_000 + offset % 7))
        data[35:43] = (9_999).to_bytes(8, "big")
        data[CRC_FROM - 4 : CRC_FROM] = crc32c(data[CRC_FROM:]).to_bytes(4, "big")
        position = made.append(decode_header(data), 100)
        made.file_to_write(position).write([bytes(data)], position)
    scan = Segment.scan
    monkeypatch.setattr(Segment, "scan", lambda self, *range: looked_at.append(range) or scan(self, *range))
    assert find_latest(made, made.size, 0, 50) == OffsetAndTimestamp(6, 1_006)
    assert len(looked_at) == 2


@given(st.lists(st.integers(0, 50), min_size=1, max_size=10), st.integers(0, 10), st.integers(0, 10))
def test_the_first_of_the_latest_where_the_segment_says_it_is(times, low, high):
    made = segment(times)
    found = latest_of_batch(made, made.position_of(made.latest[1]), made.size, made.latest, low, high)
    offset = times.index(max(times))
    assert ((found.offset, found.timestamp) if found else None) == (
        (offset, max(times)) if low <= offset < high else None
    )
    assert latest_of_batch(made, 0, made.size, (max(times) + 1, offset), low, high) is None


def test_a_look_up_unpacks_no_more_than_a_limit():
    """A megabyte of zstd may hold 32 GB; the log was killed for lack of memory, again at every look-up."""
    bomb = assemble_batch(decode_header(batch(b"v", compression="zstd")), bytes(UNPACKED_BYTES + 1))
    assert len(bomb) < 2**20
    made = Segment(ROOT, 0, OpenFiles(SimulatedDisk(ROOT), 2))
    for data in (bomb, batch(b"v", base_offset=1)):
        position = made.append(decode_header(data), 100)
        made.file_to_write(position).write([data], position)
    found = find_timestamp(made, 0, made.size, 0, 0, 2)
    assert found is not None
    assert found.offset == 1
