"""Why a query has ended, from what Spark says of it. Whole jobs that fail are in test_run."""

from pathlib import Path

import pytest

from mainstem.core import Retriable, UserError
from mainstem.process.declare import Location
from mainstem.process.diagnosis import JobFailed, JobRefused, check_damage, check_shape, failed
from mainstem.process.frozen import Frozen, Version
from mainstem.process.sink_checkpoint import Checkpoint
from mainstem.registry.spark import LATER_ID, TopicSchema

DECLARED = Location("jobs.py", 3)


def test_a_failure_names_the_users_line():
    assert str(JobFailed(Location("jobs.py", 7), "no such column")) == "jobs.py:7: no such column"
    assert str(JobFailed(None, "lost")) == "lost"
    assert isinstance(JobRefused(None, "rolled back"), UserError)  # a supervisor does not try it again
    assert not isinstance(JobFailed(None, "lost"), UserError)


@pytest.fixture
def version(tmp_path):
    (tmp_path / "frozen").mkdir()
    (tmp_path / "project").mkdir()
    for directory in ("frozen", "project"):
        (tmp_path / directory / "jobs.py").write_text("one\n")
    return Version("c0de", tmp_path / "frozen", Frozen("c0de", str(tmp_path / "project"), 0))


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (KeyError("cents"), JobFailed, "jobs.py:3: KeyError: 'cents'"),
        (Retriable("no answer", hint="look"), JobFailed, "jobs.py:3: no answer"),
        (UserError("no key", hint="look"), JobRefused, "jobs.py:3: no key"),
    ],
)  # fmt: skip
def test_what_ended_a_query_is_told_with_where_the_job_is(version, error, kind, told):
    found = failed(error, RuntimeError("STREAM_FAILED"), version, DECLARED)
    assert (type(found), str(found), found.hint) == (kind, told, getattr(error, "hint", ""))


def test_the_place_of_an_error_is_that_in_the_projects_own_file(version):
    page = f'Traceback\n  File "{version.directory / "jobs.py"}", line 8, in double\nValueError: no number'
    in_project = Path(version.manifest.origin) / "jobs.py"
    assert str(failed(RuntimeError(page), None, version, DECLARED)) == f"{in_project}:8: ValueError: no number"
    assert str(failed(ValueError("x"), RuntimeError(page), version, DECLARED)) == f"{in_project}:8: ValueError: x"


def test_a_shape_that_rows_fit_in_no_more_is_told_with_why():
    schema = TopicSchema("orders", "{}", 1, {}, later={7: "cents is a text"})
    check_shape("job", RuntimeError("disk full"), [schema])
    check_shape("job", None, [schema])
    with pytest.raises(JobRefused, match=r"^topic orders: schema 7 does not fit .*: cents is a text$") as caught:
        check_shape("job", RuntimeError(f"[X] {LATER_ID} 7 of topic orders"), [schema])
    assert "mainstem job reprocess job" in caught.value.hint


def test_what_is_damaged_or_gone_is_told(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    check_damage("job", "no answer", checkpoint, 3, ["orders"])
    with pytest.raises(JobRefused, match=r"^records of orders, gifts are gone that it has not read"):
        check_damage("job", "Caused by: OffsetOutOfRange", checkpoint, 3, ["orders", "gifts"])
