import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import msgspec
import pytest

from mainstem.connect.sinks import delta
from mainstem.core.locks import DirectoryInUse, DirectoryLock
from mainstem.process import executors, session
from mainstem.process.declare import BadDeclaration, Location
from mainstem.standalone import frozen_jobs
from mainstem.standalone.lakehouses import LOCK
from mainstem.standalone.processes import JavaEnded, run_spark, stop_on_signals
from mainstem.standalone.tasks import TasksFile, tasks_file
from tests.standalone.project import write_project
from tests.support.processes import start, stop


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


SIGNALLED = """
import os, signal, threading
from mainstem.standalone.processes import stop_on_signals

for _ in range(300):
    stop = stop_on_signals()
    threading.Timer(0.0002, os.kill, (os.getpid(), signal.SIGTERM)).start()
    while not stop.wait(0):
        pass
"""


def test_a_signal_that_meets_the_main_thread_in_its_wait_stops_it_too():
    """The handler waited for a lock which the main thread held: a process that was stopped as it had just begun stayed
    until it was killed.
    """
    subprocess.run([sys.executable, "-c", SIGNALLED], check=True, timeout=60)


STARTING = """
import sys, time
from pathlib import Path
from mainstem.process import executors, session
from mainstem.standalone.processes import run_spark


def start_session(*_, **__):
    print("starting", flush=True)
    time.sleep(600)


session.start_session = start_session
run_spark(Path(sys.argv[1]), "127.0.0.1:1", "127.0.0.1:2", Path(sys.argv[2]), "0", (), tables=False)
"""


def test_a_driver_that_is_stopped_while_spark_starts_ends_at_once(tmp_path):
    """All others waited for it, and so did the line that said why everything stopped: ten seconds and more."""
    command = [sys.executable, "-c", STARTING, write_project(tmp_path / "project"), tmp_path / "data"]
    driver = start(command, stdout=subprocess.PIPE, text=True)
    assert driver.stdout.readline() == "starting\n"
    assert stop(driver) == 0
    driver.stdout.close()


def test_code_that_runs_already_is_not_started_a_second_time(tmp_path, monkeypatch):
    """It deleted the scratch files of the first, and then they took the jobs from each other, for ever."""
    monkeypatch.setattr(session, "start_session", None)
    project = write_project(tmp_path / "project")
    with DirectoryLock(tmp_path / "spark" / "0"), pytest.raises(DirectoryInUse, match="in use by process"):
        run_spark(project, "127.0.0.1:1", "127.0.0.1:2", tmp_path, "0", (), tables=False)


@pytest.mark.parametrize("java_ended", [False, True])
def test_what_failed_first_is_told_unless_java_ended(tmp_path, monkeypatch, java_ended):
    """An error of stopping what was there hid the user's line."""
    stopped = []

    def stop_session(_):
        stopped.append("session")
        raise OSError("the connection to Java is gone")

    def start_jobs(*_):
        raise BadDeclaration(Location("jobs.py", 12), "no such column")

    def stop_jobs():
        stopped.append("jobs")
        raise OSError("no answer")

    jobs = SimpleNamespace(name="small", load=lambda: None, start=start_jobs, stop=stop_jobs, states=[])
    monkeypatch.setattr(frozen_jobs, "FrozenJobs", lambda *_, **__: jobs)
    monkeypatch.setattr(session, "start_session", lambda *_, **__: None)
    monkeypatch.setattr(executors, "check_executors", lambda *_: None)
    monkeypatch.setattr(session, "has_ended", lambda _: java_ended)
    monkeypatch.setattr(session, "stop_session", stop_session)
    with pytest.raises(JavaEnded if java_ended else BadDeclaration, match="has ended" if java_ended else "jobs.py:12"):
        run_spark(write_project(tmp_path / "project"), "127.0.0.1:1", "127.0.0.1:2", tmp_path, "0", (), tables=False)
    assert stopped == ([] if java_ended else ["jobs", "session"])


def test_tables_that_another_process_writes_are_left_to_it(tmp_path, monkeypatch):
    """`mainstem run spark --tables` beside `mainstem up` doubled the rows of all tables."""
    project = write_project(tmp_path / "project")
    with (project / "mainstem.toml").open("a") as settings:
        settings.write('[sinks.lake]\ntype = "delta"\npath = "lake"\n')
    jobs = SimpleNamespace(name="small", load=lambda: None, start=lambda _: None, states=[])
    monkeypatch.setattr(frozen_jobs, "FrozenJobs", lambda *_, **__: jobs)
    monkeypatch.setattr(session, "start_session", lambda *_, **__: SimpleNamespace(newSession=lambda: None))
    monkeypatch.setattr(executors, "check_executors", lambda *_: None)
    monkeypatch.setattr(delta, "Lakehouse", lambda *_, **__: SimpleNamespace())  # it cannot be started
    monkeypatch.setattr(session, "has_ended", lambda _: True)
    with DirectoryLock(project / "lake", LOCK), pytest.raises(JavaEnded):
        run_spark(project, "127.0.0.1:1", "127.0.0.1:2", tmp_path, "0", (), tables=True)
    (state,) = msgspec.json.decode(tasks_file(tmp_path, "spark-0").read_bytes(), type=TasksFile).tasks
    assert (state.name, state.state) == ("sink lake", "failed")
    assert f"{project}/lake: in use by process {os.getpid()}" in state.error
