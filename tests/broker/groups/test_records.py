import contextlib
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.fields import CorruptCoordinatorRecord, Writer
from mainstem.broker.groups.records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_key,
    encode_offset,
)

names = st.text(max_size=40)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
ids = st.none() | st.uuids().filter(lambda found: found.int != 0)
members = st.builds(
    MemberValue,
    names,
    st.none() | names,
    names,
    names,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=60),
    st.binary(max_size=60),
)


@given(st.builds(OffsetKey, names, names, int32) | st.builds(GroupKey, names))
def test_keys_round_trip(key):
    assert decode_key(encode_key(key)) == key


@given(st.builds(OffsetValue, int64, int32, names | names.map(lambda name: name * 8), int64, st.just(-1), ids))
def test_offsets_round_trip(value):
    assert decode_offset(encode_offset(value)) == value


@given(st.builds(OffsetValue, int64, st.just(-1), names, int64, st.integers(0, 2**63 - 1)))
def test_offsets_with_a_time_to_expire_round_trip_in_version_1(value):
    data = encode_offset(value)
    assert data[:2] == b"\0\1"
    assert decode_offset(data) == value


@given(st.builds(GroupValue, names, int32, st.none() | names, st.none() | names, int64, st.lists(members).map(tuple)))
def test_groups_round_trip(value):
    assert decode_group(encode_group(value)) == value


def test_the_bytes_are_kafkas():
    """Written down from Kafka's message definitions, not from our encoder."""
    assert encode_key(OffsetKey("g", "topic", 3)) == b"\0\1\0\1g\0\5topic\0\0\0\3"
    assert encode_key(GroupKey("g")) == b"\0\2\0\1g"
    offset = encode_offset(OffsetValue(5, 2, "mé", 7))
    assert offset == b"\0\3" + (5).to_bytes(8, "big") + b"\0\0\0\2" + b"\0\3m\xc3\xa9" + (7).to_bytes(8, "big")
    offset = encode_offset(OffsetValue(5, 2, "mé", 7, topic_id=UUID(int=9)))
    assert offset == (
        b"\0\4"
        + (5).to_bytes(8, "big")
        + b"\0\0\0\2"
        + b"\4m\xc3\xa9"
        + (7).to_bytes(8, "big")
        + b"\1\0\x10"
        + bytes(15)
        + b"\x09"
    )
    group = GroupValue("consumer", 4, "range", "m", 9, (MemberValue("m", None, "c", "/h", 60, 10, b"s", b"as"),))
    assert encode_group(group) == (
        b"\0\3"
        b"\0\x08consumer"
        b"\0\0\0\4"
        b"\0\5range"
        b"\0\1m" + (9).to_bytes(8, "big") + b"\0\0\0\1"
        b"\0\1m"
        b"\xff\xff"
        b"\0\1c"
        b"\0\2/h"
        b"\0\0\0\x3c"
        b"\0\0\0\x0a"
        b"\0\0\0\1s"
        b"\0\0\0\2as"
    )


def test_older_and_newer_versions_are_read():
    def offset(version: int, *, flexible: bool = False) -> bytes:
        writer = Writer(version, flexible=flexible)
        writer.int64(5)
        if version >= 3:
            writer.int32(2)
        writer.string("m")
        writer.int64(7)
        if version == 1:
            writer.int64(9)
        writer.tags([(0, bytes(16))])
        return writer.done()

    assert decode_offset(offset(0)) == decode_offset(offset(2)) == OffsetValue(5, -1, "m", 7)
    assert decode_offset(offset(1)) == OffsetValue(5, -1, "m", 7, 9)
    assert decode_offset(offset(4, flexible=True)) == OffsetValue(5, 2, "m", 7)

    def group(version: int, *, flexible: bool = False) -> bytes:
        writer = Writer(version, flexible=flexible)
        writer.string("consumer")
        writer.int32(1)
        writer.string("range")
        writer.string("m")
        if version >= 2:
            writer.int64(9)

        def member(_: int) -> None:
            writer.string("m")
            if version >= 3:
                writer.string("i")
            writer.string("c")
            writer.string("h")
            if version >= 1:
                writer.int32(60)
            writer.int32(10)
            writer.blob(b"s")
            writer.blob(b"a")
            writer.tags()

        writer.array([0], member)
        writer.tags()
        return writer.done()

    for version, since, instance, rebalance in (
        (0, -1, None, 10),
        (1, -1, None, 60),
        (2, 9, None, 60),
        (4, 9, "i", 60),
    ):
        expected = MemberValue("m", instance, "c", "h", rebalance, 10, b"s", b"a")
        found = decode_group(group(version, flexible=version >= 4))
        assert found == GroupValue("consumer", 1, "range", "m", since, (expected,))


def test_keys_of_other_kinds_of_groups_are_left_alone():
    assert decode_key(b"\0\4anything") is None


@pytest.mark.parametrize("decode", [decode_offset, decode_group])
def test_a_value_of_an_unknown_version_is_refused(decode):
    with pytest.raises(CorruptCoordinatorRecord, match="version 5"):
        decode(b"\0\5")


@given(st.binary(max_size=80))
def test_random_bytes_raise_only_corrupt_data(data):
    for decode in (decode_key, decode_offset, decode_group):
        with contextlib.suppress(CorruptCoordinatorRecord):
            decode(data)


def _outcome(decode, data):
    try:
        return decode(data)
    except CorruptCoordinatorRecord as error:
        return str(error)


@given(
    st.builds(OffsetKey, names, names, int32).map(encode_key)
    | st.builds(OffsetValue, int64, int32, names, int64, st.just(-1), ids).map(encode_offset),
    st.integers(0, 120),
    st.integers(0, 120),
    st.binary(max_size=4),
)
def test_the_quick_way_finds_what_the_careful_one_does(data, start, length, instead):
    """Also of what is damaged, cut or longer."""
    for changed in (data, data[:start] + instead + data[start + length :]):
        for decode, quick in ((decode_key, "_usual_offset_key"), (decode_offset, "_usual_offset")):
            found = _outcome(decode, changed)
            with mock.patch(f"mainstem.broker.groups.records.{quick}", return_value=None):
                assert found == _outcome(decode, changed)
