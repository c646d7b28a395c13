import asyncio
import errno
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import httpx
import msgspec
import pytest

from mainstem import embedded
from mainstem.client.catalog import current_versions, read_catalog, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.topics import cluster_id, ensure_internal_topics, list_topics
from mainstem.core.config import BadSetting
from mainstem.core.task import TaskState
from mainstem.process import load_project
from mainstem.process.frozen import code_hash
from mainstem.process.installed import LOCK_FILE, write_lock
from mainstem.process.jars import FetchFailed
from mainstem.process.reprocess import reprocess
from mainstem.process.retire import Marks
from mainstem.process.versions import Fixed, write_fixed
from mainstem.registry.client import Registry
from mainstem.standalone import disks
from mainstem.standalone.config import load_config
from mainstem.standalone.disks import GIB, DiskAlarm
from mainstem.standalone.state import OtherLog, bind_log, claim_directory, load
from mainstem.standalone.tasks import TasksWriter, load_tasks
from mainstem.standalone.up import (
    Addresses,
    child_specs,
    choose_addresses,
    follow_marks,
    missing_drivers,
    up,
    watch_disk,
)
from tests.standalone.project import write_project
from tests.support.commands import mainstem, the_line
from tests.support.node import Node, wait_for
from tests.support.ports import free_port


@pytest.fixture
def project(tmp_path):
    return write_project(tmp_path / "project")


def names(project, tmp_path, **options):
    at = Addresses("127.0.0.1:1", "127.0.0.1:2")
    return [s.name for s in child_specs(load_project(project), load_config(project, {}), tmp_path, at, **options)]


def test_only_what_the_project_needs_is_started(project, tmp_path):
    assert names(project, tmp_path, own_log=True) == ["log", "gateway", "connect"]
    assert names(project, tmp_path, own_log=False) == ["gateway", "connect"]
    with (project / "mainstem.toml").open("a") as file:
        file.write('[sinks.lake]\ntype = "delta"\n')
    assert names(project, tmp_path, own_log=True) == ["log", "gateway", "connect", "spark"]


def test_jobs_that_were_started_with_code_that_was_edited_since_have_a_process_of_their_own(project, tmp_path):
    jobs = 'from mainstem.process import stream, topic\na = topic("a")\n@stream(to="b")\ndef job(a):\n    return a\n'
    (project / "jobs.py").write_text(jobs)
    assert names(project, tmp_path, own_log=False) == ["gateway", "connect", "spark"]
    sha = code_hash(project)
    write_fixed(tmp_path / "jobs" / "job@1", Fixed("job", "1", sha, {}, "b", 1, 4))
    assert names(project, tmp_path, own_log=False) == ["gateway", "connect", "spark"]
    (project / "jobs.py").write_text(jobs.replace("return a", "return a.distinct()"))
    assert names(project, tmp_path, own_log=False) == ["gateway", "connect", f"spark-{sha[:8]}"]
    with (project / "mainstem.toml").open("a") as file:
        file.write('[jobs.job]\nversion = "2"\n')
    assert names(project, tmp_path, own_log=False) == ["gateway", "connect", "spark", f"spark-{sha[:8]}"]


def test_a_version_that_is_asked_for_while_all_runs_gets_a_driver_unless_that_of_its_code_takes_it_on(
    project, tmp_path
):
    jobs = 'from mainstem.process import stream, topic\na = topic("a")\n@stream(to="b")\ndef job(a):\n    return a\n'
    (project / "jobs.py").write_text(jobs)
    at = Addresses("127.0.0.1:1", "127.0.0.1:2")
    specs = child_specs(load_project(project), load_config(project, {}), tmp_path, at, own_log=False)
    write_fixed(tmp_path / "jobs" / "job@1", Fixed("job", "1", code_hash(project), {}, "b", 1, 4))
    reprocess(None, project, tmp_path, "job", anyway=True)
    assert missing_drivers(project, tmp_path, at, specs) == []
    (project / "jobs.py").write_text(jobs.replace("return a", "return a.distinct()"))
    reprocess(None, project, tmp_path, "job")
    (spec,) = missing_drivers(project, tmp_path, at, specs)
    assert (spec.name, spec.vital) == (f"spark-{code_hash(project)[:8]}", False)
    assert spec.command[-4:] == ("--code", code_hash(project), "--job", "job@3")
    assert missing_drivers(project, tmp_path, at, [*specs, spec]) == []


