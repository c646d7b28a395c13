import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.fields import CorruptCoordinatorRecord, LaterVersion
from mainstem.broker.groups.records import decode_key, encode_key
from mainstem.broker.groups.streams import records
from mainstem.broker.groups.streams.records import (
    CurrentKey,
    CurrentValue,
    MemberKey,
    MemberState,
    MemberValue,
    StreamsGroupKey,
    StreamsGroupValue,
    TargetKey,
    TargetMemberKey,
    TargetMemberValue,
    TargetValue,
    TopologyKey,
)
from mainstem.broker.groups.streams.tasks import HeldTasks, Tasks
from mainstem.broker.groups.streams.topology import CopartitionGroup, InternalTopic, Subtopology, Topology
from mainstem.core import CorruptData

TEXT = st.text(max_size=8)
INT16, INT32, INT64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
NUMBERS = st.integers(0, 2**31 - 1)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
TASKS = st.dictionaries(TEXT, st.frozensets(NUMBERS), max_size=3)
HELD = st.builds(
    HeldTasks, st.dictionaries(TEXT, st.dictionaries(NUMBERS, INT32, max_size=3), max_size=3), TASKS, TASKS
)
NAMES, PLACES = st.lists(TEXT, max_size=3).map(tuple), st.lists(INT16, max_size=3).map(tuple)
TOPICS = st.lists(st.builds(InternalTopic, TEXT, INT32, INT16, PAIRS), max_size=2).map(tuple)
SUBTOPOLOGIES = st.builds(
    Subtopology,
    subtopology_id=TEXT,
    source_topics=NAMES,
    source_topic_regexes=NAMES,
    changelog_topics=TOPICS,
    repartition_sink_topics=NAMES,
    repartition_source_topics=TOPICS,
    copartition_groups=st.lists(st.builds(CopartitionGroup, PLACES, PLACES, PLACES), max_size=2).map(tuple),
)
RECORDS = st.one_of(
    st.tuples(st.builds(StreamsGroupKey, TEXT), st.builds(StreamsGroupValue, INT32, INT64, INT32, st.none() | PAIRS)),
    st.tuples(
        st.builds(MemberKey, TEXT, TEXT),
        st.builds(
            MemberValue,
            instance_id=st.none() | TEXT,
            rack_id=st.none() | TEXT,
            client_id=TEXT,
            client_host=TEXT,
            rebalance_timeout_ms=INT32,
            topology_epoch=INT32,
            process_id=TEXT,
            endpoint=st.none() | st.tuples(TEXT, st.integers(0, 65_535)),
            client_tags=PAIRS,
        ),
    ),
    st.tuples(st.builds(TargetKey, TEXT), st.builds(TargetValue, INT32, INT64)),
    st.tuples(
        st.builds(TargetMemberKey, TEXT, TEXT),
        st.builds(TargetMemberValue, st.builds(Tasks, TASKS, TASKS, TASKS)),
    ),
    st.tuples(
        st.builds(CurrentKey, TEXT, TEXT),
        st.builds(CurrentValue, INT32, INT32, st.sampled_from(MemberState), HELD, HELD),
    ),
    st.tuples(st.builds(TopologyKey, TEXT), st.builds(Topology, INT32, st.lists(SUBTOPOLOGIES, max_size=2).map(tuple))),
)


@given(RECORDS)
def test_what_is_written_is_read(record):
    key, value = record
    assert decode_key(encode_key(key)) == key
    assert records.decode_value(key, records.encode_value(value)) == value


@given(RECORDS, st.data())
def test_what_is_cut_short_is_found(record, data):
    key, value = record
    encoded = records.encode_value(value)
    with pytest.raises(CorruptCoordinatorRecord):
        records.decode_value(key, encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(RECORDS, st.binary(max_size=60))
def test_anything_else_is_refused_as_corrupt(record, data):
    for decode in (lambda: records.decode_value(record[0], b"\0\0" + data), lambda: decode_key(b"\0\x13" + data)):
        try:
            decode()
        except CorruptData:
            continue


def test_a_later_version_is_told_apart():
    with pytest.raises(LaterVersion):
        records.decode_value(TargetKey("g"), b"\0\1")
    with pytest.raises(CorruptCoordinatorRecord):
        records.decode_value(TargetKey("g"), b"\xff\xff")


def test_an_unknown_key_is_none():
    assert decode_key(b"\0\x12\0\1g") is None


def test_what_kafka_4_2_wrote_has_no_epochs_of_tasks():
    value = b"\0\0" + b"\0\0\0\7" + b"\0\0\0\6" + b"\1" + b"\2\2s\2\0\0\0\3\0" + b"\1" * 5 + b"\0"
    assert records.decode_value(CurrentKey("g", "m"), value) == CurrentValue(
        7, 6, MemberState.STABLE, HeldTasks({"s": {3: 7}})
    )


def test_a_state_that_is_not_known_is_kept_as_such():
    encoded = bytearray(records.encode_value(CurrentValue(1, 1)))
    encoded[10] = 99
    assert records.decode_value(CurrentKey("g", "m"), bytes(encoded)).state is MemberState.UNKNOWN
