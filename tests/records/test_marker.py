import hypothesis.strategies as st
import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from hypothesis import given

from mainstem.records import (
    CorruptRecords,
    Marker,
    Record,
    build_batch,
    build_marker,
    decode_header,
    decode_marker,
    decode_records,
)


@given(st.integers(0, 2**62), st.integers(0, 32767), st.booleans(), st.integers(0, 2**31 - 1))
def test_decode_gives_what_build_was_given(producer_id, producer_epoch, commit, coordinator_epoch):
    data = build_marker(producer_id, producer_epoch, commit, coordinator_epoch, 1_000)
    assert decode_marker(data) == Marker(producer_id, producer_epoch, commit, coordinator_epoch)
    header = decode_header(data)
    assert header.is_control
    assert header.is_transactional
    assert header.base_sequence == -1


@pytest.mark.parametrize(("commit", "expected"), [(True, COMMIT_MARKER), (False, ABORT_MARKER)])
def test_aiokafka_knows_the_marker(commit, expected):
    key = decode_records(build_marker(1, 0, commit, 3, 1_000))[0].key
    assert ControlRecord.parse(key) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (build_batch([Record(0, 1, b"k", b"v")]), "expected a control batch"),
        (build_batch([Record(0, 1, b"\0", b"")], control=True), "key is 1 bytes, its value 0"),
        (build_batch([Record(0, 1, b"\0\0\0\5", bytes(6))], control=True), "control record type 5"),
    ],
)
def test_what_is_not_a_marker(data, message):
    with pytest.raises(CorruptRecords, match=message):
        decode_marker(data)
