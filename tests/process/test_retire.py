"""A version that was retired never runs again, and readers of it go where they are told."""

import pytest

from mainstem.client.catalog import current_versions, read_catalog, with_cutover, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG
from mainstem.client.topics import end_offsets
from mainstem.core import ManualClock, UserError
from mainstem.core.locks import DirectoryInUse
from mainstem.process.frozen import freeze
from mainstem.process.retire import Marks, finish_retired, hold_catalog, retire
from mainstem.process.versions import Fixed, assignments, write_fixed
from tests.support.versions import JOBS, write_small_project


@pytest.fixture
def project(tmp_path):
    return write_small_project(tmp_path / "project")


def test_a_version_is_retired_once_the_project_asks_for_another(project, tmp_path, log_connection):
    data, clock = tmp_path / "data", ManualClock()
    (only,) = assignments(project, data, clock)
    write_fixed(data / "jobs" / "job@1", Fixed("job", "1", only.sha, {}, "b", 1, 4))
    about = {version: {"output": "b", "inputs": {"a": "a"}} for version in ("1", "2")}
    write_catalog(log_connection, {"job:job": {"versions": about, "current": "1"}})

    with pytest.raises(UserError, match="was never started from"):
        retire(log_connection, data, "job", "2", project)
    with pytest.raises(UserError, match=r"job job@1 is what .*mainstem\.toml asks for") as refused:
        retire(log_connection, data, "job", "1", project)
    assert "`mainstem job reprocess job --anyway`" in refused.value.hint
    assert [each.jobs for each in assignments(project, data, clock)] == [(("job", "1"),)]

    (project / "mainstem.toml").write_text('[jobs.job]\nversion = "2"\n')
    with pytest.raises(UserError, match=r"^job job@1 is current: ") as refused:
        retire(log_connection, data, "job", "1", project)
    assert "`mainstem job cutover job 2`; --force" in refused.value.hint
    write_catalog(log_connection, with_cutover(read_catalog(log_connection), {"job": "2"}, {}, 0))
    with pytest.raises(UserError, match=r"^job job@1 is what `mainstem job revert job` leads back to"):
        retire(log_connection, data, "job", "1", project)
    for _ in range(2):  # it can be repeated
        assert retire(log_connection, data, "job", "1", project, force=True).output == "b"
    assert [each.jobs for each in assignments(project, data, clock)] == [(("job", "2"),)]
    entry = read_catalog(log_connection)["job:job"]
    assert entry == {"versions": {"2": about["2"]}, "current": "2", "retired": {"1": about["1"]}}


def test_readers_of_a_current_version_that_is_retired_all_the_same_go_back(tmp_path, log_connection):
    data, about = tmp_path / "data", {version: {} for version in ("1", "2", "3")}
    write_catalog(log_connection, {"job:forced": {"versions": about, "current": "1"}})
    for version in about:
        write_fixed(data / "jobs" / f"forced@{version}", Fixed("forced", version, "abc", {}, "b", 1, 4))
    write_catalog(log_connection, with_cutover(read_catalog(log_connection), {"forced": "2"}, {}, 0))
    for version, left in [("2", "1"), ("1", "3"), ("3", "")]:
        retire(log_connection, data, "forced", version, tmp_path, force=True)
        assert current_versions(read_catalog(log_connection))["forced"] == left


def test_readers_go_to_the_newest_version_that_is_left_in_whatever_order_they_started(tmp_path, log_connection):
    data = tmp_path / "data"
    write_catalog(log_connection, {"job:disorder": {"versions": {"3": {}, "10": {}, "2": {}}, "current": "3"}})
    write_fixed(data / "jobs" / "disorder@3", Fixed("disorder", "3", "abc", {}, "b", 1, 4))
    retire(log_connection, data, "disorder", "3", tmp_path, force=True)
    assert current_versions(read_catalog(log_connection))["disorder"] == "10"


def test_what_a_killed_command_has_marked_is_forgotten_at_the_next_start(tmp_path, log_connection, monkeypatch):
    """Readers meant a version that no driver starts, for ever."""
    data, about = tmp_path / "data", {version: {} for version in ("1", "2")}
    write_catalog(log_connection, {"job:half": {"versions": about, "current": "1"}})
    for version in about:
        write_fixed(data / "jobs" / f"half@{version}", Fixed("half", version, "abc", {}, "b", 1, 4))

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mainstem.process.sink_commit.fence_job", killed)
        with pytest.raises(KeyboardInterrupt):
            retire(log_connection, data, "half", "1", tmp_path, force=True)
        # Once it is marked nothing runs it: it can be ended without --force, too.
        with pytest.raises(KeyboardInterrupt):
            retire(log_connection, data, "half", "1", tmp_path)
    assert current_versions(read_catalog(log_connection))["half"] == "1"
    finish_retired(log_connection, data)
    expected = {"versions": {"2": {}}, "current": "2", "retired": {"1": about["1"]}}
    assert read_catalog(log_connection)["job:half"] == expected
    end = end_offsets(log_connection, CATALOG)
    finish_retired(log_connection, data)
    assert end_offsets(log_connection, CATALOG) == end, "nothing was left to do"