JOBS = """
from mainstem.process import stream, topic
a = topic("a")

@stream(to="b")
def job(a):
    return a

@stream(to="c")
def big(a):
    return a
"""


def specs_of(project, data, **options):
    at = Addresses("127.0.0.1:1", "127.0.0.1:2")
    return child_specs(load_project(project), load_config(project, {}), data, at, own_log=False, **options)


def test_jobs_of_an_application_have_a_process_of_their_own_and_wait_for_no_other(project, tmp_path):
    (project / "jobs.py").write_text(JOBS)
    sha = code_hash(project)
    with (project / "mainstem.toml").open("a") as file:
        file.write('[jobs.big]\napplication = "heavy"\n[sinks.lake]\ntype = "delta"\n')
    *_, common, heavy = specs_of(project, tmp_path)
    assert (common.name, heavy.name) == ("spark", "spark.heavy")
    assert common.command[-5:] == ("--code", sha, "--job", "job@1", "--tables")
    assert heavy.command[-6:] == ("--code", sha, "--application", "heavy", "--job", "big@1")
    assert (common.behind, heavy.behind) == ("connect", "connect")
    *_, heavy = specs_of(project, tmp_path, master="spark://host:7077")
    assert heavy.command[-4:] == ("--master", "spark://host:7077", "--job", "big@1")


def test_tables_are_kept_by_the_process_of_no_application(project, tmp_path):
    (project / "jobs.py").write_text(JOBS)
    with (project / "mainstem.toml").open("a") as file:
        file.write('[jobs]\nbig.application = "heavy"\njob.application = "heavy"\n[sinks.lake]\ntype = "delta"\n')
    *_, common, heavy = specs_of(project, tmp_path)
    assert (common.name, "--job" in common.command, "--tables" in common.command) == ("spark", False, True)
    assert (heavy.name, "--tables" in heavy.command) == ("spark.heavy", False)


def test_a_version_that_is_asked_for_gets_a_driver_in_its_application(project, tmp_path):
    (project / "jobs.py").write_text(JOBS)
    specs, at = specs_of(project, tmp_path), Addresses("127.0.0.1:1", "127.0.0.1:2")
    write_fixed(tmp_path / "jobs" / "big@1", Fixed("big", "1", code_hash(project), {}, "c", 1, 4))
    with (project / "mainstem.toml").open("a") as file:
        file.write('[jobs.big]\napplication = "heavy"\n')
    reprocess(None, project, tmp_path, "big", anyway=True)
    (spec,) = missing_drivers(project, tmp_path, at, specs, master="local[2]")
    assert (spec.name, spec.behind) == (f"spark-{code_hash(project)[:8]}.heavy", "gateway")
    assert spec.command[-6:] == ("--application", "heavy", "--master", "local[2]", "--job", "big@2")
    assert missing_drivers(project, tmp_path, at, [*specs, spec]) == []


def test_settings_of_an_application_that_no_job_names_are_refused(project, tmp_path):
    with (project / "mainstem.toml").open("a") as file:
        file.write('[spark.applications.heavy]\nmaster = "spark://host:7077"\n')
    with pytest.raises(BadSetting, match=r"\[spark\.applications\.heavy\]: no job has application = 'heavy'"):
        up(project, tmp_path / "data")


def test_missing_jars_are_fetched_where_their_progress_is_seen(project, tmp_path, monkeypatch):
    """A driver on a slow line was ended after its 300 s to start, again and again."""
    with (project / "mainstem.toml").open("a") as file:
        file.write('[sinks.lake]\ntype = "delta"\n')

    def fetch():
        raise FetchFailed("here")

    monkeypatch.setattr("mainstem.standalone.up.spark_jars", fetch)
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FetchFailed, match="here"):
        up(project, tmp_path / "data")


