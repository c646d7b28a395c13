import signal
import threading
from types import SimpleNamespace

import pytest

from mainstem.core import ManualClock, Retriable
from mainstem.core.task import TaskState
from mainstem.process.declare import Location
from mainstem.process.job import JobFailed
from mainstem.process.retries import Retries
from mainstem.standalone.processes import stop_on_signals, task_states


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


def test_the_name_of_a_job_is_told_once():
    retries = Retries(ManualClock())
    retries.fail("hourly@2", JobFailed("hourly", None, "no column"))
    retries.fail("daily@1", JobFailed("daily", Location("jobs.py", 12), "no column"))
    hourly, daily = task_states(SimpleNamespace(running={}, waiting={}, retries=retries))
    assert (hourly.name, hourly.error) == ("job hourly@2", "no column")
    assert (daily.name, daily.error) == ("job daily@1", "jobs.py:12: no column")


def test_a_job_that_waits_for_its_input_is_told_with_what_it_waits_for():
    retries = Retries(ManualClock())
    retries.fail("b@1", Retriable("no answer"))
    waiting = {"a@1": "topic crm.customers has no schema yet", "b@1": "no answer"}
    driver = SimpleNamespace(running={"c@1": None}, waiting=waiting, retries=retries)
    sink = SimpleNamespace(states=[TaskState("sink lake"), TaskState("sink lake: table t", "failed", 1, "no number")])
    told = {each.name: (each.state, each.error) for each in task_states(driver, [sink])}
    assert told == {
        "job a@1": ("idle", "topic crm.customers has no schema yet"),
        "job b@1": ("waiting", "no answer"),
        "job c@1": ("running", ""),
        "sink lake": ("running", ""),
        "sink lake: table t": ("failed", "no number"),
    }
