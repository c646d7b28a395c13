"""The recipes, and their own tests, as a user runs them."""

import re
import subprocess
import sys

import pytest

from mainstem.process.project import load_project
from tests.support.repository import ROOT

RECIPES = ROOT / "examples" / "recipes"


def test_every_recipe_is_tested_and_says_what_it_does():
    jobs = load_project(RECIPES).jobs
    tested = {
        name
        for file in (RECIPES / "tests").glob("test_*.py")
        for name in re.findall(r'start\("(\w+)"\)', file.read_text())
    }
    assert jobs.keys() == tested
    assert [name for name, job in jobs.items() if not job.doc] == []


@pytest.mark.spark
def test_their_own_tests_pass():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests"]
    said = subprocess.run(command, cwd=RECIPES, capture_output=True, text=True, timeout=600, check=False)
    assert said.returncode == 0, said.stdout[-5000:]
