"""Code that ran before and cannot be loaded stops its own jobs; what somebody has just written stops the start."""

import shutil
import sys

import pytest

from mainstem.client.connection import Connection
from mainstem.core import CorruptData, ManualClock, Retriable, UserError
from mainstem.core.locks import DirectoryInUse
from mainstem.process import load_project
from mainstem.process.declare import BadDeclaration, Location
from mainstem.process.diagnosis import JobFailed
from mainstem.process.frozen import freeze, version_directory
from mainstem.process.project_config import JobConfig
from mainstem.process.run import JobDriver
from mainstem.process.versions import (
    RETIRED_FILE,
    Asked,
    Fixed,
    assignments,
    is_running,
    run_alone,
    write_asked,
    write_fixed,
)
from mainstem.registry.client import Registry
from mainstem.standalone.frozen_jobs import FrozenJobs, job_states
from tests.standalone.project import write_project

JOBS = """
from mainstem.process import stream, topic
import of_the_old_one

a = topic("a")


@stream(to="b")
def job(a):
    return a


@stream(to="c")
def other(a):
    return a
"""


class Job:
    """Stands in for one that runs on Spark."""

    def figures(self):
        return {"batch": 3}


class Driver:
    """Stands in for one with Spark: what it was made of, and whether it runs."""

    running, waiting = {"job@1": Job(), "other@1": Job()}, {}

    def __init__(self, version, project, refuse=None):
        self.made_of, self.refuse, self.calls = (version.sha, project.name), refuse, []
        self.origin = version.manifest.origin
        self.retries = type("None failed", (), {"failed": {}})

    def start(self):
        self.calls.append("start")
        if self.refuse:
            raise self.refuse

    def step(self):
        self.calls.append("step")

    def take_on(self, jobs):
        self.calls.append(jobs)

    def stop(self):
        self.calls.append("stop")


@pytest.fixture
def old(tmp_path, monkeypatch):
    """The hash of code that has run, and which imports a module that a package brought."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "of_the_old_one.py").write_text("")
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.delitem(sys.modules, "of_the_old_one", raising=False)
    project, data = write_project(tmp_path / "project"), tmp_path / "data"
    (project / "jobs.py").write_text(JOBS)
    sha = freeze(project, data, ManualClock()).sha
    for name, output in (("job", "b"), ("other", "c")):
        write_fixed(data / "jobs" / f"{name}@1", Fixed(name, "1", sha, {}, output, 1, 4))
    (project / "jobs.py").write_text(JOBS.replace("import of_the_old_one\n", ""))
    (project / "mainstem.toml").write_text("[jobs.job]\nversion = '2'\n[jobs.other]\nversion = '2'\n")
    return sha


def test_jobs_whose_code_can_be_loaded_run(old, tmp_path):
    jobs = FrozenJobs(tmp_path / "data", old, [("job", "1"), ("other", "1")])
    jobs.load()
    jobs.start(Driver)
    jobs.step()
    jobs.stop()
    assert (jobs.name, jobs.driver.made_of) == ("small", (old, "small"))
    assert jobs.driver.calls == ["start", "step", "stop"]
    assert {each.name: each.state for each in jobs.states} == {"job job@1": "running", "job other@1": "running"}
    assert str(jobs) == "2 jobs running, 0 waiting for their inputs"


def test_an_old_version_that_lost_its_package_fails_alone_until_it_is_back(old, tmp_path):
    """Log, gateway and all other jobs were stopped, and so `job retire`, the cure, could not be used."""
    data, packages, clock = tmp_path / "data", tmp_path / "packages", ManualClock()
    shutil.move(packages / "of_the_old_one.py", tmp_path / "aside.py")
    jobs = FrozenJobs(data, old, [("job", "1"), ("other", "1")], clock=clock)
    jobs.load()
    jobs.start(Driver)
    assert str(jobs) == "no job running, 2 failed"
    failure, _ = jobs.states
    place = version_directory(data, old) / "jobs.py"
    assert failure.error.startswith(f"its frozen code {old} cannot run: {place}:3: import failed: ModuleNotFoundError")
    assert (failure.name, failure.state, failure.needs_a_person) == ("job job@1", "failed", True)
    assert "`mainstem job retire job 1` stops this one for good" in failure.hint

    (data / "jobs" / "job@1" / RETIRED_FILE).touch()
    assert [each.name for each in jobs.states] == ["job other@1"]
    shutil.move(tmp_path / "aside.py", packages / "of_the_old_one.py")
    jobs.step()
    assert jobs.driver is None  # not yet: every try costs something
    clock.advance_ms(120_000)
    jobs.step()
    assert jobs.driver.calls == ["start"]
    jobs.stop()


def test_a_damaged_copy_of_an_old_version_is_no_error_of_the_start(old, tmp_path):
    data = tmp_path / "data"
    (version_directory(data, old) / "jobs.py").write_text(JOBS + "# edited\n")
    new, damaged = assignments(tmp_path / "project", data, ManualClock())
    assert (new.jobs, damaged.jobs) == ((("job", "2"), ("other", "2")), (("job", "1"), ("other", "1")))
    jobs = FrozenJobs(data, damaged.sha, damaged.jobs)
    jobs.load()
    assert "somebody edited it" in jobs.states[0].error
    with pytest.raises(CorruptData, match="somebody edited it"):  # with a job that has never run
        FrozenJobs(data, damaged.sha, [("job", "3")]).load()


def test_a_job_that_the_frozen_code_does_not_have_is_told(old, tmp_path):
    """An error of Python's own ended the driver, with all jobs of that code, again and again."""
    with pytest.raises(UserError, match=r": expected job later, found job, other$"):
        FrozenJobs(tmp_path / "data", old, [("job", "1"), ("later", "1")]).load()
    data = tmp_path / "data"
    write_fixed(data / "jobs" / "later@1", Fixed("later", "1", old, {}, "d", 1, 4))
    jobs = FrozenJobs(data, old, [("job", "1"), ("later", "1")])
    jobs.load()
    assert [": expected job later" in each.error for each in jobs.states] == [True] * 3


