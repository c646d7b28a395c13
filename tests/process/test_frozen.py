"""A frozen version is the project as it was, whatever happens to the project's files afterwards."""

import os
from pathlib import Path

import pytest

from mainstem.client.catalog import RETIRED
from mainstem.core import CorruptData, ManualClock
from mainstem.process.calling import place_of
from mainstem.process.declare import Location
from mainstem.process.frozen import code_hash, freeze, load_version, open_version
from mainstem.process.project import load_project
from mainstem.process.versions import (
    Fixed,
    assignments,
    edited,
    write_fixed,
)
from tests.support.versions import JOBS, write_small_project


@pytest.fixture
def project(tmp_path):
    return write_small_project(tmp_path / "project")


def test_what_was_frozen_runs_as_it_was(project, tmp_path):
    first = freeze(project, tmp_path / "data", ManualClock())
    (project / "helper.py").write_text("LIMIT = 2\n")
    second = freeze(project, tmp_path / "data", ManualClock())

    assert first.sha != second.sha
    assert load_project(first.directory).jobs["job"].function(None) == 1
    assert load_project(second.directory).jobs["job"].function(None) == 2
    assert not (first.directory / ".mainstem").exists()
    assert open_version(tmp_path / "data", first.sha) == first
    assert first.manifest.origin == str(project)


def test_a_place_in_frozen_code_is_told_as_that_in_the_project_until_it_is_edited(project, tmp_path, monkeypatch):
    """With the data directory as `mainstem up .` has it, people were sent to the copy."""
    monkeypatch.chdir(tmp_path)
    version = freeze(project, Path("data"), ManualClock())
    frozen = load_version(version).jobs["job"].location
    assert frozen.file == str(tmp_path / version.directory / "jobs.py")
    assert version.in_project(frozen) == Location(str(project / "jobs.py"), frozen.line)
    (project / "jobs.py").write_text("# edited\n" + JOBS)
    assert version.in_project(frozen) == frozen


def test_a_function_of_frozen_code_imports_what_was_frozen_with_it(project, tmp_path, monkeypatch):
    """It found nothing, or the module as somebody edited it, where that is on the path."""
    (project / "jobs.py").write_text(
        'from mainstem.process import stream, topic\na = topic("a")\n@stream(to="b")\ndef job(a):\n'
        "    from helper import LIMIT\n    return LIMIT\n"
    )
    version = freeze(project, tmp_path / "data", ManualClock())
    (project / "helper.py").write_text("LIMIT = 2\n")
    monkeypatch.syspath_prepend(str(project))
    assert load_version(version).jobs["job"].function(None) == 1


def test_frozen_code_imports_what_was_frozen_of_a_directory_that_is_on_the_path(project, tmp_path, monkeypatch):
    """`pip install --editable` puts `src` there: a version that was said to be frozen ran what was edited in it."""
    (project / "src").mkdir()
    (project / "src" / "limits_of_test.py").write_text("LIMIT = 1\n")
    (project / "jobs.py").write_text(JOBS.replace("helper", "limits_of_test"))
    monkeypatch.syspath_prepend(str(project / "src"))
    version = freeze(project, tmp_path / "data", ManualClock())
    (project / "src" / "limits_of_test.py").write_text("LIMIT = 2\n")
    assert load_version(version).jobs["job"].function(None) == 1
    assert version.places == [version.directory, version.directory / "src"]


def test_a_project_that_was_moved_imports_what_was_frozen_all_the_same(project, tmp_path, monkeypatch):
    """A directory of the path was looked for where the project had been: its files ran as they were edited."""
    (project / "src").mkdir()
    (project / "src" / "limits_of_test.py").write_text("LIMIT = 1\n")
    (project / "jobs.py").write_text(JOBS.replace("helper", "limits_of_test"))
    sha = freeze(project, tmp_path / "data", ManualClock()).sha
    moved = project.rename(tmp_path / "moved")
    monkeypatch.syspath_prepend(str(moved / "src"))
    (moved / "src" / "limits_of_test.py").write_text("LIMIT = 2\n")
    assert load_version(open_version(tmp_path / "data", sha, moved)).jobs["job"].function(None) == 1


