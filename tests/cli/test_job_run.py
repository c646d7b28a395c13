"""`mainstem job run`: what it asks for; that it runs is in tests/standalone/test_slices.py."""

import click
import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.cli.job_run import _Time


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-27", 1_795_737_600_000),
        ("2026-11-27T10:30", 1_795_775_400_000),
        ("2026-11-27T10:30:00.250Z", 1_795_775_400_250),
        ("2026-11-27T10:30:00+02:00", 1_795_768_200_000),
    ],
)
def test_a_time_is_in_utc_unless_it_says_otherwise(text, ms):
    assert _Time().convert(text, None, None) == ms


@pytest.mark.parametrize("text", ["yesterday", "", "2026-13-01"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(click.BadParameter, match="expected a date or a time"):
        _Time().convert(text, None, None)


def test_a_slice_ends_after_it_begins():
    found = CliRunner().invoke(group, ["job", "run", "x", "--from", "2026-11-28", "--to", "2026-11-27"])
    assert found.exit_code == 2
    assert "expected a time after that of --from" in found.output