def test_a_driver_that_is_started_again_has_the_code_it_was_started_with(project, tmp_path):
    """It once froze the project anew: after an edit and a crash, "0 jobs running", and nobody else ran them."""
    jobs = 'from mainstem.process import stream, topic\na = topic("a")\n@stream(to="b")\ndef job(a):\n    return a\n'
    (project / "jobs.py").write_text(jobs)
    with (project / "mainstem.toml").open("a") as file:
        file.write('[sinks.lake]\ntype = "delta"\n')
    at = Addresses("127.0.0.1:1", "127.0.0.1:2")
    *_, spark = child_specs(load_project(project), load_config(project, {}), tmp_path, at, own_log=False)
    assert spark.command[-5:] == ("--code", code_hash(project), "--job", "job@1", "--tables")
    write_fixed(tmp_path / "jobs" / "job@1", Fixed("job", "1", code_hash(project), {}, "b", 1, 4))
    (project / "jobs.py").write_text(jobs.replace("return a", "return a.distinct()"))
    *_, again = child_specs(load_project(project), load_config(project, {}), tmp_path, at, own_log=False)
    assert again.command == spark.command  # one driver, not a second one for the tables alone


def test_a_job_that_does_not_run_the_code_as_it_is_now_is_told(project, tmp_path, monkeypatch):
    """The old code ran, and nothing said so."""

    def refuse(*_, **__):
        raise BadSetting("nothing is started here")

    monkeypatch.setattr("mainstem.standalone.up.Supervisor", refuse)
    jobs = 'from mainstem.process import stream, topic\na = topic("a")\n@stream(to="b")\ndef job(a):\n    return a\n'
    (project / "jobs.py").write_text(jobs)
    data, news = tmp_path / "data", []
    data.mkdir()
    claim_directory(data)
    write_fixed(data / "jobs" / "job@1", Fixed("job", "1", code_hash(project), {}, "b", 1, 4))
    for returned in ("a", "a.distinct()"):
        (project / "jobs.py").write_text(jobs.replace("return a", f"return {returned}"))
        with pytest.raises(BadSetting, match="nothing is started"):
            up(project, data, listen="127.0.0.1:0", gateway="127.0.0.1:0", on_news=news.append)
    (line,) = news
    assert line.startswith("job job@1 goes on with its frozen code")
    assert "`mainstem job reprocess job` runs the edited code beside it, as version 2" in line
    (project / "jobs.py").write_text(jobs.replace("def job", "def other"))
    with pytest.raises(BadSetting, match="nothing is started"):
        up(project, data, listen="127.0.0.1:0", gateway="127.0.0.1:0", on_news=news.append)
    assert news[1].endswith("though the project has no such job; `mainstem job retire job 1` stops it for good")
    write_lock(data / "jobs" / "job@1")
    lock = data / "jobs" / "job@1" / LOCK_FILE
    lock.write_text(lock.read_text().replace(f'"msgspec": "{msgspec.__version__}"', '"msgspec": "0.1"'))
    with pytest.raises(BadSetting, match="nothing is started"):
        up(project, data, listen="127.0.0.1:0", gateway="127.0.0.1:0", on_news=news.append)
    assert f"first started with: msgspec {msgspec.__version__} for 0.1; install" in news[-1]


def test_what_processes_of_an_earlier_start_have_said_is_not_that_of_others_with_their_ids(
    project, tmp_path, monkeypatch
):
    """After a restart of its container, `status` could tell of jobs whose code did not run any more."""

    def refuse(*_, **__):
        raise BadSetting("nothing is started here")

    monkeypatch.setattr("mainstem.standalone.up.Supervisor", refuse)
    (tmp_path / "data").mkdir()
    claim_directory(tmp_path / "data")
    for pid, process in ((7, "connect"), (8, "spark-0123456789abcdef")):
        TasksWriter(tmp_path / "data", pid, process).save([TaskState("job old@1")])
    with pytest.raises(BadSetting, match="nothing is started"):
        up(project, tmp_path / "data", listen="127.0.0.1:0", gateway="127.0.0.1:0")
    assert load_tasks(tmp_path / "data", [7, 8], 0) == []


