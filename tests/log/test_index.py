import struct

import hypothesis.strategies as st
from hypothesis import given

from mainstem.log.index import AbortedTransaction, IndexState, OffsetIndex, TimeIndex, encode_aborted

rising = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=30).map(
    lambda steps: [(sum(a for a, _ in steps[: n + 1]), sum(b for _, b in steps[: n + 1])) for n in range(len(steps))]
)


@given(rising, st.integers(0, 40_000))
def test_a_lookup_gives_the_last_position_at_or_before(entries, offset):
    index = OffsetIndex(5_000)
    for relative, position in entries:
        index.append(5_000 + relative, position)
    expected = max(((5_000 + o, p) for o, p in entries if o <= offset), default=(-1, 0))
    assert index.lookup(5_000 + offset) == expected


@given(rising, st.integers(0, 40_000))
def test_truncate_forgets_what_points_behind(entries, position):
    index = OffsetIndex(0)
    for entry in entries:
        index.append(*entry)
    index.state()
    index.truncate(position)
    other = OffsetIndex(0)
    for entry in entries:
        if entry[1] < position:
            other.append(*entry)
    assert index.data == other.data
    assert index.state() == other.state()


@given(rising, st.integers(0, 30), st.integers(0, 30))
def test_entries_left_in_the_file_and_entries_added_since(entries, stored, saved):
    whole = OffsetIndex(0)
    for entry in entries:
        whole.append(*entry)
    before = OffsetIndex(0)
    for entry in entries[:stored]:
        before.append(*entry)
    index = OffsetIndex(0, before.state())
    for entry in entries[stored:]:
        index.append(*entry)
    assert index.state() == whole.state()
    position, data = index.save(index.length)
    assert bytes(before.data) + data == bytes(whole.data)
    assert position == len(before.data)
    index.load(bytes(before.data))
    assert index.data == whole.data
    assert index.state() == whole.state()
    assert index.save(index.length) == (index.length, b"")
    index.replace(b"")
    assert index.save(index.length) == (0, bytes(index.data))


@given(st.lists(st.sampled_from(["append", "undo", "checkpoint", "unload", "load", "rebuild"]), max_size=30))
def test_the_crc_and_the_file_are_right_whatever_leaves_memory_and_comes_back(steps):
    index, stored, file = OffsetIndex(0), IndexState(), b""
    whole: list[int] = []
    for number, step in enumerate(steps):
        if step == "append":
            whole.append(number)
            index.append(number, number)
        elif step == "undo":  # a round that the next checkpoint was prepared for, and that a full disk refused
            index.append(number, number)
            index.state()
            index.truncate(number)
        elif step == "checkpoint":
            stored = index.state()
            start, entries = index.save(stored.length)
            file = file[:start] + entries
        elif step == "unload" and index.is_stored(stored):
            index.unload(stored)
        elif step == "load":
            index.load(file[: index.unloaded])
        elif step == "rebuild":
            index.replace(file[: index.unloaded])
    expected = OffsetIndex(0)
    for number in whole:
        expected.append(number, number)
    assert index.state() == expected.state()
    position, entries = index.save(index.length)
    assert file[:position] + entries == bytes(expected.data)


def test_the_crc_is_right_where_entries_leave_memory_after_a_full_disk_has_undone_a_round():
    index, expected = OffsetIndex(0), OffsetIndex(0)
    index.append(1, 100)
    stored = index.state()
    index.save(stored.length)
    index.append(2, 200)
    index.state()
    index.truncate(200)
    index.unload(stored)
    index.append(3, 300)
    expected.append(1, 100)
    expected.append(3, 300)
    assert index.state() == expected.state()


def test_the_crc_is_right_where_a_full_disk_undoes_a_round_after_entries_came_back():
    expected = OffsetIndex(0)
    expected.append(1, 100)
    index = OffsetIndex(0, expected.state())
    index.load(bytes(expected.data))
    index.append(2, 200)
    index.state()
    index.truncate(200)
    assert index.state() == expected.state()


@given(rising, st.integers(0, 40_000))
def test_no_record_before_the_found_offset_is_as_late(entries, timestamp):
    index = TimeIndex(100)
    for time, relative in entries:
        index.append(time, 100 + relative)
    found = index.lookup(timestamp)
    assert found == 100 + max((o for t, o in entries if t < timestamp), default=0)


def test_the_time_index_only_rises():
    index = TimeIndex(0)
    index.append(10, 5)
    index.append(10, 6)
    index.append(9, 7)
    index.append(11, 5)
    assert len(index.data) == TimeIndex.ENTRY.size
    assert index.last == (10, 5)
    later = TimeIndex(0, index.state(), index.last)
    later.append(10, 9)
    assert later.length == TimeIndex.ENTRY.size
    later.append(12, 9)
    later.truncate(9)
    assert later.last == (10, 5)


def test_kafkas_formats():
    offsets, times = OffsetIndex(100), TimeIndex(100)
    offsets.append(103, 4096)
    times.append(1_700_000_000_000, 103)
    assert offsets.data.hex() == "0000000300001000"
    assert times.data.hex() == "0000018bcfe5680000000003"
    assert encode_aborted([AbortedTransaction(1, 2, 3, 4)]).hex() == (
        "00000000000000000001000000000000000200000000000000030000000000000004"
    )  # fmt: skip


def test_aborted_transactions_are_written_as_kafka_does():
    entries = encode_aborted([AbortedTransaction(7, 10, 15, 10), AbortedTransaction(8, 12, 19, 12)])
    assert list(struct.iter_unpack(">hqqqq", entries)) == [(0, 7, 10, 15, 10), (0, 8, 12, 19, 12)]