def test_a_place_is_told_as_that_in_the_project_that_was_moved(old, tmp_path):
    moved = (tmp_path / "project").rename(tmp_path / "moved")
    jobs = FrozenJobs(tmp_path / "data", old, [("job", "1")], project=moved)
    jobs.load()
    jobs.start(Driver)
    assert jobs.driver.origin == str(moved)


def test_what_an_old_version_cannot_declare_fails_it_alone(old, tmp_path):
    jobs = FrozenJobs(tmp_path / "data", old, [("job", "1"), ("other", "1")])
    jobs.load()
    jobs.start(lambda *of: Driver(*of, refuse=UserError("topic lines: schema refused")))
    assert [each.error for each in jobs.states] == [
        f"its frozen code {old} cannot run: topic lines: schema refused"
    ] * 2
    new = FrozenJobs(tmp_path / "data", old, [("job", "3")])
    new.load()
    with pytest.raises(BadDeclaration):
        new.start(lambda *of: Driver(*of, refuse=BadDeclaration(Location("jobs.py", 3), "no column")))


@pytest.fixture
def driver(tmp_path):
    """One that was not started: no log, no Spark."""
    project, data = write_project(tmp_path / "project"), tmp_path / "data"
    version = freeze(project, data, ManualClock())
    nowhere, registry = Connection("127.0.0.1:1"), Registry("http://127.0.0.1:1", patience_seconds=0)
    return JobDriver(None, load_project(project), version, nowhere, registry, data, clock=ManualClock())


def test_the_name_of_a_job_is_told_once(driver):
    driver.retries.fail("hourly@2", JobFailed(None, "no column"))
    driver.retries.fail("daily@1", JobFailed(Location("jobs.py", 12), "no column"))
    hourly, daily = job_states(driver)
    assert (hourly.name, hourly.error) == ("job hourly@2", "no column")
    assert (daily.name, daily.error) == ("job daily@1", "jobs.py:12: no column")


