"""What the pages under docs/ say is what the code does."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from mainstem.cli import COMMANDS
from tests.support.node import Node, wait_for
from tests.support.repository import ROOT


def test_the_page_of_settings_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_settings", ROOT / "docs" / "make_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.render(), "run: python docs/make_settings.py"


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    inner = {"run"}  # what `up` starts; people start it only on other hosts
    assert [name for name in COMMANDS if name not in inner and f"mainstem {name}" not in readme] == []


@pytest.mark.spark
def test_the_project_in_the_readme_runs(tmp_path: Path) -> None:
    """It had neither settings nor a schema: with the README alone its job waited for ever."""
    readme = (ROOT / "README.md").read_text().partition("## A project")[2]
    project = tmp_path / "project"
    project.mkdir()
    for name, language in (("mainstem.toml", "toml"), ("orders.avsc", "json"), ("jobs.py", "python")):
        block = re.search(f"```{language}\n(.*?)```", readme, re.DOTALL)
        assert block is not None, language
        (project / name).write_text(block[1])
    request = re.search(r"curl \S+/v1/topics/(\S+) .* -d '(.*?)'", readme, re.DOTALL)
    assert request is not None
    with Node(project, tmp_path / "data") as node:
        results = node.post(request[1], json.loads(request[2]))["results"]
        assert [each["status"] for each in results] == ["accepted", "accepted"]
        wait_for(lambda: node.values_of("shop.revenue_hourly"), 120)
        (row,) = node.values_of("shop.revenue_hourly")
        node.stop()
    assert row["revenue_cents"] == 1200


def test_every_decision_is_a_page_with_a_title() -> None:
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        text = page.read_text()
        assert text.startswith("# "), page.name
        assert len(text) > 400, page.name
