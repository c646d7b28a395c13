from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.fields import CorruptCoordinatorRecord, LaterVersion
from mainstem.broker.groups.records import decode_key, encode_key
from mainstem.broker.groups.share import records
from mainstem.broker.groups.share.records import (
    CurrentKey,
    CurrentValue,
    MemberKey,
    MemberValue,
    ShareGroupKey,
    ShareGroupValue,
    SnapshotKey,
    SnapshotValue,
    StatePartitionsKey,
    StatePartitionsValue,
    TargetKey,
    TargetMemberKey,
    TargetMemberValue,
    TargetValue,
    TopicPartitions,
    UpdateKey,
    UpdateValue,
)
from mainstem.broker.groups.share.state import RecordState, StateBatch
from mainstem.core import CorruptData

TEXT = st.text(max_size=8)
INT8, INT16, INT32, INT64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (7, 15, 31, 63))
NUMBERS = st.integers(0, 2**31 - 1)
ASSIGNMENTS = st.dictionaries(st.uuids(), st.frozensets(NUMBERS), max_size=3)
NAMED = st.lists(
    st.builds(TopicPartitions, st.uuids(), TEXT, st.lists(NUMBERS, max_size=3).map(tuple)), max_size=3
).map(tuple)
OF_GROUPS = st.one_of(
    st.tuples(
        st.builds(MemberKey, TEXT, TEXT),
        st.builds(
            MemberValue,
            rack_id=st.none() | TEXT,
            client_id=TEXT,
            client_host=TEXT,
            topics=st.lists(TEXT).map(tuple),
        ),
    ),
    st.tuples(st.builds(ShareGroupKey, TEXT), st.builds(ShareGroupValue, INT32, INT64)),
    st.tuples(st.builds(TargetKey, TEXT), st.builds(TargetValue, INT32, INT64)),
    st.tuples(st.builds(TargetMemberKey, TEXT, TEXT), st.builds(TargetMemberValue, ASSIGNMENTS)),
    st.tuples(st.builds(CurrentKey, TEXT, TEXT), st.builds(CurrentValue, INT32, INT32, ASSIGNMENTS, INT8)),
    st.tuples(
        st.builds(StatePartitionsKey, TEXT),
        st.builds(StatePartitionsValue, NAMED, NAMED, st.lists(st.tuples(st.uuids(), TEXT), max_size=3).map(tuple)),
    ),
)
BATCHES = st.lists(
    st.builds(
        lambda first, size, state, count: StateBatch(first, first + size, state, count),
        st.integers(0, 2**40),
        st.integers(0, 9),
        st.sampled_from(RecordState),
        INT16,
    ),
    max_size=3,
).map(tuple)
OF_PARTITIONS = st.one_of(
    st.tuples(
        st.builds(SnapshotKey, TEXT, st.uuids(), NUMBERS),
        st.builds(
            SnapshotValue,
            snapshot_epoch=INT32,
            state_epoch=INT32,
            leader_epoch=INT32,
            start_offset=INT64,
            complete=INT32,
            created_ms=INT64,
            written_ms=INT64,
            batches=BATCHES,
        ),
    ),
    st.tuples(
        st.builds(UpdateKey, TEXT, st.uuids(), NUMBERS),
        st.builds(
            UpdateValue,
            snapshot_epoch=INT32,
            leader_epoch=INT32,
            start_offset=INT64,
            complete=INT32,
            batches=BATCHES,
        ),
    ),
)


@given(OF_GROUPS)
def test_records_of_groups_come_back(record):
    key, value = record
    assert decode_key(encode_key(key)) == key
    assert records.decode_value(key, records.encode_value(value)) == value


@given(OF_PARTITIONS)
def test_records_of_share_partitions_come_back(record):
    key, value = record
    assert records.decode_state_key(records.encode_state_key(key)) == key
    assert records.decode_state(key, records.encode_state(value)) == value


def test_the_bytes_are_those_of_the_definitions():
    """Field by field as Kafka's ShareSnapshotKey.json and ShareSnapshotValue.json say, in hexadecimal."""
    key = SnapshotKey("g", UUID(int=1), 2)
    assert (
        records.encode_state_key(key).hex(" ", -2) == "0000 0001 6700 0000 0000 0000 0000 0000 0000 0000 0100 0000 02"
    )
    value = SnapshotValue(
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=4,
        complete=5,
        created_ms=6,
        written_ms=7,
        batches=(StateBatch(8, 9, RecordState.ACKNOWLEDGED, 10),),
    )
    fields = ["0000", "00000001", "00000002", "00000003", f"{4:016x}", f"{6:016x}", f"{7:016x}"]
    batch = ["02", f"{8:016x}", f"{9:016x}", "02", "000a", "00"]
    tag = ["01", "00", "04", "00000005"]
    assert records.encode_state(value).hex() == "".join(fields + batch + tag)
    assert records.encode_state(UpdateValue(snapshot_epoch=1, leader_epoch=3, start_offset=-1)).hex() == "".join(
        ["0000", "00000001", "00000003", "ff" * 8, "01", "00"]
    )


@given(st.integers(10, 15), st.binary(max_size=60), st.binary(max_size=80))
def test_random_bytes_raise_only_corrupt_data(version, key, value):
    try:
        found = decode_key(version.to_bytes(2, "big") + key)
        assert found is not None
        records.decode_value(found, value)
    except CorruptData:
        pass


@given(st.sampled_from((b"\0\0", b"\0\1")), st.binary(max_size=60), st.binary(max_size=80))
def test_random_bytes_of_share_partitions_raise_only_corrupt_data(version, key, value):
    try:
        found = records.decode_state_key(version + key)
        assert found is not None
        records.decode_state(found, b"\0\0" + value)
    except CorruptData:
        pass


def test_kinds_that_are_not_known_are_left_alone():
    assert records.decode_state_key(b"\0\7") is None


@pytest.mark.parametrize(("version", "error"), [(b"\0\1", LaterVersion), (b"\xff\xff", CorruptCoordinatorRecord)])
def test_values_of_versions_that_are_not_known(version, error):
    with pytest.raises(error, match="version 0 is known"):
        records.decode_value(ShareGroupKey("g"), version + bytes(20))


def test_a_state_that_there_is_not():
    key = SnapshotKey("g", UUID(int=1), 0)
    value = SnapshotValue(
        snapshot_epoch=0,
        state_epoch=0,
        leader_epoch=0,
        start_offset=0,
        batches=(StateBatch(0, 0, RecordState.ARCHIVED, 0),),
    )
    data = bytearray(records.encode_state(value))
    data[data.index(4)] = 3
    with pytest.raises(CorruptCoordinatorRecord, match="in state 3"):
        records.decode_state(key, bytes(data))