def test_another_log_than_before_is_refused(project, tmp_path, mainstem_log):
    """On a new Kafka each job, table and replica was refused by itself, or waited for a schema for ever."""
    data, kafka = tmp_path / "data", mainstem_log.bootstrap
    data.mkdir()
    claim_directory(data)
    bind_log(data, "own")
    addresses = {"listen": "127.0.0.1:0", "gateway": "127.0.0.1:0"}
    with pytest.raises(OtherLog, match=rf"expected the log own, .*, found none in {data / 'log'}$") as refused:
        up(project, data, **addresses)
    assert refused.value.hint.startswith("where it is a Kafka, --bootstrap HOST:PORT names it; or give --data a new")
    with pytest.raises(OtherLog, match=f"found {cluster_id(Connection(kafka))} at {kafka}$") as refused:
        up(project, data, bootstrap=kafka, **addresses)
    assert refused.value.hint.startswith("--bootstrap names it; or")
    (data / "log").mkdir()
    with pytest.raises(OtherLog) as refused:
        up(project, data, bootstrap=kafka, **addresses)
    assert refused.value.hint.startswith("without --bootstrap the project goes on with its own log; or")
    assert not (data / "logs").exists()  # nothing was started
    other = pytest.RaisesExc(OtherLog, match=rf"expected the log own, .*, found \S+ in {data / 'log'}$")
    with pytest.RaisesGroup(other, flatten_subgroups=True):
        up(project, data, **addresses)


def test_a_disk_that_fails_or_does_not_answer_holds_up_nothing(tmp_path, monkeypatch):
    """ESTALE of one lakehouse's disk ended the node; a hung one stopped its supervisor."""
    answer, asked = threading.Event(), []

    def usage(directory):
        asked.append(str(directory))
        if directory.name == "hung":
            answer.wait(60)
        if directory.name == "stale":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return namedtuple("usage", "total free")(500 * GIB, 4 * GIB)

    monkeypatch.setattr(disks.shutil, "disk_usage", usage)
    monkeypatch.setattr("mainstem.standalone.up.DISKS_EVERY_S", 0.01)
    for name in ("hung", "stale", "full"):
        (tmp_path / name).mkdir()

    async def run():
        told = asyncio.Queue()
        async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
            alarm = DiskAlarm()
            watched = [
                tasks.create_task(watch_disk(alarm, tmp_path / name, told.put_nowait))
                for name in ("hung", "stale", "full")
            ]
            line = await told.get()
            while asked.count(str(tmp_path / "stale")) < 3:
                await asyncio.sleep(0.01)
            for each in watched:
                each.cancel()
        return line

    try:
        assert asyncio.run(run()).startswith(f"disk: 4.0 GiB of 500.0 GiB are free at {tmp_path / 'full'}")
    finally:
        answer.set()
    assert asked.count(str(tmp_path / "hung")) == 1


def test_a_version_that_a_killed_command_has_marked_is_ended_while_the_project_runs(tmp_path):
    """Its readers meant a version that nothing runs, until the project was started again."""
    marks = Marks(tmp_path)
    (tmp_path / "jobs" / "unfinished@1").mkdir(parents=True)
    (tmp_path / "jobs" / "unfinished@1" / "retired").touch()

    async def run():
        async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow_marks(marks, connection))
            while current_versions(read_catalog(connection))["unfinished"] != "2":
                await asyncio.sleep(0.01)
            following.cancel()

    with embedded() as log:
        connection = Connection(log.bootstrap)
        ensure_internal_topics(connection)
        versions = {"1": {}, "2": {}}
        write_catalog(connection, {"job:unfinished": {"versions": versions, "current": "1"}})
        asyncio.run(run())


def test_port_0_becomes_a_free_port(project):
    at = choose_addresses(load_config(project, {}), None, "127.0.0.1:0", "127.0.0.1:0")
    assert not at.bootstrap.endswith(":0")
    assert at.gateway_url.startswith("http://127.0.0.1:")
    assert choose_addresses(load_config(project, {}), None, "[::1]:9092", None).bootstrap == "[::1]:9092"
    assert choose_addresses(load_config(project, {}), "kafka:9092", None, None).bootstrap == "kafka:9092"


