"""Files of jobs are imported as they are now, by the names that imports call them."""

import importlib
import subprocess
import sys

import pytest

from mainstem.core.config import BadSetting
from mainstem.process import load_project

IMPORT = "from mainstem.process import stream, topic\n"


TOPIC = IMPORT + 'clicks = topic("clicks")\n'


CLEAN = '@stream(to="clicks.clean")\ndef clean(clicks):\n    return clicks\n'


PAGES = '@stream(to="pages")\ndef pages(clean):\n    return clean\n'


def files(directory, settings="", **texts):
    """A project of files by their paths, with `__` for each slash."""
    for name, text in {"mainstem.toml": settings, **{f"{name}.py": text for name, text in texts.items()}}.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


@pytest.mark.parametrize("order", ['"a.py", "b.py"', '"b.py", "a.py"'])
def test_a_file_of_jobs_that_another_one_has_imported_is_not_run_again(tmp_path, order):
    """Its job was said to be declared twice, at one and the same line."""
    a = f"from b import clean\n{IMPORT}{PAGES}"
    found = load_project(files(tmp_path, f"[project]\njobs = [{order}]\n", a=a, b=TOPIC + CLEAN))
    assert found.order == ("clean", "pages")


def test_files_of_jobs_may_have_one_name_in_two_directories(tmp_path):
    """The first one's topics were said to be assigned to no variable."""
    settings = '[project]\njobs = ["one/jobs.py", "two/jobs.py"]\n'
    found = load_project(files(tmp_path, settings, one__jobs=TOPIC + CLEAN, two__jobs=IMPORT + PAGES))
    assert found.order == ("clean", "pages")
    assert len(found.modules) == 2


def test_a_file_of_jobs_in_a_package_may_import_relative_to_it(tmp_path):
    jobs = f"from .inputs import clicks\nfrom ..more import LIMIT\n{IMPORT}{CLEAN}"
    texts = {"flow__more": "LIMIT = 1\n", "flow__deep__inputs": TOPIC, "flow__deep__jobs": jobs}
    directory = files(tmp_path, '[project]\njobs = "flow/deep/jobs.py"\n', **texts)
    for package in ("flow", "flow/deep"):
        (directory / package / "__init__.py").touch()
    assert {module.__name__ for module in load_project(directory).modules} == {
        "flow", "flow.more", "flow.deep", "flow.deep.inputs", "flow.deep.jobs",
    }  # fmt: skip


def test_a_package_may_import_its_file_of_jobs(tmp_path):
    """It was told that the name cannot be imported, from a file that had not been run yet."""
    directory = files(tmp_path, '[project]\njobs = "shown/jobs.py"\n', shown__jobs=TOPIC + CLEAN)
    (directory / "shown" / "__init__.py").write_text("from .jobs import clean\n")
    found = load_project(directory)
    assert {module.__name__ for module in found.modules} == {"shown", "shown.jobs"}


def test_a_packages_own_file_may_be_one_of_jobs(tmp_path):
    """It was run twice, and its topic said to be assigned to no variable."""
    directory = files(tmp_path, '[project]\njobs = "whole/__init__.py"\n', whole__other="")
    (directory / "whole" / "__init__.py").write_text(TOPIC + CLEAN)
    assert load_project(directory).order == ("clean",)


def test_a_file_of_jobs_is_an_attribute_of_its_package(tmp_path):
    texts = {"flow__a": TOPIC + CLEAN, "flow__b": f"import flow.a\n{IMPORT}flow.a.clean\n{PAGES}"}
    directory = files(tmp_path, '[project]\njobs = ["flow/a.py", "flow/b.py"]\n', **texts)
    (directory / "flow" / "__init__.py").touch()
    found = load_project(directory)
    assert found.order == ("clean", "pages")


@pytest.mark.parametrize("place", ["", "src__"])
@pytest.mark.parametrize("linked", [False, True])
def test_files_of_jobs_below_any_directory_that_is_imported_from_may_import_each_other(
    tmp_path, monkeypatch, place, linked
):
    """The first was run again under its other name, and its topic said to be assigned to no variable. What was found
    through a link was not seen at all.
    """
    texts = {"kinds_of_test__a": f"from .b import LIMIT\n{TOPIC}{CLEAN}", "kinds_of_test__b": "LIMIT = 1\n"}
    texts["kinds_of_test__c"] = f"from kinds_of_test.a import clicks\n{IMPORT}{PAGES}"
    names = [f"{place.replace('__', '/')}kinds_of_test/{name}.py" for name in "ac"]
    settings = f"[project]\njobs = {names}\n"
    directory = files(tmp_path / "p", settings, **{f"{place}{name}": text for name, text in texts.items()})
    (tmp_path / "link").symlink_to(directory)
    monkeypatch.syspath_prepend(str((tmp_path / "link" if linked else directory) / place.strip("_")))
    assert {module.__name__ for module in load_project(directory).modules} == {
        "kinds_of_test.a", "kinds_of_test.b", "kinds_of_test.c",
    }  # fmt: skip


