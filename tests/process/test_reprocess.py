"""A version that is asked for: its number, its code, and what stands in the way."""

from threading import Barrier, Thread

import pytest

from mainstem.client.catalog import write_catalog
from mainstem.core import CorruptData, ManualClock, UserError
from mainstem.process.cutover import NotReached, Waiting
from mainstem.process.declare import BadDeclaration
from mainstem.process.frozen import code_hash, freeze
from mainstem.process.project import load_project
from mainstem.process.reprocess import Reprocess, SameCode, reprocess, wait_ready
from mainstem.process.retire import retire
from mainstem.process.versions import (
    Fixed,
    all_versions,
    asked_versions,
    assignments,
    edited,
    is_bound,
    jobs_of,
    version_of,
    write_fixed,
)
from tests.support.versions import ONE_JOB, write_project_of_one_job, write_read, write_versions


@pytest.fixture
def project(tmp_path):
    return write_project_of_one_job(tmp_path / "project")


@pytest.fixture
def data(project, tmp_path):
    """Where version 1 was started from the code as it was; it was edited since."""
    sha = freeze(project, tmp_path / "data", ManualClock()).sha
    write_fixed(tmp_path / "data" / "jobs" / "job@1", Fixed("job", "1", sha, {}, "b", 1, 4))
    (project / "jobs.py").write_text(ONE_JOB.replace("return a", "return a.distinct()"))
    return tmp_path / "data"


def test_the_next_version_is_started_from_the_code_of_now(project, data):
    sha = code_hash(project)
    assert reprocess(None, project, data, "job") == Reprocess("job", "2", sha, "b.v2")
    assert [(each.version, each.sha) for each in asked_versions(data)] == [("2", sha)]
    assert is_bound(data, "job", "2")
    assert version_of(data, "job", load_project(project).job_config("job")) == "2"
    assert edited(load_project(project), data, sha) == []
    (project / "jobs.py").write_text(ONE_JOB.replace("return a", "return a.limit(1)"))  # the copy is run, not this
    old, new = sorted(assignments(project, data, ManualClock()), key=lambda each: each.jobs)
    assert (old.jobs, new.jobs, new.sha) == ((("job", "1"),), (("job", "2"),), sha)
    assert reprocess(None, project, data, "job").version == "3"
    write_fixed(data / "jobs" / "job@2", Fixed("job", "2", sha, {}, "b.v2", 1, 4))  # it has started
    assert [each.version for each in asked_versions(data)] == ["3"]
    assert jobs_of(data, sha) == [("job", "2")]


def test_the_same_code_is_built_again_only_where_that_is_meant(project, data):
    reprocess(None, project, data, "job")
    with pytest.raises(SameCode, match=rf"^job job@2 runs the code as it is now, {code_hash(project)}: the same"):
        reprocess(None, project, data, "job")
    assert reprocess(None, project, data, "job", anyway=True).version == "3"


def test_an_edit_that_changes_nothing_of_the_job_is_the_same_code(project, data):
    reprocess(None, project, data, "job")
    (project / "unused.py").write_text("LIMIT = 2\n")
    with (project / "jobs.py").open("a") as file:
        file.write("# a comment\n")
    with pytest.raises(SameCode, match=r"^job job@2 runs the code as it is now, "):
        reprocess(None, project, data, "job")


def test_what_cannot_be_started_is_told_at_once(project, data, tmp_path):
    with pytest.raises(UserError, match="expected job other, found job"):
        reprocess(None, project, data, "other")
    with pytest.raises(UserError, match=r"elsewhere: expected jobs that were started from there, found none"):
        reprocess(None, project, tmp_path / "elsewhere", "job")
    assert not (tmp_path / "elsewhere").exists()
    (project / "jobs.py").write_text("oops")
    with pytest.raises(BadDeclaration):
        reprocess(None, project, data, "job")
    assert asked_versions(data) == []


def test_a_job_that_was_added_gets_its_first_version(project, data, log_connection):
    """It was refused, and the hint led to `mainstem up`, which ran."""
    added = 'from mainstem.process import stream\n@stream(to="c")\ndef added(a):\n    return a\n'
    (project / "added.py").write_text(added)
    (project / "mainstem.toml").write_text('[project]\njobs = ["jobs.py", "added.py"]\n')
    assert reprocess(log_connection, project, data, "added") == Reprocess("added", "1", code_hash(project), "c")
    with pytest.raises(SameCode, match=r"^job added@1 runs the code as it is now"):
        reprocess(log_connection, project, data, "added")
    (project / "added.py").write_text(added.replace("return a", "return a.distinct()"))
    assert reprocess(log_connection, project, data, "added").version == "2"
    write_catalog(log_connection, {"job:more": {"versions": {"1": {}}, "current": "1"}})  # of another data directory
    (project / "added.py").write_text(added.replace("def added(", "def more("))
    assert reprocess(log_connection, project, data, "more").version == "2"


def test_no_number_is_given_twice(project, data, log_connection):
    write_catalog(log_connection, {"job:job": {"versions": {"1": {}, "2": {}}, "retired": {"5": {}}, "current": "1"}})
    (project / "mainstem.toml").write_text('[jobs.job]\nversion = "7"\n')
    assert reprocess(log_connection, project, data, "job").version == "8"
    barrier, found = Barrier(2), []

    def ask():
        barrier.wait()
        found.append(reprocess(None, project, data, "job", anyway=True).version)

    (project / "jobs.py").write_text(ONE_JOB + "# once more\n")
    threads = [Thread(target=ask) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found) == ["10", "9"]
    assert len(all_versions(data)) == 4


def test_a_version_that_was_asked_for_and_never_started_is_retired(project, data, log_connection):
    write_catalog(log_connection, {"job:job": {"versions": {"1": {}}, "current": "1"}})
    (project / "mainstem.toml").write_text('[jobs.job]\nversion = "1"\n')
    asked = reprocess(None, project, data, "job")
    assert retire(log_connection, data, "job", asked.version, project).output == "b.v2"
    assert asked_versions(data) == []
    assert reprocess(None, project, data, "job").version == "3"


def test_a_damaged_file_is_told_with_what_to_do(project, data):
    reprocess(None, project, data, "job")
    (data / "jobs" / "job@2" / "asked.json").write_text("{")
    with pytest.raises(CorruptData, match="expected which version is to be started") as told:
        assignments(project, data, ManualClock())
    assert "`mainstem job reprocess` asks for the version again" in told.value.hint


def test_it_is_ready_once_it_has_started_and_read_what_the_current_one_had(log_connection):
    write_versions(log_connection, "late", ["1"])
    write_read(log_connection, "late", "1", 5)
    steps = iter([
        lambda: write_versions(log_connection, "late", ["1", "2"]),
        lambda: write_read(log_connection, "late", "1", 9),  # it goes on meanwhile
        lambda: write_read(log_connection, "late", "2", 5),
    ])  # fmt: skip
    told = []
    wait_ready(log_connection, "late", "2", Waiting(tell=told.append, pause=lambda _: next(steps)()))
    assert told == ["job late@2 has not started", "job late@2 has 5 offsets to go"]
    with pytest.raises(NotReached, match="job late@3 has not started; it goes on"):
        wait_ready(log_connection, "late", "3", Waiting(timeout_seconds=0))
