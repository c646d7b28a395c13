import signal
import threading
from types import SimpleNamespace

import pytest

from mainstem.client.connection import Connection
from mainstem.core import ManualClock, Retriable
from mainstem.core.task import TaskState
from mainstem.process import load_project
from mainstem.process.declare import Location
from mainstem.process.job import JobFailed
from mainstem.process.run import JobDriver
from mainstem.process.versions import freeze
from mainstem.registry.client import Registry
from mainstem.standalone.processes import stop_on_signals, task_states
from tests.standalone.project import write_project


@pytest.fixture(autouse=True)
def keep_handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_for_a_stop(number):
    stop = stop_on_signals()
    assert isinstance(stop, threading.Event)
    assert not stop.is_set()
    signal.raise_signal(number)
    assert stop.wait(5)


@pytest.fixture
def driver(tmp_path):
    """One that was not started: no log, no Spark."""
    project, data = write_project(tmp_path / "project"), tmp_path / "data"
    version = freeze(project, data, ManualClock())
    nowhere, registry = Connection("127.0.0.1:1"), Registry("http://127.0.0.1:1", patience_seconds=0)
    return JobDriver(None, load_project(project), version, nowhere, registry, data, clock=ManualClock())


def test_the_name_of_a_job_is_told_once(driver):
    driver.retries.fail("hourly@2", JobFailed("hourly", None, "no column"))
    driver.retries.fail("daily@1", JobFailed("daily", Location("jobs.py", 12), "no column"))
    hourly, daily = task_states(driver)
    assert (hourly.name, hourly.error) == ("job hourly@2", "no column")
    assert (daily.name, daily.error) == ("job daily@1", "jobs.py:12: no column")


def test_a_job_that_waits_for_its_input_is_told_with_what_it_waits_for(driver):
    driver.retries.fail("b@1", Retriable("no answer"))
    driver.waiting |= {"a@1": "topic crm.customers has no schema yet", "b@1": "no answer"}
    driver.running["c@1"] = None
    # A lakehouse is none without Spark: of one, only how it is.
    lake = SimpleNamespace(states=[TaskState("sink lake"), TaskState("sink lake: table t", "failed", 1, "no number")])
    told = {each.name: (each.state, each.error) for each in task_states(driver, [lake])}
    assert told == {
        "job a@1": ("idle", "topic crm.customers has no schema yet"),
        "job b@1": ("waiting", "no answer"),
        "job c@1": ("running", ""),
        "sink lake": ("running", ""),
        "sink lake: table t": ("failed", "no number"),
    }
