"""What the hints say is done, from the states that they are given in."""

import pytest

from mainstem.core import ManualClock, UserError
from mainstem.process.another_version import before_it_is_retired, instead_of_retired, start_another
from mainstem.process.reprocess import reprocess
from mainstem.process.retire import retire
from mainstem.process.versions import Fixed, assignments, write_fixed
from tests.support.versions import write_project_of_one_job


@pytest.fixture
def project(tmp_path):
    return write_project_of_one_job(tmp_path / "project")


@pytest.fixture
def data(project, tmp_path):
    """Where version 1 was started."""
    (only,) = assignments(project, tmp_path / "data", ManualClock())
    write_fixed(tmp_path / "data" / "jobs" / "job@1", Fixed("job", "1", only.sha, {}, "b", 1, 4))
    return tmp_path / "data"


def meant(project, data):
    return [job for each in assignments(project, data, ManualClock()) for job in each.jobs]


def test_the_command_is_named_and_told_to_build_the_same_code_where_it_was_not_edited():
    assert start_another("sums").startswith("`mainstem job reprocess sums --anyway` starts another version: ")
    assert start_another("sums", is_edited=True).startswith("`mainstem job reprocess sums` starts another version: ")


def test_the_last_version_can_be_retired_once_another_was_asked_for(project, data, log_connection):
    with pytest.raises(UserError) as refused:
        retire(log_connection, data, "job", "1", project)
    assert refused.value.hint == before_it_is_retired("job")
    assert reprocess(log_connection, project, data, "job", anyway=True).version == "2"
    retire(log_connection, data, "job", "1", project)
    assert meant(project, data) == [("job", "2")]


def test_a_job_whose_versions_were_all_retired_begins_anew(project, data, log_connection):
    """It was out of the code, and is back."""
    retire(log_connection, data, "job", "1", project.parent / "gone", force=True)
    with pytest.raises(UserError, match="job job@1 was retired and never runs again") as refused:
        assignments(project, data, ManualClock())
    assert refused.value.hint == instead_of_retired("job")
    assert reprocess(None, project, data, "job").version == "2"
    assert meant(project, data) == [("job", "2")]


def test_settings_that_name_a_retired_version_are_mended_by_naming_none(project, data, log_connection):
    reprocess(log_connection, project, data, "job", anyway=True)
    retire(log_connection, data, "job", "1", project)
    settings = project / "mainstem.toml"
    settings.write_text('[jobs.job]\nversion = "1"\n')
    with pytest.raises(UserError) as refused:
        assignments(project, data, ManualClock())
    assert refused.value.hint == instead_of_retired("job")
    settings.write_text("")
    assert meant(project, data) == [("job", "2")]