def test_an_address_that_is_none_is_refused(project):
    with pytest.raises(BadSetting, match=r"^--listen: expected HOST:PORT, found 'here'"):
        choose_addresses(load_config(project, {}), None, "here", None)
    with pytest.raises(BadSetting, match=r"^--gateway: expected HOST:PORT, found '::1:0'"):
        choose_addresses(load_config(project, {}), None, None, "::1:0")
    with pytest.raises(
        BadSetting, match=r"^MAINSTEM_GATEWAY__LISTEN: \[gateway\]: listen: expected HOST:PORT, found 'there'"
    ):
        choose_addresses(load_config(project, {"MAINSTEM_GATEWAY__LISTEN": "there"}), None, None, None)
    with pytest.raises(BadSetting, match=r"^--listen: no\.such\.host\.invalid:0: "):
        choose_addresses(load_config(project, {}), None, "no.such.host.invalid:0", None)


def test_a_project_goes_on_where_it_was_after_every_kind_of_end(project, tmp_path):
    """Lines of a file arrive once, over kill -9 of each process in turn, of the supervisor, and over a stop."""
    data, log_file = tmp_path / "data", project / "access.log"
    wanted = []

    def write(count):
        with log_file.open("a") as file:
            for _ in range(count):
                wanted.append(f"line {len(wanted)}")
                file.write(wanted[-1] + "\n")

    with Node(project, data) as node:
        write(100)
        wait_for(lambda: node.lines_of("lines") == wanted)
        for name in ("log", "gateway", "connect"):
            pid = node.child(name)["pid"]
            os.kill(pid, signal.SIGKILL)
            write(50)
            wait_for(lambda name=name, pid=pid: node.runs(name) and node.child(name)["pid"] != pid)
            wait_for(lambda: node.lines_of("lines") == wanted)
        marker = json.loads((data / "mainstem.json").read_text())
        assert (marker["project"], marker["name"]) == (str(project), "small")
        assert marker["log"] == cluster_id(Connection(node.state["bootstrap"]))
        assert node.post("orders/events", [{"number": 1, "amount": 2.5}])["results"][0]["status"] == "accepted"

        command = [sys.executable, "-m", "mainstem", "up", str(project), "--data", str(data)]
        assert not any(line.startswith("{") for line in node.lines), node.lines  # what ended is told once, in words
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert second.returncode == 2
        assert f"{data}: in use by process {node.process.pid}" in second.stderr

        children = [child["pid"] for child in node.state["children"]]
        node.process.kill()
        node.process.wait()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    write(50)
    with Node(project, data) as node:
        wait_for(lambda: node.lines_of("lines") == wanted)
        node.stop()
    with (project / "mainstem.toml").open("a") as file:
        file.write('[topics.orders.config]\n"retention.ms" = "86400000"\n')
        file.write('[topics.loose.config]\n"flush.messages" = "1000"\n')
    with Node(project, data) as node:
        assert node.lines_of("lines") == wanted
        wait_for(
            lambda: any("topic orders was made with retention.ms = -1, and keeps it" in line for line in node.lines)
        )
        wait_for(lambda: any("topic loose has flush.messages = 1000: its records" in line for line in node.lines))
        node.stop()


JOBS_THAT_IMPORT_LATE = """
from mainstem.process import stream, topic
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

orders = topic("orders")


@F.udf(StringType())
def in_worker(number):
    from of_worker import WHAT

    return WHAT


@stream(to="out")
def out(orders):
    from of_driver import WHAT, by_name

    said = {"driver": F.lit(WHAT), "worker": in_worker("number"), "by_name": by_name("number")}
    return orders.select("number", *(column.alias(name) for name, column in said.items()))
"""
OF_DRIVER = """
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

WHAT = "frozen"


@F.udf(StringType())
def by_name(number):
    return WHAT
"""


