"""`make test-long` does what docs/long-runs.md says: every property, with more examples."""

import ast
import re
import shlex
import subprocess
import sys

from tests.support.repository import ROOT


def collected(*options: str) -> tuple[set[str], str]:
    """The names of the tests that pytest selects, and what it printed."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return {line.partition("::")[2].partition("[")[0] for line in lines if "::" in line}, "\n".join(lines)


def test_properties_are_part_of_the_long_run() -> None:
    (target,) = re.findall(r"^test-long:.*\n\t@\$\(PYTEST\) (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    selected, _ = collected(*shlex.split(target), "tests/records")
    trees = [ast.parse(path.read_text()) for path in (ROOT / "tests" / "records").glob("test_*.py")]
    functions = [each for tree in trees for each in tree.body if isinstance(each, ast.FunctionDef)]
    properties = {
        each.name for each in functions if any(ast.unparse(mark).startswith("given(") for mark in each.decorator_list)
    }
    assert len(properties) > 3
    assert selected == properties


def test_what_is_left_out_is_told_with_the_target_that_runs_it() -> None:
    _, said = collected("tests/crash/test_sink_protocol.py")
    assert re.search(r"^not run: \d+ kafka \(make test-kafka\)", said, re.MULTILINE), said
    _, said = collected("--kafka", "--long", "tests/crash/test_sink_protocol.py")
    assert "not run" not in said


def test_no_property_has_the_same_number_of_examples_in_a_long_run() -> None:
    """A number in the test itself would hold there too: `tests.support.properties.examples` gives one for each run."""
    fixed = [path.name for path in (ROOT / "tests").rglob("*.py") if re.search(r"max_examples=\d", path.read_text())]
    assert fixed == []


def test_each_target_has_its_last_figures() -> None:
    page = (ROOT / "docs" / "long-runs.md").read_text()
    targets, figures = (re.findall(r"^\| (.*?) \|", part, re.MULTILINE) for part in page.split("## Last figures"))
    named = {target for cell in targets for target in re.findall(r"`(make [\w-]+)`", cell)}
    assert len(named) == 3
    assert named - {target for cell in figures for target in re.findall(r"`(make [\w-]+)`", cell)} == set()
