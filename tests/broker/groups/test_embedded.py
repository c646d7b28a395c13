import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.fields import CorruptCoordinatorRecord
from mainstem.broker.groups.embedded import (
    Subscription,
    read_assignment,
    read_subscription,
    read_topics,
    write_assignment,
    write_subscription,
)

PARTITIONS = st.dictionaries(st.text(max_size=5), st.frozensets(st.integers(0, 9)), max_size=3)


@given(st.integers(0, 3), st.lists(st.text(max_size=5), unique=True), PARTITIONS, st.none() | st.text(max_size=3))
def test_subscriptions_come_back(version, topics, owned, rack):
    written = write_subscription(Subscription(version, tuple(sorted(topics)), owned, rack))
    expected = Subscription(
        version, tuple(sorted(topics)), owned if version >= 1 else {}, rack if version >= 3 else None
    )
    assert read_subscription(written) == expected
    assert read_topics(written) == tuple(sorted(topics))


@given(st.integers(0, 3), PARTITIONS)
def test_assignments_come_back(version, partitions):
    assert read_assignment(write_assignment(version, partitions)).partitions == partitions


def test_bytes_of_the_definition():
    """ConsumerProtocolAssignment 1: version, [topic, [partition]], user data null."""
    assert write_assignment(1, {"t": frozenset((2,))}) == bytes.fromhex(
        "0001 00000001 000174 00000001 00000002 ffffffff"
    )
    assert read_assignment(b"").partitions == {}


def test_user_data_is_told():
    data = write_assignment(0, {})[:-4] + b"\0\0\0\1x"
    assert read_assignment(data).user_data == b"x"


@given(st.binary(max_size=40))
def test_random_bytes_raise_only_corrupt_data(data):
    for read in (read_subscription, read_assignment, read_topics):
        try:
            read(data)
        except CorruptCoordinatorRecord:
            continue


def test_what_is_cut_short_is_refused():
    with pytest.raises(CorruptCoordinatorRecord):
        read_subscription(b"\0\1\0\0\0\1")