def test_what_is_installed_below_a_project_is_not_taken_from_the_copy(project, tmp_path, monkeypatch):
    """There it has its Python files alone: no driver could import numpy, say, from `pip install --target vendor`."""
    (project / "vendor" / "shipped-1.0.dist-info").mkdir(parents=True)
    (project / "vendor" / "shipped_of_test.py").touch()
    monkeypatch.syspath_prepend(str(project / "vendor"))
    version = freeze(project, tmp_path / "data", ManualClock())
    assert version.places == [version.directory]


def test_errors_of_frozen_code_are_told_with_their_line_where_the_data_directory_is_relative(
    project, tmp_path, monkeypatch
):
    """`mainstem up .` told the line of the job's declaration instead."""
    monkeypatch.chdir(tmp_path)
    version = freeze(project, Path("data"), ManualClock())
    (file,) = version.directory.glob("jobs.py")
    try:
        exec(compile("1 / 0", str(file), "exec"))
    except ZeroDivisionError as error:
        place = place_of(error, version.directory)
    assert version.in_project(place) == Location(str(project / "jobs.py"), 1)


def test_freezing_again_gives_the_same_version(project, tmp_path):
    clock = ManualClock()
    first = freeze(project, tmp_path / "data", clock)
    clock.advance_ms(1000)
    assert freeze(project, tmp_path / "data", clock) == first


