"""What README.md shows runs as it stands there."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.node import Node, wait_for
from tests.support.repository import ROOT

FILES = (("mainstem.toml", "toml"), ("jobs.py", "python"))


def project_in_the_readme() -> dict[str, str]:
    readme = (ROOT / "README.md").read_text().partition("## A project")[2]
    blocks = {name: re.search(f"```{language}\n(.*?)```", readme, re.DOTALL) for name, language in FILES}
    return {name: block[1] for name, block in blocks.items() if block is not None}


def test_it_has_the_ten_lines_that_are_promised() -> None:
    lines = [line for text in project_in_the_readme().values() for line in text.splitlines() if line.strip()]
    assert len(lines) <= 10


@pytest.mark.spark
def test_the_project_in_the_readme_runs(tmp_path: Path) -> None:
    """It had neither settings nor a schema: with the README alone its job waited for ever."""
    project = tmp_path / "project"
    project.mkdir()
    for name, text in project_in_the_readme().items():
        (project / name).write_text(text)
    unpack = re.search(r"gunzip -c (\S+) > PROJECT/(\S+)", (ROOT / "README.md").read_text())
    assert unpack is not None
    log = gzip.decompress((ROOT / unpack[1]).read_bytes()).decode()
    (project / unpack[2]).write_text(log)
    truth = [{"line": line, "client": line.split()[0]} for line in log.splitlines() if '" 404 ' in line]
    assert len(truth) > 100
    with Node(project, tmp_path / "data") as node:
        wait_for(lambda: node.values_of("missing_pages") == truth, 120)
        wait_for(lambda: rows_of(tmp_path / "data" / "tables" / "missing_pages") == truth, 120)
        node.stop()


def rows_of(table: Path) -> list[dict[str, Any]]:
    """In the order of the topic; none where there is no table yet."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    rows = DeltaTable(str(table)).to_pyarrow_table().sort_by("_offset")
    found: list[dict[str, Any]] = rows.select(["line", "client"]).to_pylist()
    return found
