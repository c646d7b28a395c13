"""What docs/projects.md shows runs, and is what the page says of it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import mainstem
from tests.support.repository import ROOT


@pytest.fixture
def blocks(tmp_path: Path) -> dict[str, list[str]]:
    """The page's blocks by language; those that are files are in `tmp_path`."""
    found: dict[str, list[str]] = {}
    for language, text in re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / "projects.md").read_text(), re.DOTALL):
        found.setdefault(language, []).append(text)
    (tmp_path / "mainstem.toml").write_text(found["toml"][0])
    (tmp_path / "orders.avsc").write_text(found["json"][0])
    (tmp_path / "customers.avsc").write_text(found["json"][1])
    (tmp_path / "jobs.py").write_text(found["python"][0])
    return found


@pytest.mark.spark
def test_the_project_means_what_the_page_says(blocks: dict[str, list[str]], tmp_path: Path) -> None:
    done = mainstem("plan", tmp_path, "--json", timeout=240)
    assert done.returncode == 0, done.stderr
    jobs = json.loads(done.stdout)["jobs"]
    assert {job["name"]: (job["determinism"], job["keeps_order"]) for job in jobs} == {
        "large_orders": ("prefix-deterministic", True),
        "orders_enriched": ("batch-dependent", True),
        "revenue_hourly": ("batch-dependent", False),
    }


@pytest.mark.spark
def test_a_job_is_called_with_rows_as_the_page_does_it(blocks: dict[str, list[str]], tmp_path: Path) -> None:
    command = [sys.executable, "-c", blocks["python"][1]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
