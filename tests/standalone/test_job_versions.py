from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.core import ManualClock
from mainstem.core.task import TaskState
from mainstem.process.cutover import cutover
from mainstem.process.frozen import freeze
from mainstem.process.versions import Asked, write_asked
from mainstem.standalone.job_versions import job_versions
from tests.standalone.project import write_project
from tests.support.versions import write_read, write_versions


def test_versions_are_shown_with_what_they_have_to_read_to_be_current(mainstem_log, tmp_path):
    connection, job = Connection(mainstem_log.bootstrap), "shown-with-versions"
    code = freeze(write_project(tmp_path / "project"), tmp_path / "data", ManualClock(42)).sha
    write_versions(connection, job, ("1", "2", "3"), source="read-by-versions", code=code)
    append(connection, "read-by-versions", [(None, b"v")] * 9)
    write_read(connection, job, "1", 7, source="read-by-versions")
    write_read(connection, job, "2", 8, source="read-by-versions")
    idle = TaskState(f"job {job}@4", "idle", error="no schema yet")

    def seen():
        found = job_versions(connection, tmp_path / "data", job, [idle])
        return [(v.version, v.current, v.previous, v.behind, v.ready, v.lag) for v in found]

    assert seen() == [
        ("1", True, False, 0, True, 2),
        ("2", False, False, 0, True, 1),  # its lag does not matter
        ("3", False, False, 7, False, None),
        ("4", False, False, 0, False, None),
    ]
    assert [v.frozen_at for v in job_versions(connection, tmp_path / "data", job)] == [42, 42, 42]
    assert [v.frozen_at for v in job_versions(connection, tmp_path, job)] == [None] * 3
    write_asked(tmp_path / "data" / "jobs" / f"{job}@4", Asked(job, "4", code, f"{job}.v4", 0))
    last = job_versions(connection, tmp_path / "data", job, [idle])[-1]
    assert (last.code, last.output, last.frozen_at, last.state, last.ready) == (code, f"{job}.v4", 42, "idle", False)
    cutover(connection, tmp_path, {job: "2"})
    assert seen()[:2] == [("1", False, True, 1, False, 2), ("2", True, False, 0, True, 1)]
