"""What the pages under docs/ say is what the code does."""

import importlib.util
import subprocess

from mainstem.cli import COMMANDS
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


def test_every_decision_is_a_page_with_a_title() -> None:
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        text = page.read_text()
        assert text.startswith("# "), page.name
        assert len(text) > 400, page.name


def test_make_help_names_every_target_that_a_person_runs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (phony,) = [line for line in makefile.splitlines() if line.startswith(".PHONY:")]
    inner = {"help", "tools", "archive"}
    assert [name for name in phony.split()[1:] if name not in inner and f"make {name} " not in told] == []
    assert [name for name in ("KEEP", "FLIGHTS", "PYTHON", "UPGRADE") if f"{name}=" not in told] == []
