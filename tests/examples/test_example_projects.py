"""The example projects with tests of their own, as a user runs them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.process.project import load_project
from tests.support.repository import ROOT

PROJECTS = sorted(each.parent for each in (ROOT / "examples").glob("*/tests"))
each_project = pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)


def test_none_is_left_out() -> None:
    assert [project.name for project in PROJECTS] == ["book", "job_views", "recipes"]


@each_project
def test_every_job_is_tested_and_says_what_it_does(project: Path) -> None:
    jobs = load_project(project).jobs
    tests = [file.read_text() for file in (project / "tests").glob("test_*.py")]
    assert {name for text in tests for name in re.findall(r'start\("(\w+)"\)', text)} == jobs.keys()
    assert [name for name, job in jobs.items() if not job.doc] == []


@pytest.mark.spark
@each_project
def test_their_own_tests_pass(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests"]
    said = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600, check=False)
    assert said.returncode == 0, said.stdout[-5000:]
