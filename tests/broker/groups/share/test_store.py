from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups.share.records import (
    PartitionKey,
    SnapshotKey,
    SnapshotValue,
    UpdateKey,
    UpdateValue,
    decode_state,
    decode_state_key,
    encode_state,
    encode_state_key,
)
from mainstem.broker.groups.share.state import Change, RecordState, ShareState, StateBatch
from mainstem.broker.groups.share.store import ShareStates

KEY = PartitionKey("g", UUID(int=1), 0)
DONE = RecordState.ACKNOWLEDGED


def started(updates_per_snapshot=3):
    states = ShareStates(updates_per_snapshot)
    states.replay(*states.snapshot(KEY, ShareState(start_offset=5), 1_000))
    return states


def change(n):
    return Change(5, n, (StateBatch(5 + 2 * n, 5 + 2 * n, DONE, 1),))


def test_first_a_snapshot_then_updates_then_a_snapshot():
    states = started()
    kinds = []
    for n in range(1, 9):
        key, value = states.record(KEY, change(n), 7, 2_000 + n)
        kinds.append((type(value), value.snapshot_epoch))
        states.replay(key, value)
    update, snapshot = UpdateValue, SnapshotValue
    assert kinds == [*[(update, 0)] * 3, (snapshot, 1), *[(update, 1)] * 3, (snapshot, 2)]
    assert (value.created_ms, value.written_ms) == (1_000, 2_008)
    assert [batch.first for batch in value.batches] == list(range(7, 23, 2))


def test_a_record_counts_when_it_is_durable():
    states = started()
    states.record(KEY, change(1), 7, 0)
    assert states.get(KEY).batches == ()


@given(st.lists(st.integers(1, 20), max_size=12), st.integers(0, 4))
def test_the_states_come_back_from_their_records(numbers, updates_per_snapshot):
    """Read from any snapshot on."""
    states, written = ShareStates(updates_per_snapshot), []

    def write(key, value):
        written.append((encode_state_key(key), encode_state(value)))
        states.replay(key, value)

    write(*states.snapshot(KEY, ShareState(start_offset=5), 0))
    for n in numbers:
        write(*states.record(KEY, change(n), 7, n))
    for start, (first, _) in enumerate(written):
        if not isinstance(decode_state_key(first), SnapshotKey):
            continue
        again = ShareStates()
        for key, value in written[start:]:
            found = decode_state_key(key)
            again.replay(found, decode_state(found, value))
        assert again.get(KEY) == states.get(KEY)


def test_updates_of_another_snapshot_are_passed_over():
    states = started()
    value = UpdateValue(snapshot_epoch=1, leader_epoch=0, start_offset=9)
    states.replay(UpdateKey("g", UUID(int=1), 0), value)
    states.replay(UpdateKey("other", UUID(int=1), 0), value)
    assert states.get(KEY).start_offset == 5
    assert len(states) == 1


def test_a_tombstone():
    states = started()
    assert list(states.of_group("g")) == [KEY]
    states.replay(SnapshotKey("g", UUID(int=1), 0), None)
    assert states.get(KEY) is None
    assert states.of_group("g") == {}


def test_a_change_of_what_is_not_kept_is_a_bug():
    with pytest.raises(KeyError):
        ShareStates().record(KEY, change(1), 0, 0)
