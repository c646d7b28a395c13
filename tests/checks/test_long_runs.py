"""`make test-long` does what docs/long-runs.md says: every property, with more examples."""

import re

from tests.support.repository import ROOT


def test_properties_are_part_of_the_long_run() -> None:
    assert '--long --timeout 3600 -m "long or hypothesis"' in (ROOT / "Makefile").read_text()


def test_no_property_has_the_same_number_of_examples_in_a_long_run() -> None:
    """A number in the test itself would hold there too: `tests.support.properties.examples` gives one for each run."""
    fixed = [path.name for path in (ROOT / "tests").rglob("*.py") if re.search(r"max_examples=\d", path.read_text())]
    assert fixed == []
