"""Lengths of time as Spark writes them."""

import pytest

from mainstem.process.durations import milliseconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 minutes", 600_000),
        ("1 hour 30 minutes", 5_400_000),
        ("1 Hour, 1 second", 3_601_000),
        ("250 milliseconds", 250),
        ("interval 2 minutes", 120_000),
        ("2 weeks", 1_209_600_000),
        ("soon", None),
        ("1 month", None),
        ("5", None),
    ],
)
def test_a_length_of_time_in_ms(text, expected):
    assert milliseconds(text) == expected
