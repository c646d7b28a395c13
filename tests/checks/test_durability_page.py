"""docs/durability.md names tests that there are."""

import re

from tests.support.repository import ROOT


def test_every_test_that_holds_a_promise_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "durability.md").read_text()))
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for text in texts for name in re.findall(r"^def (\w+)\(", text, re.MULTILINE)}
    assert len(named) > 30
    assert named <= there, named - there


def test_every_module_that_keeps_a_promise_exists() -> None:
    named = re.findall(r"`((?:log|broker)/[\w/]+(?:\.py)?)", (ROOT / "docs" / "durability.md").read_text())
    assert named
    assert [each for each in named if not (ROOT / "src" / "mainstem" / each).exists()] == []
