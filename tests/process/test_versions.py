"""Versions go on with the code that they were started with."""

import contextlib
import shutil

import msgspec
import pytest

from mainstem.client.catalog import RETIRED
from mainstem.core import CorruptData, ManualClock, SystemClock, UserError
from mainstem.process.frozen import code_hash, freeze
from mainstem.process.project import load_project
from mainstem.process.versions import (
    Fixed,
    assignments,
    edited,
    left_over,
    newest,
    read_fixed,
    run_alone,
    with_versions,
    write_fixed,
)
from tests.support.versions import JOBS, write_small_project


@pytest.fixture
def project(tmp_path):
    return write_small_project(tmp_path / "project")


def test_a_version_whose_code_was_edited_since_is_told_with_the_next_free_one(project, tmp_path):
    data = tmp_path / "data"
    first = freeze(project, data, ManualClock())
    for version in ("1", "2"):
        write_fixed(data / "jobs" / f"job@{version}", Fixed("job", version, first.sha, {}, "b", 1, 4))
    assert edited(load_project(project), data, code_hash(project)) == []
    (project / "helper.py").write_text("LIMIT = 2\n")
    (line,) = map(str, edited(load_project(project), data, code_hash(project)))
    assert line == (
        f"job job@2 goes on with its frozen code {first.sha} (changed since: helper.py); "
        "`mainstem job reprocess job` runs the edited code beside it, as version 3"
    )
    with (project / "mainstem.toml").open("a") as file:
        file.write("[topics.other]\npartitions = 1\n")
    (line,) = map(str, edited(load_project(project), data, code_hash(project)))
    assert "(changed since: helper.py, [topics] of mainstem.toml);" in line
    with (project / "mainstem.toml").open("a") as file:
        file.write('[jobs.job]\nversion = "3"\n')
    assert edited(load_project(project), data, code_hash(project)) == []


def test_a_damaged_copy_does_not_hide_that_its_version_goes_on_with_it(project, tmp_path):
    """It ended every `up`, and `job retire` needs a log that runs: only its own driver is to fail."""
    data = tmp_path / "data"
    first = freeze(project, data, ManualClock())
    write_fixed(data / "jobs" / "job@1", Fixed("job", "1", first.sha, {}, "b", 1, 4))
    (project / "helper.py").write_text("LIMIT = 2\n")
    for damage in ("[topics", None):
        if damage is None:
            (first.directory / "mainstem.toml").unlink()
        else:
            (first.directory / "mainstem.toml").write_text(damage)
        (told,) = edited(load_project(project), data, code_hash(project))
        assert (told.sha, told.changed) == (first.sha, [])


def test_a_version_that_the_project_does_not_ask_for_is_told_until_it_is_retired(project, tmp_path):
    """A job that was renamed or taken out ran on in a Spark of its own, and nothing said so."""
    data = tmp_path / "data"
    sha = freeze(project, data, ManualClock()).sha
    for name, version in (("job", "1"), ("job", "2"), ("gone", "1")):
        write_fixed(data / "jobs" / f"{name}@{version}", Fixed(name, version, sha, {}, f"{name}.v{version}", 1, 4))
    (gone,) = map(str, left_over(load_project(project), data))  # of the other job it asks for no version in particular
    (project / "mainstem.toml").write_text('[jobs.job]\nversion = "1"\n')
    assert gone == str(left_over(load_project(project), data)[0])
    second = str(left_over(load_project(project), data)[1])
    assert gone == (
        f"job gone@1 goes on with its frozen code {sha}, though the project has no such job; "
        "`mainstem job retire gone 1` stops it for good"
    )
    assert second == (
        f"job job@2 goes on with its frozen code {sha}, beside job@1; `mainstem job retire job 2` stops it for good"
    )
    for home in ("gone@1", "job@2"):
        (data / "jobs" / home / RETIRED).touch()
    assert left_over(load_project(project), data) == []


def test_what_a_version_was_started_with_is_kept(tmp_path):
    fixed = Fixed("delays", "1", "abc", {"flights": 4}, "delays_hourly", 9, 4)
    assert read_fixed(tmp_path / "delays@1") is None
    write_fixed(tmp_path / "delays@1", fixed)
    assert read_fixed(tmp_path / "delays@1") == fixed
    (tmp_path / "delays@1" / "job.json").write_text("{")
    with pytest.raises(CorruptData, match="expected what a job was started with"):
        read_fixed(tmp_path / "delays@1")