def test_a_killed_command_is_finished_by_one_that_does_not_force(project, tmp_path, log_connection):
    (project / "jobs.py").write_text(JOBS.replace("def job", "def marked"))
    data, about = tmp_path / "data", {version: {} for version in ("1", "2")}
    write_catalog(log_connection, {"job:marked": {"versions": about, "current": "1"}})
    for version in about:
        write_fixed(data / "jobs" / f"marked@{version}", Fixed("marked", version, "abc", {}, "b", 1, 4))
    (project / "mainstem.toml").write_text('[jobs.marked]\nversion = "2"\n')
    (data / "jobs" / "marked@1" / "retired").touch()
    retire(log_connection, data, "marked", "1", project)
    assert read_catalog(log_connection)["job:marked"] == {
        "versions": {"2": {}},
        "current": "2",
        "retired": {"1": about["1"]},
    }


def test_what_is_marked_while_the_project_runs_is_finished_beside_it(tmp_path, log_connection):
    data, about = tmp_path / "data", {version: {} for version in ("1", "2")}
    write_catalog(log_connection, {"job:beside": {"versions": about, "current": "1"}})
    for version in about:
        write_fixed(data / "jobs" / f"beside@{version}", Fixed("beside", version, "abc", {}, "b", 1, 4))
    marks = Marks(data)
    end = end_offsets(log_connection, CATALOG)
    marks.look(log_connection)
    assert end_offsets(log_connection, CATALOG) == end
    (data / "jobs" / "beside@1" / "retired").touch()
    marks.look(log_connection)
    assert current_versions(read_catalog(log_connection))["beside"] == "2"
    marks.look(Connection("127.0.0.1:1"))  # nothing is new: the log is not asked


def test_readers_do_not_go_back_to_a_version_that_is_retired(tmp_path, log_connection):
    """What the catalog says of itself and what cutovers say may differ: the first counts where the others are gone."""
    data, about = tmp_path / "data", {version: {} for version in ("1", "2", "3")}
    write_catalog(log_connection, {"job:back": {"versions": about, "current": "1"}})
    for version in about:
        write_fixed(data / "jobs" / f"back@{version}", Fixed("back", version, "abc", {}, "b", 1, 4))
    write_catalog(log_connection, with_cutover(read_catalog(log_connection), {"back": "2"}, {}, 0))
    retire(log_connection, data, "back", "1", tmp_path, force=True)
    assert read_catalog(log_connection)["job:back"]["current"] == "2"


def test_two_commands_that_change_the_versions_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.process.retire.HOLD_SECONDS", 0.0)
    with hold_catalog(tmp_path), pytest.raises(DirectoryInUse), hold_catalog(tmp_path):
        pass
    with hold_catalog(tmp_path):
        pass


def test_the_last_version_that_goes_on_is_what_a_project_has_that_names_none(project, tmp_path, log_connection):
    data = tmp_path / "data"
    sha = freeze(project, data, ManualClock()).sha
    for version in ("1", "2"):
        write_fixed(data / "jobs" / f"job@{version}", Fixed("job", version, sha, {}, "b", 1, 4))
    retire(log_connection, data, "job", "1", project, force=True)
    with pytest.raises(UserError, match=r"job job@2 is what .*mainstem\.toml asks for"):
        retire(log_connection, data, "job", "2", project, force=True)


def test_a_job_that_the_project_no_longer_has_is_retired(project, tmp_path, log_connection):
    data = tmp_path / "data"
    sha = freeze(project, data, ManualClock()).sha
    write_fixed(data / "jobs" / "job@1", Fixed("job", "1", sha, {}, "b", 1, 4))
    (project / "jobs.py").write_text(JOBS.replace("def job", "def other"))
    retire(log_connection, data, "job", "1", project)
    write_fixed(data / "jobs" / "other@1", Fixed("other", "1", sha, {}, "b", 1, 4))
    retire(log_connection, data, "other", "1", tmp_path / "the project is gone")
    assert read_catalog(log_connection)["job:other"] == {"versions": {}, "retired": {"1": {}}}