@pytest.mark.spark
def test_frozen_code_imports_its_frozen_copy_at_any_time_in_the_driver_and_in_sparks_workers(project, tmp_path):
    """What a function imported was the project as somebody edited it, where `up` was called in it; else nothing.

    And a `token.py` in it ended every process at its start: Python's own was not found.
    """
    settings = (project / "mainstem.toml").read_text()
    (project / "mainstem.toml").write_text(settings.replace('schema = "orders.avsc"\n', ""))
    (project / "jobs.py").write_text(JOBS_THAT_IMPORT_LATE)
    (project / "of_driver.py").write_text(OF_DRIVER)
    (project / "of_worker.py").write_text('WHAT = "frozen"\n')
    for name in ("token", "calendar", "queue"):
        (project / f"{name}.py").write_text("raise RuntimeError('this is no module of Python')\n")
    with Node(project, tmp_path / "data", directory=project) as node:
        for name in ("of_driver", "of_worker"):  # the job waits for a schema, and has not called its function
            path = project / f"{name}.py"
            path.write_text(path.read_text().replace("frozen", "edited"))
        Registry(node.state["gateway"]).register("orders-value", (project / "orders.avsc").read_text())
        assert node.post("orders/events", [{"number": 1, "amount": 2.5}])["results"][0]["status"] == "accepted"
        wait_for(lambda: "out" in list_topics(Connection(node.state["bootstrap"])) and node.values_of("out"))
        assert node.values_of("out") == [{"number": 1, **dict.fromkeys(("driver", "worker", "by_name"), "frozen")}]
        node.stop()


def test_what_a_refusal_over_a_topic_names_can_be_done(project, tmp_path):
    """The log ends with `up`, so `topic delete` found none; and the directory that was to be cleaned was another."""
    data = tmp_path / "data"
    with Node(project, data) as node:
        address = node.state["bootstrap"]
        node.stop()
    settings = (project / "mainstem.toml").read_text()
    (project / "mainstem.toml").write_text(settings.replace("partitions = 2", "partitions = 3"))
    line = mainstem("up", project, "--data", data, "--listen", address, "--gateway", "127.0.0.1:0").stderr
    assert "topic orders: expected 3 partitions, found 2" in line
    delete, start, clean = (shlex.split(text) for text in re.findall("`mainstem (.*?)`", line))
    with subprocess.Popen([sys.executable, "-m", "mainstem", *start], stdout=subprocess.PIPE, text=True) as log:
        try:
            assert log.stdout.readline() == f"listening on {address}\n"
            assert mainstem(*delete, "--yes").stdout == "topic orders: deleted\n"
        finally:
            log.terminate()
    with Node(project, data) as node:
        assert node.post("orders/events", [{"number": 1, "amount": 2.5}])["results"][0]["status"] == "accepted"
        node.stop()
    assert mainstem(*clean, "--yes").stdout == f"{data}: deleted\n"