def test_jobs_go_on_with_the_code_they_were_started_with(project, tmp_path):
    data, clock = tmp_path / "data", ManualClock()
    (only,) = assignments(project, data, clock)
    assert only.jobs == (("job", "1"),)
    write_fixed(data / "jobs" / "job@1", Fixed("job", "1", only.sha, {}, "b", 1, 4))

    (project / "helper.py").write_text("LIMIT = 2\n")
    (project / "jobs.py").write_text(JOBS + '@stream(to="c")\ndef second(a):\n    return LIMIT\n')
    new, old = assignments(project, data, clock)
    assert (new.jobs, old.jobs) == ((("second", "1"),), (("job", "1"),))
    assert old.sha == only.sha

    (project / "mainstem.toml").write_text('[jobs.job]\nversion = "2"\n')
    new, old = assignments(project, data, clock)
    assert (new.jobs, old.jobs) == ((("job", "2"), ("second", "1")), (("job", "1"),))

    (data / "jobs" / "job@1" / RETIRED).touch()
    (new,) = assignments(project, data, clock)
    assert new.jobs == (("job", "2"), ("second", "1"))

    (project / "jobs.py").write_text(JOBS)  # reverted
    (project / "mainstem.toml").write_text("")
    with pytest.raises(UserError, match=r"mainstem\.toml: job job@1 was retired and never runs again"):
        assignments(project, data, clock)


SECOND = '@stream(to="c")\ndef second(a):\n    return a\n'


def test_a_version_of_whose_job_nothing_was_edited_goes_on_with_the_project(project, tmp_path):
    """Each edit of a project of ten jobs left nine behind, in a Spark of their own."""
    data, clock, home = tmp_path / "data", ManualClock(), tmp_path / "data" / "jobs" / "job@1"
    (first,) = assignments(project, data, clock)
    fixed = Fixed("job", "1", first.sha, {"a": 7}, "b", 9, 4, also={"c": 2})
    write_fixed(home, fixed)
    (project / "jobs.py").write_text(f"# a comment\n{JOBS}{SECOND}")
    (project / "unused.py").write_text("LIMIT = 7\n")
    (project / "mainstem.toml").write_text('[topics."of.others"]\npartitions = 1\n')
    assert edited(load_project(project), data, code_hash(project)) == []
    (only,) = assignments(project, data, clock)
    assert only.jobs == (("job", "1"), ("second", "1"))
    assert only.sha != first.sha
    assert read_fixed(home) == msgspec.structs.replace(fixed, sha=only.sha)


@pytest.mark.parametrize(
    "why", ["its helper", "its topic", "a damaged copy", "an edited copy", "no copy", "it runs elsewhere"]
)
def test_a_version_stays_with_its_code_where_it_may_mean_something_else(project, tmp_path, why):
    data, clock, home = tmp_path / "data", ManualClock(), tmp_path / "data" / "jobs" / "job@1"
    (first,) = assignments(project, data, clock)
    write_fixed(home, Fixed("job", "1", first.sha, {}, "b", 1, 4))
    (project / "jobs.py").write_text(JOBS + SECOND)
    copy = data / "versions" / first.sha
    with contextlib.ExitStack() as stack:
        match why:
            case "its helper":
                (project / "helper.py").write_text("LIMIT = 2\n")
            case "its topic":
                (project / "mainstem.toml").write_text("[topics.a]\npartitions = 3\n")
            case "a damaged copy":
                (copy / "jobs.py").write_text("def\n")
            case "an edited copy":
                (copy / "jobs.py").write_text(JOBS + "# edited\n")
            case "no copy":
                shutil.rmtree(copy)
            case "it runs elsewhere":
                lock = run_alone(data, "job", "1")
                stack.callback(lock.release)
        new, old = assignments(project, data, clock)
    assert (new.jobs, old.jobs, old.sha) == ((("second", "1"),), (("job", "1"),), first.sha)
    assert read_fixed(home).sha == first.sha


@pytest.mark.parametrize("place", ["data", ".hidden"])
def test_a_version_does_not_follow_code_that_is_not_whole(project, tmp_path, place):
    data, home = tmp_path / "versions", tmp_path / "versions" / "jobs" / "job@1"
    (first,) = assignments(project, data, SystemClock())
    write_fixed(home, Fixed("job", "1", first.sha, {}, "b", 1, 4))
    (project / place).mkdir(exist_ok=True)
    (project / place / "more.py").write_text("")
    (project / "mainstem.toml").write_text(f'[project]\njobs = ["{place}/more.py", "jobs.py"]\n')
    (only,) = assignments(project, data, SystemClock())
    assert (only.jobs, only.sha) == ((("job", "1"),), first.sha)
    assert read_fixed(home).sha == first.sha