def test_a_frozen_copy_is_durable_with_all_of_its_names(project, tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def fsync(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    data = tmp_path / "data"
    version = freeze(project, data, ManualClock())
    write_fixed(data / "jobs" / "job@1", Fixed("job", "1", version.sha, {}, "b", 1, 4))
    copied = {path.relative_to(version.directory) for path in version.directory.rglob("*")} | {Path()}
    (copy,) = (path.parent for path in synced if path.name == "jobs.py")
    assert {path.relative_to(copy) for path in synced if path.is_relative_to(copy)} == copied
    assert {tmp_path, data, data / "versions", data / "jobs", data / "jobs" / "job@1"} <= set(synced)


def test_what_a_killed_process_froze_in_part_is_removed(project, tmp_path):
    (tmp_path / "data" / "versions" / ".freezing-killed" / "copy").mkdir(parents=True)
    version = freeze(project, tmp_path / "data", ManualClock())
    found = {path.name for path in (tmp_path / "data" / "versions").iterdir()}
    assert found == {version.sha, f"{version.sha}.json", ".frozen~"}  # the lock


def test_only_what_can_change_a_job_changes_the_hash(project):
    before = code_hash(project)
    (project / "mainstem.toml").write_text("[project]\nname = 'x'\n[jobs.job]\nevery = '1 minute'\n")
    (project / "notes.md").write_text("more")
    (project / "tests").mkdir()
    (project / "tests" / "test_jobs.py").write_text("")
    assert code_hash(project) == before
    (project / "schemas" / "a.avsc").write_text("{ }")
    changed = code_hash(project)
    (project / "new.py").write_text("")
    more = code_hash(project)
    (project / "mainstem.toml").write_text("[topics.a]\nevent_time = 'at'\n")
    assert len({before, changed, more, code_hash(project)}) == 4


def test_another_list_of_files_is_another_code(project, tmp_path):
    """The copy had the old list: a job of a file that was there before, and was named now, stopped its driver for
    ever.
    """
    data, clock = tmp_path / "data", ManualClock()
    first = freeze(project, data, clock)
    write_fixed(data / "jobs" / "job@1", Fixed("job", "1", first.sha, {}, "b", 1, 4))
    (project / "mainstem.toml").write_text('[project]\njobs = ["jobs.py"]\n')
    assert freeze(project, data, clock) == first
    (project / "mainstem.toml").write_text('[project]\njobs = ["jobs.py", "helper.py"]\n')
    second = freeze(project, data, clock)
    assert len(load_version(second).modules) == 2
    (project / "helper.py").write_text("LIMIT = 2\n")
    (line,) = map(str, edited(load_project(project), data, code_hash(project)))
    assert "(changed since: helper.py, jobs of [project] in mainstem.toml);" in line
    (project / "mainstem.toml").write_text("[project]\njobs = []\n")
    assert len({first.sha, second.sha, code_hash(project)}) == 3


def test_a_project_of_settings_alone_is_frozen(tmp_path):
    """It was a FileNotFoundError of its own copy."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "mainstem.toml").write_text("[project]\njobs = []\n")
    version = freeze(tmp_path / "p", tmp_path / "data", ManualClock())
    assert [path.name for path in version.directory.iterdir()] == ["mainstem.toml"]


def test_what_the_settings_say_of_topics_is_frozen_and_passwords_are_not(project, tmp_path):
    """The copy once was the whole file, readable by everybody; and edits of [topics] never reached the jobs."""
    settings = (
        "[project]\nname = 'x'\njobs = ['jobs.py']\n[topics.a]\npartitions = 3\n"
        "config = { 'retention.ms' = '7', 'odd \"name\"' = 'ä' }\n"
        "[sources.db]\ntype = 'postgres'\nurl = 'postgresql://app:S3cret@db/fleet'\n"
    )
    (project / "mainstem.toml").write_text(settings)
    version = freeze(project, tmp_path / "data", ManualClock())
    assert "S3cret" not in "".join(p.read_text() for p in (tmp_path / "data").rglob("*") if p.is_file())
    spec = load_project(version.directory).topics["a"]
    assert (spec.partitions, spec.config) == (3, {"retention.ms": "7", 'odd "name"': "ä"})
    (project / "mainstem.toml").write_text(settings.replace("= 3", "= 4"))
    edited = freeze(project, tmp_path / "data", ManualClock())
    assert load_project(edited.directory).topics["a"].partitions == 4
    assert load_project(version.directory).topics["a"].partitions == 3


def test_variables_that_set_a_job_are_not_of_code_that_does_not_have_it(project, tmp_path, monkeypatch):
    """`MAINSTEM_JOBS__LATER__EVERY`, for a job of the code as it is now, stopped older versions, and with them all."""
    version = freeze(project, tmp_path / "data", ManualClock())
    monkeypatch.setenv("MAINSTEM_JOBS__LATER__EVERY", "1 minute")
    monkeypatch.setenv("MAINSTEM_TOPICS__A__PARTITIONS", "3")  # which its topic was made with
    found = load_version(version)
    assert (list(found.jobs), found.topics["a"].partitions) == (["job"], 3)


@pytest.mark.parametrize("name", ["codes.json", "codes.csv", "limits.toml", "words.txt", "lookup/query.sql"])
def test_a_data_file_that_jobs_read_is_code(project, tmp_path, name):
    """An edit of `codes.json` once left the hash as it was, and the copy stale."""
    (project / "lookup").mkdir()
    (project / name).write_text("1")
    first = freeze(project, tmp_path / "data", ManualClock())
    (project / name).write_text("2")
    second = freeze(project, tmp_path / "data", ManualClock())
    assert first.sha != second.sha
    assert [(each.directory / name).read_text() for each in (first, second)] == ["1", "2"]


def test_a_files_name_may_be_in_another_encoding(project, tmp_path):
    data, name = tmp_path / "data", os.fsdecode(b"caf\xe9.csv")
    (project / name).write_text("1\n")
    first = freeze(project, data, ManualClock())
    assert (first.directory / name).read_text() == "1\n"
    write_fixed(data / "jobs" / "job@1", Fixed("job", "1", first.sha, {}, "b", 1, 4))
    (project / name).write_text("2\n")
    (project / "helper.py").write_text("LIMIT = 2\n")
    (told,) = edited(load_project(project), data, code_hash(project))
    assert told.changed == ["caf\N{REPLACEMENT CHARACTER}.csv", "helper.py"]


def test_what_appears_while_a_project_runs_is_no_source(project, tmp_path):
    """With its data directory in the project, each start had another hash, and its driver ran no job."""
    settings = (project / "mainstem.toml").read_text()
    settings += '[sources.log]\ntype = "file"\npath = "in/events.json"\n[sinks.lake]\ntype = "delta"\npath = "lake"\n'
    (project / "mainstem.toml").write_text(settings)
    data = project / "state"
    data.mkdir()
    (data / "mainstem.json").write_text('{"format": 1}')
    first = freeze(project, data, ManualClock())
    for place in ("tables/orders/_delta_log", "lake", "in", "venv", "state/jobs/job@1"):
        (project / place).mkdir(parents=True)
    (project / "tables/orders/_delta_log/0.json").write_text("{}")
    (project / "tables/orders/more.json").write_text("{}")
    (project / "lake/notes.json").write_text("{}")
    (project / "in/events.json").write_text("{}")
    (project / "venv/pyvenv.cfg").write_text("")
    (project / "venv/module.py").write_text("")
    (project / "env/conda-meta").mkdir(parents=True)
    (project / "env/module.py").write_text("")
    (data / "jobs/job@1/job.json").write_text("{}")
    assert freeze(project, data, ManualClock()) == first
    assert code_hash(project) == first.sha
    copied = {path.relative_to(first.directory).as_posix() for path in first.directory.rglob("*") if path.is_file()}
    assert copied == {"mainstem.toml", "jobs.py", "helper.py", "schemas/a.avsc"}


def test_a_schema_is_frozen_wherever_it_lies_in_the_project(project, tmp_path):
    settings = (project / "mainstem.toml").read_text()
    settings += '[topics.a]\nschema = "data/a.schema"\n[topics.b]\nschema = "./../outside.avsc"\n'
    (project / "mainstem.toml").write_text(settings)
    (project / "data").mkdir()
    (project / "data" / "a.schema").write_text("{}")
    (tmp_path / "outside.avsc").write_text("{}")
    version = freeze(project, tmp_path / "data", ManualClock())
    assert (version.directory / "data" / "a.schema").read_text() == "{}"
    assert not list((tmp_path / "data").rglob("outside.avsc"))
    (project / "data" / "a.schema").write_text("{ }")
    assert code_hash(project) != version.sha


def test_a_copy_is_for_nobody_who_could_not_read_the_file(project, tmp_path):
    (project / "credentials.json").write_text("{}")
    (project / "credentials.json").chmod(0o400)
    version = freeze(project, tmp_path / "data", ManualClock())
    assert (version.directory / "credentials.json").stat().st_mode & 0o777 == 0o400


def test_an_edited_copy_is_refused(project, tmp_path):
    version = freeze(project, tmp_path / "data", ManualClock())
    (version.directory / "jobs.py").write_text(JOBS + "# edited\n")
    with pytest.raises(CorruptData, match="somebody edited it"):
        open_version(tmp_path / "data", version.sha)
    with pytest.raises(CorruptData, match="are missing"):
        open_version(tmp_path / "data", "0" * 16)


def test_what_is_lost_of_a_version_is_told_with_what_to_do(project, tmp_path):
    """Each ended every `up`; now the sources fail their jobs alone."""
    data = tmp_path / "data"
    sha = freeze(project, data, ManualClock()).sha
    write_fixed(data / "jobs" / "job@1", Fixed("job", "1", sha, {}, "b", 1, 4))
    write_fixed(data / "jobs" / "old@1", Fixed("old", "1", "0" * 16, {}, "old", 1, 4))
    assert [each.sha for each in assignments(project, data, ManualClock())] == [sha, "0" * 16]
    with pytest.raises(CorruptData, match=r"the frozen sources of version 0+ are missing") as lost:
        open_version(data, "0" * 16)
    assert lost.value.hint.startswith(f"bring back {data / 'versions' / ('0' * 16)} and {'0' * 16}.json beside it from")

    (data / "jobs" / "old@1" / "job.json").write_text("{")
    with pytest.raises(CorruptData, match="expected what a job was started with") as damaged:
        assignments(project, data, ManualClock())
    gives_up = f"`touch {data / 'jobs' / 'old@1' / RETIRED}` gives up job old@1"
    assert damaged.value.hint == f"bring back the file from a copy; where there is none, {gives_up}"

    (data / "jobs" / "old@1" / RETIRED).touch()
    assert [each.jobs for each in assignments(project, data, ManualClock())] == [(("job", "1"),)]


def test_a_copy_cut_short_by_a_crash_is_made_again(project, tmp_path):
    version = freeze(project, tmp_path / "data", ManualClock())
    (tmp_path / "data" / "versions" / f"{version.sha}.json").unlink()
    (version.directory / "jobs.py").unlink()
    assert freeze(project, tmp_path / "data", ManualClock()) == version
    assert (version.directory / "jobs.py").read_text() == JOBS
