from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest

from mainstem.client.progress import Read
from mainstem.registry.bounds import DEEPEST
from mainstem.serve import Applied, Change, to_json
from mainstem.serve.index import after_truncates


def test_where_an_index_is_comes_back_from_its_commit():
    read = Read(start=5, end=9, rows=3, tombstones=1, hash=2**64 - 1)
    applied = Applied("abc", {"shop.orders": "id"}, {"shop.orders": {0: read, 3: Read(end=0)}})
    assert Applied.decode(applied.encode()) == applied
    assert applied.position == {"shop.orders": {0: 9, 3: 0}}


def test_what_is_no_position_is_refused():
    with pytest.raises(msgspec.MsgspecError):
        Applied.decode(b"{}")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), '"NaN"'),
        (float("inf"), '"Infinity"'),
        ([1.5, {"x": float("-inf")}], '[1.5,{"x":"-Infinity"}]'),
        (Decimal("1.10"), '"1.10"'),
        (b"\x00\xff", '"AP8="'),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), '"2026-01-02T03:04:05.000006Z"'),
        (datetime(2026, 1, 2, 3, 4, 5), '"2026-01-02T03:04:05"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (time(3, 4), '"03:04:00"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ((None, True, 2**63), "[null,true,9223372036854775808]"),
        ({True: 1, False: [{None: 2}]}, '{"true":1,"false":[{"null":2}]}'),
        ({(1, True): "x", 2: date(2026, 1, 2)}, '{"[1,true]":"x","2":"2026-01-02"}'),
        ({float("nan"): 1, float("-inf"): 2, 1.5: 3}, '{"NaN":1,"-Infinity":2,"1.5":3}'),
    ],
)
def test_a_value_in_json(value, text):
    assert msgspec.json.encode(to_json(value)).decode() == text


def test_a_value_as_deep_as_any_schema_lets_it_be_is_told():
    deep = []
    for number in range(DEEPEST):
        deep = [deep] if number % 2 else {"x": deep}
    assert msgspec.json.decode(msgspec.json.encode(to_json(deep))) == deep


def test_what_a_truncate_takes_away_is_only_looked_for_in_other_partitions():
    row = {"a": 1}
    before = [Change("t", 0, 0, "x", row), Change("t", 0, 1, None, row), Change("t", 1, 0, "y", row)]
    after = [Change("t", 0, 3, "x", row), Change("t", 0, 4, "z", None)]
    left = after_truncates([*before, Change("t", 0, 2, None, None, truncates=True), *after])
    assert left == [Change("t", 0, 0, "x", None), before[2], *after]
