import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.fields import CorruptCoordinatorRecord, LaterVersion
from mainstem.broker.groups.consumer import records
from mainstem.broker.groups.consumer.records import (
    ClassicProtocols,
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentKey,
    CurrentValue,
    MemberKey,
    MemberState,
    MemberValue,
    RegexKey,
    RegexValue,
    TargetKey,
    TargetMemberKey,
    TargetMemberValue,
    TargetValue,
)
from mainstem.broker.groups.records import decode_key, encode_key
from mainstem.core import CorruptData

TEXT = st.text(max_size=8)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.integers(0, 2**31 - 1)
ASSIGNMENTS = st.dictionaries(st.uuids(), st.frozensets(NUMBERS, min_size=1), max_size=3)
OWNED = st.dictionaries(st.uuids(), st.dictionaries(NUMBERS, INT32, min_size=1), max_size=3)
CLASSIC = st.builds(ClassicProtocols, INT32, st.lists(st.tuples(TEXT, st.binary(max_size=8)), max_size=2).map(tuple))
RECORDS = st.one_of(
    st.tuples(st.builds(ConsumerGroupKey, TEXT), st.builds(ConsumerGroupValue, INT32, INT64)),
    st.tuples(
        st.builds(MemberKey, TEXT, TEXT),
        st.builds(
            MemberValue,
            instance_id=st.none() | TEXT,
            rack_id=st.none() | TEXT,
            client_id=TEXT,
            client_host=TEXT,
            topics=st.lists(TEXT).map(tuple),
            regex=TEXT,
            rebalance_timeout_ms=INT32,
            assignor=st.none() | TEXT,
            classic=st.none() | CLASSIC,
        ),
    ),
    st.tuples(st.builds(TargetKey, TEXT), st.builds(TargetValue, INT32, INT64)),
    st.tuples(st.builds(TargetMemberKey, TEXT, TEXT), st.builds(TargetMemberValue, ASSIGNMENTS)),
    st.tuples(
        st.builds(CurrentKey, TEXT, TEXT),
        st.builds(CurrentValue, INT32, INT32, st.sampled_from(MemberState), OWNED, OWNED),
    ),
    st.tuples(st.builds(RegexKey, TEXT, TEXT), st.builds(RegexValue, st.lists(TEXT).map(tuple), INT64, INT64)),
)


@given(RECORDS)
def test_records_come_back(record):
    key, value = record
    assert decode_key(encode_key(key)) == key
    assert records.decode_value(key, records.encode_value(value)) == value


@given(st.sampled_from((3, 5, 6, 7, 8, 16)), st.binary(max_size=60), st.binary(max_size=80))
def test_random_bytes_raise_only_corrupt_data(version, key, value):
    try:
        found = decode_key(version.to_bytes(2, "big") + key)
        assert found is not None
        records.decode_value(found, b"\0\0" + value)
    except CorruptData:
        return


def test_records_of_before_kafka_4_3_have_no_epochs_of_partitions():
    topic = bytes(range(16))
    value = (
        bytes.fromhex("0000 00000007 00000006 00") + b"\2" + topic + bytes.fromhex("03 00000000 00000004 00") + b"\1\0"
    )
    found = records.decode_value(CurrentKey("g", "m"), value)
    assert list(found.assigned.values()) == [{0: 7, 4: 7}]


def test_as_many_epochs_as_partitions():
    topic = bytes(16)
    value = (
        bytes.fromhex("0000 00000007 00000006 00") + b"\2" + topic + bytes.fromhex("02 00000000 01 00 01 01") + b"\1\0"
    )
    with pytest.raises(CorruptCoordinatorRecord, match="1 partitions or tasks with 0 epochs"):
        records.decode_value(CurrentKey("g", "m"), value)


def test_a_state_that_is_not_known_is_told_as_such():
    value = bytes.fromhex("0000 00000007 00000006 55 01 01 00")
    assert records.decode_value(CurrentKey("g", "m"), value).state is MemberState.UNKNOWN


def test_a_later_version_is_refused():
    with pytest.raises(LaterVersion):
        records.decode_value(ConsumerGroupKey("g"), b"\0\1\0\0\0\1\0")
    with pytest.raises(CorruptCoordinatorRecord):
        records.decode_value(ConsumerGroupKey("g"), b"\xff\xff\0\0\0\1\0")


def test_tags_that_are_not_known_are_skipped():
    value = bytes.fromhex("0000 00000007 01 09 02 aabb")
    assert records.decode_value(ConsumerGroupKey("g"), value) == ConsumerGroupValue(7)


def test_keys_of_other_kinds_are_left_alone():
    assert decode_key(b"\0\4\0\1g") is None