@pytest.mark.parametrize("place", ["data", "linked", ".hidden"])
def test_code_that_is_not_copied_is_told_before_it_is_missed(project, tmp_path, place):
    """The driver was refused, over a module that the project has, in a directory that nobody knows."""
    (tmp_path / "elsewhere").mkdir()
    (project / "linked").symlink_to(tmp_path / "elsewhere")
    (project / place).mkdir(exist_ok=True)
    (project / place / "more.py").write_text("")
    (project / "mainstem.toml").write_text(f'[project]\njobs = ["{place}/more.py", "jobs.py"]\n')
    with pytest.raises(UserError, match=rf"^{project}/{place}/more\.py: expected among the files that are copied"):
        assignments(project, tmp_path / "versions", SystemClock())


def test_a_schema_that_is_not_copied_for_its_name_is_told_so(project, tmp_path):
    """People were told to move it."""
    (project / "a.schema").write_text("{}")
    (project / "jobs.py").write_text(JOBS.replace('topic("a")', 'topic("a", schema="a.schema")'))
    with pytest.raises(UserError, match=r"a\.schema: expected among the files that are copied") as caught:
        assignments(project, tmp_path / "versions", SystemClock())
    assert caught.value.hint == (
        "what is copied ends in .avsc, .csv, .json, .py, .sql, .toml, .txt, or [topics] names it as a schema"
    )


@pytest.mark.parametrize("init", [True, False])
def test_a_project_that_is_imported_as_a_package_from_outside_is_refused(project, tmp_path, monkeypatch, init):
    """Its drivers imported what was edited, and no version was said to go on with other code."""
    package = project.rename(tmp_path / "flights_of_test")
    if init:
        (package / "__init__.py").touch()
    (package / "jobs.py").write_text(JOBS.replace("helper", "flights_of_test.helper"))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"flights_of_test: expected packages below .* as part of flights_of_test$"):
        assignments(package, tmp_path / "versions", SystemClock())


def test_what_is_installed_within_a_project_need_not_be_copied(project, tmp_path, monkeypatch):
    (project / ".installed").mkdir()
    (project / ".installed" / "package_of_test.py").write_text("")
    (project / "jobs.py").write_text(f"import package_of_test\n{JOBS}")
    monkeypatch.syspath_prepend(str(project / ".installed"))
    (only,) = assignments(project, tmp_path / "versions", SystemClock())
    assert only.jobs == (("job", "1"),)


def test_where_no_version_is_named_those_that_were_started_go_on(project, tmp_path):
    """Without a setting the project asked for version 1: once that was retired it was refused, and a job that went on
    as version 2 was said to be left over.
    """
    data, clock = tmp_path / "data", ManualClock()
    (only,) = assignments(project, data, clock)
    assert only.jobs == (("job", "1"),)
    for version in ("1", "2", "10"):
        write_fixed(data / "jobs" / f"job@{version}", Fixed("job", version, only.sha, {}, "b", 1, 4))
    (every,) = assignments(project, data, clock)
    assert sorted(every.jobs) == [("job", "1"), ("job", "10"), ("job", "2")]
    (data / "jobs" / "job@1" / RETIRED).touch()
    assert [sorted(each.jobs) for each in assignments(project, data, clock)] == [[("job", "10"), ("job", "2")]]
    assert (left_over(load_project(project), data), edited(load_project(project), data, only.sha)) == ([], [])
    assert with_versions(load_project(project), data).job_config("job").version == "10"
    assert with_versions(load_project(project), None).job_config("job").version == "1"


@pytest.mark.parametrize(("versions", "last"), [([], None), (["2", "10"], "10"), (["z", "1"], "1"), (["a", "b"], "b")])
def test_the_newest_version_is_the_largest_number_else_the_last_name(versions, last):
    assert newest(versions) == last


def test_jobs_of_an_application_run_apart_in_each_code(project, tmp_path):
    data, clock = tmp_path / "data", ManualClock()
    (project / "jobs.py").write_text(JOBS + '@stream(to="c")\ndef second(a):\n    return LIMIT\n')
    (project / "mainstem.toml").write_text('[jobs.second]\napplication = "big"\n')
    common, big = assignments(project, data, clock)
    assert (common.application, common.jobs) == ("", (("job", "1"),))
    assert (big.application, big.jobs, big.sha) == ("big", (("second", "1"),), common.sha)
    write_fixed(data / "jobs" / "second@1", Fixed("second", "1", common.sha, {}, "c", 1, 4))
    (project / "mainstem.toml").write_text('[jobs.second]\napplication = "big"\nversion = "2"\n')
    (project / "jobs.py").write_text(JOBS + '@stream(to="c")\ndef second(a):\n    return a\n')
    found = [(each.application, each.jobs, each.sha == common.sha) for each in assignments(project, data, clock)]
    assert found == [
        ("", (("job", "1"),), False),
        ("big", (("second", "2"),), False),
        ("big", (("second", "1"),), True),
    ]
