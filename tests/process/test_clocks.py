"""A plan tells the time where it asks Spark for it, or has what the function has asked Python for."""

from datetime import UTC, datetime

import pytest

from mainstem.process.clocks import clock_of

BEGAN = datetime(2026, 11, 28, 18, 30, 1, tzinfo=UTC).timestamp()
ENDED = BEGAN + 2


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ("Project [id#1L, current_timestamp() AS at#2]", "current_timestamp"),
        ("Project [id#1L, now() AS at#2]", "now"),
        ("Project [id#1L, 2026-11-28 18:30:02.123456 AS at#2]", "2026-11-28 18:30:02.123456"),
        ("Project [id#1L, 2026-11-28 18:30:02 AS at#2]", "2026-11-28 18:30:02"),
        (f"Filter (at#1L < {int(BEGAN) + 1})", str(int(BEGAN) + 1)),
        (f"Filter (at#1L < {(int(BEGAN) + 1) * 1000})", str((int(BEGAN) + 1) * 1000)),
        (f"Filter (at#1L < {(int(BEGAN) + 1) * 1_000_000})", str((int(BEGAN) + 1) * 1_000_000)),
        (f"Filter (at#1L < {(int(BEGAN) + 1) * 1_000_000_000})", str((int(BEGAN) + 1) * 1_000_000_000)),
        (f"Filter (at#1 < {(BEGAN + 1) / 1e9:.12f}E9)", f"{(BEGAN + 1) / 1e9:.12f}E9"),
        (f"Filter (at#1 < {BEGAN + 1.25})", str(BEGAN + 1.25)),
    ],
)
def test_what_tells_the_time_is_named(plan, told):
    assert clock_of(plan, BEGAN, ENDED) == told


@pytest.mark.parametrize(
    "plan",
    [
        "Project [id#1L, 2026-11-28 18:29:02.123456 AS at#2]",
        "Filter (at#1 < 2026-13-41 25:61:00)",
        "Filter (now#1 > 5)",
        f"Filter (id#{int(BEGAN) + 1} > 5)",
        f"Filter (id#1L > {int(BEGAN) - 86_400})",
        f"Filter (id#1L > 1{int(BEGAN) + 1})",
        f"Filter (name#1 = order{int(BEGAN) + 1})",
        "",
    ],
)
def test_other_times_and_numbers_are_no_clock(plan):
    assert clock_of(plan, BEGAN, ENDED) is None
