"""What a source does at its start, by what the log and the database say."""

import msgspec
import pytest

from mainstem.connect.sources.postgres_position import (
    Part,
    PositionMismatch,
    Resume,
    Server,
    Slot,
    SlotExists,
    Snapshot,
    SourcePosition,
    decode_position,
    plan_start,
)
from mainstem.core import CorruptData

SERVER = Server("77", "shop", 0x500)
POSITION = SourcePosition("streaming", "77", "shop", "slot", lsn=0x300, commit_lsn=0x2F0, tables=("public.a",))
SLOT = Slot("pgoutput", "shop", None, 0x300, "reserved")


def plan(position=POSITION, slot=SLOT, server=SERVER, *, gap=False):
    return plan_start("shop", "slot", position, slot, server, snapshot_on_gap=gap)


def changed(struct, **fields):
    return msgspec.structs.replace(struct, **fields)


def test_nothing_yet_means_a_snapshot():
    assert plan(None, None) == Snapshot(drop_slot=False)


def test_a_slot_that_the_log_does_not_know_is_not_touched():
    with pytest.raises(SlotExists, match="slot slot exists") as found:
        plan(None)
    assert "pg_drop_replication_slot('slot')" in found.value.hint


@pytest.mark.parametrize("slot", [None, SLOT])
def test_a_snapshot_that_was_cut_short_begins_anew(slot):
    assert plan(changed(POSITION, state="snapshot"), slot) == Snapshot(drop_slot=slot is not None)


@pytest.mark.parametrize("confirmed", [0x100, 0x300])
def test_a_slot_at_or_before_the_position_is_resumed(confirmed):
    assert plan(slot=changed(SLOT, confirmed_lsn=confirmed)) == Resume(POSITION)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"slot": None}, "slot slot does not exist: changes from 0/300 to 0/500 are missing"),
        ({"slot": changed(SLOT, wal_status="lost")}, "has lost its WAL: changes from 0/300 to 0/500"),
        ({"slot": changed(SLOT, confirmed_lsn=0x400)}, "was moved: changes from 0/300 to 0/400 are missing"),
        ({"server": changed(SERVER, wal_end=0x200)}, "changes up to 0/300, but the database's WAL ends at 0/200"),
        (
            {"slot": None, "server": changed(SERVER, system="78")},
            "database shop of system 77, found database shop of system 78",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_missing_range_and_the_repair(case, reason):
    with pytest.raises(PositionMismatch, match=reason) as found:
        plan(**case)
    assert 'on_gap = "snapshot"' in found.value.hint
    assert isinstance(plan(**case, gap=True), Snapshot)


@pytest.mark.parametrize("state", ["streaming", "snapshot"])
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"server": changed(SERVER, system="78")}, "database shop of system 77"),
        ({"server": changed(SERVER, database="other"), "slot": changed(SLOT, database="other")}, "database shop of"),
        ({"slot": changed(SLOT, plugin="test_decoding")}, "not ours"),
        ({"slot": changed(SLOT, database="other")}, "not ours"),
    ],
)
def test_a_slot_of_others_is_never_dropped(case, reason, state):
    """The source was pointed at another database, where a Mainstem that is stopped keeps a slot of the same name."""
    if state == "streaming":
        with pytest.raises(PositionMismatch, match=reason):
            plan(**case)
    with pytest.raises(SlotExists, match="slot slot exists in system") as found:
        plan(changed(POSITION, state=state), **case, gap=True)
    assert "pg_drop_replication_slot('slot')" in found.value.hint


def test_a_position_comes_back_from_the_log():
    position = changed(POSITION, part=Part(0x310, 5, 7, {"shop.a": 7}))
    assert decode_position("shop", msgspec.json.decode(msgspec.json.encode(position))) == position


def test_a_position_that_is_none_is_corrupt():
    with pytest.raises(CorruptData, match="source shop"):
        decode_position("shop", {"lsn": "x"})
