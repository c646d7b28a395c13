"""`job reprocess`, killed before and after each of its steps: the version is asked for, or nothing is."""

import signal
import subprocess
import sys

import pytest

from mainstem.core import ManualClock
from mainstem.process.frozen import code_hash, freeze
from mainstem.process.reprocess import reprocess
from mainstem.process.versions import Fixed, asked_versions, assignments, write_fixed

STEPS = ["_check_started", "hold_catalog", "load_project", "freeze", "check_whole", "_check_other", "free_version"]
STEPS += ["versions.make_directory", "files.sync_directory", "write_asked"]
COMMAND = """
import os, signal, sys
from pathlib import Path
from mainstem.core import files
from mainstem.process import reprocess as module, versions

_, project, data, step, when = sys.argv
place, name = (versions, step.partition(".")[2]) if step.startswith("versions.") else (module, step)
if step.startswith("files."):
    place, name = files, step.partition(".")[2]
real, home = getattr(place, name), Path(data) / "jobs" / "job@2"

def killed(*given, **named):
    if step.startswith("files.") and not (home / "asked.json").exists():
        return real(*given, **named)  # of another file
    if when == "after":
        real(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(place, name, killed)
module.reprocess(None, Path(project), Path(data), "job")
"""
JOBS = 'from mainstem.process import stream, topic\na = topic("a")\n@stream(to="b")\ndef job(a):\n    return a\n'


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_version_is_asked_for_as_a_whole_or_not_at_all(tmp_path, step, when):
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    (project / "mainstem.toml").write_text("")
    (project / "jobs.py").write_text(JOBS)
    sha = freeze(project, data, ManualClock()).sha
    write_fixed(data / "jobs" / "job@1", Fixed("job", "1", sha, {}, "b", 1, 4))
    (project / "jobs.py").write_text(JOBS.replace("return a", "return a.distinct()"))
    command = [sys.executable, "-c", COMMAND, str(project), str(data), step, when]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    written = step == "files.sync_directory" or (step, when) == ("write_asked", "after")
    assert [each.version for each in asked_versions(data)] == (["2"] if written else [])
    if not written:  # nothing is in the way of the next command
        assert reprocess(None, project, data, "job").version == "2"
    (project / "jobs.py").write_text("")  # the next `up` starts what was asked for, whatever the project is by then
    assert {each.jobs: each.sha for each in assignments(project, data, ManualClock())} == {
        (("job", "1"),): sha,
        (("job", "2"),): asked_versions(data)[0].sha,
    }
    assert code_hash(project) not in (sha, asked_versions(data)[0].sha)