def test_all_of_it_ends_with_the_program_that_started_it(project, tmp_path):
    start = (
        "import os, sys; from mainstem.core.process import PARENT, start_child\n"
        "start_child(sys.argv[1:], env={**os.environ, PARENT: str(os.getpid())}).wait()"
    )
    command = [sys.executable, "-c", start, sys.executable, "-m", "mainstem", "up", str(project)]
    command += ["--data", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--gateway", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        for line in program.stdout:
            if " up: log " in line:
                break
        state = load(tmp_path / "d")
        program.kill()
    pids = [state.pid, *(child.pid for child in state.children)]
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_source_that_waits_and_one_that_failed_are_seen(project, tmp_path):
    with (project / "mainstem.toml").open("a") as file:
        file.write('[sources.shop]\ntype = "postgres"\nurl = "postgresql://me:s3cret@127.0.0.1:1/shop"\n')
        file.write('[sources.lost]\ntype = "file"\npath = "x.log"\ntopic = "orders"\n')
    data = tmp_path / "data"
    with Node(project, data) as node:
        waits, failed = "source shop waits: ", "source lost failed: "
        wait_for(lambda: all(any(word in line for line in node.lines) for word in (waits, failed)))
        told = "".join(node.lines)
        (line,) = [line for line in node.lines if waits in line]
        (shown,) = re.findall("`mainstem (status .*)` shows what runs", told)  # the command that `up` names works
        done = mainstem(*shlex.split(shown), "--json")
        tasks = {task["name"]: task["state"] for task in json.loads(done.stdout)["tasks"]}
        people = mainstem(*shlex.split(shown))
        node.stop()
    assert tasks == {"source access": "idle", "source lost": "failed", "source shop": "waiting"}
    assert re.fullmatch(
        r" +[\d.]+ s  source shop waits: connect to PostgreSQL: connection to server at \"127\.0\.0\.1\", port 1 failed: "
        r"Connection refused \(start the database, or correct `url` in the settings\)(; retry in [\d.]+ s)?\n",
        line,
    )
    assert (done.returncode, people.returncode) == (1, 1)
    assert "does not take" in people.stdout
    assert "s3cret" not in told + done.stdout + people.stdout + (data / "connect.json").read_text()


def test_a_serving_node_that_is_killed_again_and_again_answers_and_is_seen(project, tmp_path):
    address, data = f"127.0.0.1:{free_port()}", tmp_path / "data"
    with (project / "mainstem.toml").open("a") as settings:
        views = ('views.all = { kind = "sql", topics = "orders" }', 'views.later = { kind = "sql", topics = "later" }')
        settings.write("\n".join(("[serve.answers]", f'listen = "{address}"', *views, "")))

    def status():
        done = mainstem("status", "--data", data, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    with Node(project, data) as node:
        url = f"{node.state['gateway']}/v1/topics/orders/events"
        for number in range(1, 4):
            posted = httpx.post(url, json=[{"number": number, "amount": 1.5}])
            answer = httpx.post(
                f"http://{address}/views/all/query?timeout=60",
                json={"sql": "SELECT number FROM orders ORDER BY 1"},
                headers={"Mainstem-Basis": posted.headers["Mainstem-Basis"]},
                timeout=90,
            )
            assert answer.json()["rows"] == [[each] for each in range(1, number + 1)]
            pid = node.child("serve-answers")["pid"]
            os.kill(pid, signal.SIGKILL)
            wait_for(
                lambda pid=pid: node.child("serve-answers")["pid"] not in (pid, None) and node.runs("serve-answers")
            )
        wait_for(lambda: {each["view"]: each["lag"] for each in status()["views"]} == {"all": 0, "later": 0})
        found = status()
        (process,) = [each for each in found["node"]["children"] if each["name"] == "serve-answers"]
        assert process["restarts"] == 3
        told = {each["view"]: (each["rows"], each["state"], each["why"]) for each in found["views"]}
        assert told["all"] == (3, "running", "")
        assert told["later"][1:] == ("idle", "topic later is not in the catalog yet: nothing has written it")
        node.stop()


def test_it_goes_on_when_nobody_reads_what_it_says(project, tmp_path):
    """`mainstem up PROJECT | head -2`"""
    command = [sys.executable, "-m", "mainstem", "up", str(project), "--data", str(tmp_path / "d")]
    command += ["--listen", "127.0.0.1:0", "--gateway", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            process.stdout.readline()
            process.stdout.close()

            def all_run():
                assert process.poll() is None, process.stderr.read()
                state = load(tmp_path / "d")
                return state and [child.state for child in state.children] == ["running"] * 3

            wait_for(all_run)
            process.send_signal(signal.SIGINT)
            assert (process.wait(60), process.stderr.read()) == (0, "")
            assert load(tmp_path / "d").options == command[-4:]  # how it is started again
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("option", "mended_by"),
    [
        ("--listen", ": port of [broker], or --listen"),
        ("--gateway", ": --gateway, or [gateway] listen"),
        (None, ": --gateway, or [gateway] listen"),  # it is the setting's
    ],
)
def test_a_port_in_use_is_one_line_and_exit_2(project, tmp_path, option, mended_by):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = {"--listen": "127.0.0.1:0"}
        if option is not None:
            options[option] = address
        else:
            with (project / "mainstem.toml").open("a") as file:
                file.write(f'[gateway]\nlisten = "{address}"\n')
        done = mainstem("up", project, "--data", tmp_path / "d", *[text for each in options.items() for text in each])
    line = the_line(done)
    assert address in line
    assert "in use" in line
    assert mended_by in line
