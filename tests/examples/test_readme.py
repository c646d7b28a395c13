"""What README.md shows runs as it stands there."""

import json
import re
from pathlib import Path

import pytest

from tests.support.node import Node, wait_for
from tests.support.repository import ROOT


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