def test_a_job_that_waits_for_its_input_is_told_with_what_it_waits_for(driver):
    driver.retries.fail("b@1", Retriable("no answer"))
    driver.waiting |= {"a@1": "topic crm.customers has no schema yet", "b@1": "no answer"}
    driver.running["c@1"] = Job()
    told = {each.name: (each.state, each.error) for each in job_states(driver)}
    assert told == {
        "job a@1": ("idle", "topic crm.customers has no schema yet"),
        "job b@1": ("waiting", "no answer"),
        "job c@1": ("running", ""),
    }
    assert [each.figures for each in job_states(driver)] == [{"batch": 3}, {}, {}]


def test_versions_that_are_asked_for_are_taken_on_and_stay_with_a_driver_that_is_started_again(old, tmp_path):
    data, clock = tmp_path / "data", ManualClock()
    jobs = FrozenJobs(data, old, [("job", "1"), ("other", "1")], clock=clock)
    jobs.load()
    jobs.start(Driver)
    jobs.step()
    write_asked(data / "jobs" / "job@2", Asked("job", "2", old, "b.v2", 0))
    write_asked(data / "jobs" / "other@2", Asked("other", "2", "0123", "c.v2", 0))  # from other code
    for _ in range(2):
        clock.advance_ms(2_000)
        jobs.step()
    assert jobs.driver.calls == ["start", "step", [("job", "2")], "step", "step"]
    write_fixed(data / "jobs" / "job@2", Fixed("job", "2", old, {}, "b.v2", 1, 4))
    (data / "versions" / f"{old}.json").unlink()
    jobs.stop()
    again = FrozenJobs(data, old, [("job", "1"), ("other", "1")], clock=clock)
    assert again.jobs == (("job", "1"), ("other", "1"), ("job", "2"))  # what the driver is made for
    again.load()
    assert [each.name for each in again.states] == ["job job@1", "job other@1", "job job@2"]


def test_a_version_that_another_process_runs_is_refused(old, tmp_path):
    """Two took it from each other in turn, each fencing the other."""
    data = tmp_path / "data"
    lock = run_alone(data, "other", "1")
    with pytest.raises(DirectoryInUse, match=r"^job other@1 runs already: .*in use by process \d+$"):
        FrozenJobs(data, old, [("job", "1"), ("other", "1")]).load()
    assert not is_running(data, "job", "1")
    lock.release()
    clock = ManualClock()
    jobs = FrozenJobs(data, old, [("job", "1"), ("other", "1")], clock=clock)
    jobs.load()
    assert is_running(data, "job", "1")
    for job, output in (("job", "b.v2"), ("other", "c.v2")):
        write_asked(data / "jobs" / f"{job}@2", Asked(job, "2", old, output, 0))
    lock = run_alone(data, "job", "2")
    jobs.step()
    assert jobs.jobs[2:] == (("other", "2"),)
    lock.release()
    clock.advance_ms(2_000)
    jobs.step()
    assert jobs.jobs[2:] == (("other", "2"), ("job", "2"))
    jobs.stop()
    assert not is_running(data, "job", "1")


def test_an_application_takes_on_what_is_asked_for_in_it(old, tmp_path):
    data, clock, settings = tmp_path / "data", ManualClock(), {"other": JobConfig(application="big")}
    common, big = (
        FrozenJobs(data, old, [(job, "1")], application=name, settings=lambda: settings, clock=clock)
        for name, job in (("", "job"), ("big", "other"))
    )
    assert (common.jobs, big.jobs) == ((("job", "1"),), (("other", "1"),))
    for each in (common, big):
        each.load()
        each.start(Driver)
    for job, output in (("job", "b.v2"), ("other", "c.v2")):
        write_asked(data / "jobs" / f"{job}@2", Asked(job, "2", old, output, 0))
    clock.advance_ms(2_000)
    for each in (common, big):
        each.step()
    assert (common.jobs, big.jobs) == ((("job", "1"), ("job", "2")), (("other", "1"), ("other", "2")))
    settings.clear()  # it has no application of its own any more, from the next start of all on
    common.stop()
    assert FrozenJobs(data, old, [("job", "1")], settings=lambda: settings).jobs == (("job", "1"), ("job", "2"))
    big.stop()
