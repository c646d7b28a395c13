"""A project's modules come from its directory, whatever else is on the path; Python's own never do."""

import calendar
import importlib
import sys
from pathlib import Path

import pytest

from mainstem.process.imports import forget_imports, import_from, link_for_workers, modules_of, stop_importing


@pytest.fixture
def place(tmp_path):
    """The directory of a project that can be imported from, in this test alone."""
    directory = tmp_path / "project"
    directory.mkdir()
    import_from(directory)
    yield directory
    stop_importing()
    forget_imports()


def test_the_projects_module_is_found_before_any_other_of_its_name(place, tmp_path, monkeypatch):
    """PYTHONPATH may name the project as it is edited."""
    (tmp_path / "rates_of_test.py").write_text("WHERE = 'elsewhere'\n")
    (place / "rates_of_test.py").write_text("WHERE = 'project'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.import_module("rates_of_test").WHERE == "project"


def test_pythons_own_modules_are_never_the_projects(place, monkeypatch):
    for name in ("calendar", "mainstem", "pyspark"):
        (place / f"{name}.py").write_text("raise RuntimeError\n")
    monkeypatch.delitem(sys.modules, "calendar")
    assert importlib.import_module("calendar").__file__ == calendar.__file__


def test_modules_of_packages_and_of_plain_directories_are_found(place):
    for name in ("package_of_test", "plain_of_test"):
        (place / name).mkdir()
        (place / name / "rates.py").write_text("RATE = 2\n")
    (place / "package_of_test" / "__init__.py").write_text("")
    for name in ("package_of_test", "plain_of_test"):
        assert importlib.import_module(f"{name}.rates").RATE == 2
        assert importlib.import_module(name).__path__ == [str(place / name)]


def test_a_plain_directory_hides_no_module_that_is_installed(place, tmp_path, monkeypatch):
    (place / "ledger_of_test").mkdir()
    (tmp_path / "ledger_of_test.py").write_text("WHERE = 'installed'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.import_module("ledger_of_test").WHERE == "installed"


def test_a_plain_directory_may_share_its_name_with_what_is_installed(place, tmp_path, monkeypatch):
    """A directory `google` or `azure` of any files hid all the packages that are called so."""
    for directory, name in ((place, "own"), (tmp_path / "installed", "other")):
        (directory / "shared_of_test").mkdir(parents=True)
        (directory / "shared_of_test" / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    for name in ("own", "other"):
        importlib.import_module(f"shared_of_test.{name}")


def test_our_own_source_below_a_project_is_none_of_it():
    """It was imported anew with the project, whose jobs were declared to that copy: the project had none, and ran."""
    source = Path(sys.modules["mainstem"].__file__).parents[1]
    assert [name for name in modules_of(source) if name.startswith("mainstem")] == []


def test_modules_of_another_project_are_not_found_and_those_of_this_one_stay_until_they_are_forgotten(place, tmp_path):
    (place / "rates_of_test.py").write_text("")
    importlib.import_module("rates_of_test")
    import_from(tmp_path)
    importlib.import_module("rates_of_test")
    forget_imports()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rates_of_test")


def test_workers_are_shown_all_but_what_would_hide_pythons_own_modules(place, tmp_path):
    for name in ("jobs.py", "token.py", "calendar.csv"):
        (place / name).write_text(name)
    for name in ("email", "package", "queue"):
        (place / name).mkdir()
        (place / name / "rates.py").write_text("")
    (place / "email" / "__init__.py").write_text("")
    shown = tmp_path / "shown"
    second = tmp_path / "second"
    second.mkdir()
    for name in ("jobs.py", "more.py"):
        (second / name).write_text("of the second")
    for _ in range(2):  # what was there before is replaced
        link_for_workers([place, second], shown)
        assert sorted(path.name for path in shown.iterdir()) == [
            "calendar.csv",
            "jobs.py",
            "more.py",
            "package",
            "queue",
        ]
        assert (shown / "jobs.py").read_text() == "jobs.py"
        (shown / "left.py").write_text("")
