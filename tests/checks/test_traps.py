"""docs/conformance.md lists the traps of the protocol, and every test that is named for one."""

import re

from tests.support.repository import ROOT

TRAPS = {f"g{number}" for number in range(1, 12)}


def named() -> set[str]:
    table = (ROOT / "docs" / "conformance.md").read_text().partition("## Traps of the protocol")[2]
    return set(re.findall(r"`(g\d+_\w+)`", table))


def written() -> set[str]:
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^def test_(g\d+_\w+)", text, re.MULTILINE)}


def test_each_trap_has_a_test_that_is_named_for_it() -> None:
    assert {re.match(r"g\d+", name)[0] for name in written()} == TRAPS  # type: ignore[index] - each matches


def test_the_table_has_them_all_and_no_other() -> None:
    assert named() == written()
