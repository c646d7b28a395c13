"""What the pages under docs/ say is what the code does."""

import importlib.util
import re
import subprocess

import click
import pytest

from mainstem.audit.books import Line
from mainstem.cli.clean import Cleaned
from mainstem.cli.job import JobRestored, JobRetired
from mainstem.cli.log import Repaired
from mainstem.cli.sink import SinkRetired
from mainstem.cli.topic import PartitionLine, TopicAltered, TopicDeleted, TopicDetail, TopicLine, TopicMade
from mainstem.connect.sinks.delta import LakehouseConfig
from mainstem.core import TopicPartition
from mainstem.core.task import TaskState
from mainstem.process.plan import Column, Plan, PlannedJob, PlannedTopic
from mainstem.process.slices import Slice, SliceResult
from mainstem.registry.reader import TypedRecord
from mainstem.standalone.doctor import Finding
from mainstem.standalone.overview import JobState, Overview, ReaderLine, SourceLine
from mainstem.standalone.state import UpState
from mainstem.standalone.supervisor import ChildState
from tests.support.commands import every_command
from tests.support.repository import PACKAGE, ROOT


def test_the_page_of_settings_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_settings", ROOT / "docs" / "make_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.render(), "run: python docs/make_settings.py"


def test_the_pattern_of_a_lakehouse_is_the_default_one() -> None:
    page = (ROOT / "docs" / "formats" / "sink-topics.md").read_text()
    assert f'{{"type": "delta", "pattern": "{LakehouseConfig().topics}"}}' in page


def test_every_command_is_in_the_readme() -> None:
    table = re.findall(r"^\| `mainstem ([^`]+)`", (ROOT / "README.md").read_text(), re.MULTILINE)
    there = {
        " ".join((group, command)).strip()
        for group, _, rest in (row.replace("\\|", "|").partition(" ") for row in table)
        for command in (rest.split(" ")[0].split("|") if rest[:1].islower() else [""])
    }
    assert there == {name for name, command in every_command() if not isinstance(command, click.Group)}


def test_every_page_can_be_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    pages = [f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")]
    assert [page for page in [*pages, "docs/decisions/", "docs/formats/"] if page not in readme] == []


def test_the_tour_names_modules_that_are_there() -> None:
    tour = (ROOT / "docs" / "tour.md").read_text()
    modules = [path.relative_to(ROOT).as_posix() for room in (PACKAGE, ROOT / "tests") for path in room.rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", tour)
    assert [name for name in named if not any(f"/{module}".endswith(f"/{name}") for module in modules)] == []


def test_every_decision_is_a_page_with_a_title() -> None:
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        assert page.read_text().startswith("# "), page.name


def test_every_test_and_measurement_that_a_page_names_is_there() -> None:
    """A page that says what proves a rule is wrong once the test has another name."""
    tests = list((ROOT / "tests").rglob("*.py"))
    functions = set(re.findall(r"def (test_\w+)", "\n".join(path.read_text() for path in tests)))
    files = {path.name for path in (*tests, *(ROOT / "bench").glob("*.py"))}
    missing = []
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text()
        for name, rest in re.findall(r"`(?:[\w/]+/)?(test_\w+)(\.py|\.\.\.|\[[\w ]+\])?`", text):
            there = any(each.startswith(name) for each in functions) if rest == "..." else name in functions
            if not (f"{name}.py" in files if rest == ".py" else there):
                missing.append(f"{page.name}: {name}{rest}")
        missing += [f"{page.name}: bench/{name}" for name in re.findall(r"`bench/(\w+\.py)", text) if name not in files]
    assert missing == []


def test_make_help_names_every_target_that_a_person_runs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (phony,) = [line for line in makefile.splitlines() if line.startswith(".PHONY:")]
    inner = {"help", "tools", "archive"}
    assert [name for name in phony.split()[1:] if name not in inner and f"make {name} " not in told] == []
    assert [name for name in ("KEEP", "FLIGHTS", "PYTHON", "UPGRADE") if f"{name}=" not in told] == []


DOCUMENTS = {
    "status": [Overview, UpState, ChildState, TaskState, SourceLine, ReaderLine],
    "job list": [JobState],
    "job restore": [JobRestored],
    "job retire": [JobRetired],
    "job run": [SliceResult, Slice],
    "sink retire": [SinkRetired],
    "topic list": [TopicLine],
    "topic create": [TopicMade],
    "topic alter": [TopicAltered],
    "topic delete": [TopicDeleted],
    "topic describe": [TopicDetail, PartitionLine],
    "tail": [TypedRecord],
    "plan": [Plan, PlannedTopic, PlannedJob, Column],
    "audit": [Line, TopicPartition],
    "doctor": [Finding],
    "log repair": [Repaired],
    "clean": [Cleaned],
}


@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_field_that_json_has_is_in_its_section(command: str) -> None:
    sections = (ROOT / "docs" / "json.md").read_text().split("\n## ")
    (section,) = [text for text in sections if text.startswith(f"`mainstem {command}`")]
    fields = {field for kind in DOCUMENTS[command] for field in kind.__struct_fields__}
    assert [field for field in sorted(fields) if f"`{field}`" not in section] == []


def test_every_command_that_ends_with_an_answer_has_json_and_a_section() -> None:
    """`topic create`, `topic delete`, `job retire`, `clean` and `log repair` had text for people only."""
    page = (ROOT / "docs" / "json.md").read_text()
    without = []
    for name, command in every_command():
        if any(parameter.name == "as_json" for parameter in command.params):
            assert f"`mainstem {name}`" in page
        elif not isinstance(command, click.Group):
            without.append(name)
    # Those that run until they are stopped.
    assert without == ["log start", "run connect", "run gateway", "run serve", "run spark", "up"]
