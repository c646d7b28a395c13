"""The plan of a query's next batch, given from outside."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core import CorruptData
from mainstem.process.offsets import read_plan
from mainstem.process.planting import Stand, Step, is_at, next_step, plant, stand_of

METADATA = {"batchWatermarkMs": 5000, "batchTimestampMs": 1, "conf": {"spark.sql.shuffle.partitions": "4"}}


@pytest.fixture
def checkpoint(tmp_path):
    """Batch 41 has ended; 42 was planned, and did not reach the log."""
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    text = f'v1\n{json.dumps(METADATA)}\n{{"a":{{"0":5,"1":1}}}}\n{{"logOffset":3}}\n-'
    (tmp_path / "offsets" / "41").write_text(text)
    (tmp_path / "offsets" / "42").write_text(text.replace('"0":5', '"0":99').replace(":3}", ":4}"))
    (tmp_path / "offsets" / ".42.crc").write_text("of the old one")
    (tmp_path / "commits" / "41").write_text('v1\n{"nextBatchWatermarkMs":7000}')
    return tmp_path


def test_a_plan_has_other_ends_and_all_else_of_the_one_before(checkpoint):
    stand = stand_of(checkpoint, 41, {"in": {"a": {0: 5, 1: 1}}})
    assert stand == Stand(41, {"a": {0: 5, 1: 1}}, 5000, 7000, True)
    plant(checkpoint, 41, Step({"a": {0: 8}}, stand.watermark), now_ms=77)
    assert (checkpoint / "offsets" / "42").read_text().splitlines() == [
        "v1",
        json.dumps(METADATA | {"batchWatermarkMs": 7000, "batchTimestampMs": 77}, separators=(",", ":")),
        '{"a":{"0":8,"1":1}}',
        '{"logOffset":3}',
        "-",
    ]
    assert not (checkpoint / "offsets" / ".42.crc").exists()
    assert read_plan(checkpoint, 42).ends == {"a": {"a": {0: 8, 1: 1}}}


def test_a_batch_whose_end_is_not_written_down_is_told(checkpoint):
    (checkpoint / "commits" / "41").unlink()
    assert stand_of(checkpoint, 41, {"in": {"a": {0: 5}}}) == Stand(41, {"a": {0: 5}}, 5000, 5000, False)
    (checkpoint / "commits" / "41").write_text("")
    with pytest.raises(CorruptData, match="expected the end of a batch"):
        stand_of(checkpoint, 41, {})
    (checkpoint / "offsets" / "41").write_text("v1\n{")
    with pytest.raises(CorruptData, match="expected the plan of a batch"):
        plant(checkpoint, 41, Step({}, 0), 0)


def test_windows_are_closed_once_it_is_there():
    there = Stand(3, {"a": {0: 5}}, closed=10, watermark=20, whole=True)
    assert next_step(there, {"a": {0: 5}}, 10, windows=False) is None
    assert next_step(there, {"a": {0: 5}}, 10, windows=True) == Step({"a": {0: 5}}, 20)
    assert next_step(Stand(4, {"a": {0: 5}}, 20, 20, True), {"a": {0: 5}}, 10, windows=True) is None
    assert next_step(there, {"a": {0: 4}}, 10, windows=True) is None  # it is beyond
    assert next_step(there, {"a": {0: 6}}, 10, windows=True) == Step({"a": {0: 6}}, 20)  # rows first


POSITIONS = st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.integers(0, 2), st.integers(0, 50)))


@given(POSITIONS, POSITIONS, st.integers(1, 20))
def test_steps_are_no_longer_than_a_batch_and_lead_to_the_position(basis, wanted, at_most):
    stand = Stand(0, basis, 0, 0, True)
    while (step := next_step(stand, wanted, at_most, windows=False)) is not None:
        before = {(t, p): offset for t, each in stand.basis.items() for p, offset in each.items()}
        after = {(t, p): offset for t, each in step.ends.items() for p, offset in each.items()}
        assert all(after[place] >= offset for place, offset in before.items())
        assert 0 < sum(after.values()) - sum(before.values()) <= at_most
        stand = Stand(stand.batch + 1, step.ends, 0, 0, True)
    for topic, each in wanted.items():
        for partition, offset in each.items():
            reached = stand.basis.get(topic, {}).get(partition, 0)
            assert reached == max(offset, basis.get(topic, {}).get(partition, 0))
    beyond = any(basis.get(t, {}).get(p, 0) > offset for t, each in wanted.items() for p, offset in each.items())
    missing = any(basis.get(t, {}).get(p, 0) and p not in each for t, each in wanted.items() for p in basis.get(t, {}))
    assert is_at(stand.basis, wanted) == (not beyond and not missing)