def test_a_file_of_jobs_in_a_directory_of_the_path_is_imported_from_there(tmp_path, monkeypatch):
    texts = {"src__first_of_test": TOPIC + CLEAN, "src__then": f"from first_of_test import clicks\n{IMPORT}{PAGES}"}
    directory = files(tmp_path, '[project]\njobs = ["src/first_of_test.py", "src/then.py"]\n', **texts)
    monkeypatch.syspath_prepend(str(directory / "src"))
    assert load_project(directory).order == ("clean", "pages")


def test_links_to_files_elsewhere_are_of_the_project(tmp_path):
    """Their topics were said to be assigned to no variable."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project").mkdir()
    for name, text in {"shared_inputs": TOPIC, "shared_jobs": f"from inputs import clicks\n{IMPORT}{CLEAN}"}.items():
        (tmp_path / "elsewhere" / f"{name}.py").write_text(text)
        (tmp_path / "project" / f"{name[7:]}.py").symlink_to(f"../elsewhere/{name}.py")
    (tmp_path / "project" / "mainstem.toml").touch()
    found = load_project(tmp_path / "project")
    assert {module.__name__ for module in found.modules} == {"jobs", "inputs"}


def test_a_file_of_jobs_outside_of_the_project_is_refused(tmp_path):
    (tmp_path / "jobs.py").write_text(TOPIC + CLEAN)
    with pytest.raises(BadSetting, match=r"expected jobs in the project's directory, found .*jobs\.py"):
        load_project(files(tmp_path / "project", '[project]\njobs = "../jobs.py"\n'))


def test_what_a_test_has_imported_of_a_project_is_imported_anew_and_comes_back(tmp_path, monkeypatch):
    texts = {"seen_jobs": f"from seen_inputs import clicks\n{IMPORT}{CLEAN}", "seen_inputs": TOPIC, "seen_test": ""}
    directory = files(tmp_path, '[project]\njobs = "seen_jobs.py"\n', **texts)
    monkeypatch.syspath_prepend(str(directory))
    test, before = importlib.import_module("seen_test"), importlib.import_module("seen_jobs")
    assert load_project(directory).order == ("clean",)
    assert sys.modules["seen_jobs"] is not before
    assert sys.modules.pop("seen_test") is test


def test_a_file_of_jobs_may_have_the_name_of_a_package_that_is_installed(tmp_path):
    """It took that one's place, for all that imported it later."""
    import click

    found = load_project(files(tmp_path, '[project]\njobs = "click.py"\n', click=TOPIC + CLEAN))
    assert found.order == ("clean",)
    assert sys.modules["click"] is click


def test_an_environment_within_a_project_is_none_of_it(tmp_path, monkeypatch):
    """It was imported anew with the project, and numpy cannot be imported twice."""
    packages = tmp_path / "venv" / "lib"
    jobs = f"import once_of_test\n{TOPIC}{CLEAN}"
    files(tmp_path, jobs=jobs, venv__lib__once_of_test="")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.syspath_prepend(str(packages))
    (first,) = load_project(tmp_path).modules
    installed = sys.modules["once_of_test"]
    (second,) = load_project(tmp_path).modules
    assert first.__name__ == second.__name__ == "jobs"
    assert sys.modules.pop("once_of_test") is installed


def test_what_is_installed_below_a_project_is_none_of_it(tmp_path, monkeypatch):
    """`pip install --user` puts it there, where the project is the home directory: no project could be loaded."""
    packages = tmp_path / ".local" / "lib"
    files(tmp_path, jobs=f"import once_of_test\n{TOPIC}{CLEAN}")
    (packages / "once-1.0.dist-info").mkdir(parents=True)
    (packages / "once_of_test.py").touch()
    monkeypatch.syspath_prepend(str(packages))
    assert [module.__name__ for module in load_project(tmp_path).modules] == ["jobs"]
    installed = sys.modules["once_of_test"]
    load_project(tmp_path)
    assert sys.modules.pop("once_of_test") is installed


def test_spark_outside_of_a_function_is_refused_with_what_to_write(tmp_path):
    """Also where somebody else in this process runs Spark: so in a process of its own."""
    text = 'from pyspark.sql import functions as F\n@F.udf("string")\ndef upper(x):\n    return x\n'
    files(tmp_path, jobs=text)
    code = f"from mainstem.process import load_project\nload_project({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    told = done.stderr.splitlines()[-1]
    assert f"{tmp_path / 'jobs.py'}:2: import failed: PySparkRuntimeError" in told, told
