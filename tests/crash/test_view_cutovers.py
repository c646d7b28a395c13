"""A node is killed before and after each step of a cutover: its views have moved all, or none, and the next start
finishes what is left.
"""

import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import httpx
import msgspec
import pytest

from mainstem import embedded
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_internal_topics
from mainstem.registry.client import Registry
from tests.serve.fleet import Fleet, header
from tests.serve.played import PlayedJob, cutover
from tests.support import processes
from tests.support.live import running_registry
from tests.support.waiting import wait_until

STEPS = {
    "mainstem.serve.builds": ["save", "Builds._written", "shutil.rmtree"],
    "mainstem.serve.build": ["Build.overtake", "Build.drop"],
    "mainstem.serve.engines": ["Engine.open"],
    "mainstem.core.files": ["Path.rename"],
}
MORE = {
    "mainstem.serve.builds": ["Builds.learn", "Builds._look", "Builds._start", "Builds._write", "Builds._count"],
    "mainstem.serve.build": ["Build.see", "Build.take_over"],
    "mainstem.serve.key_value": ["KeyValueIndex.apply"],
    "mainstem.serve.search": ["SearchIndex.commit"],
    "mainstem.serve.sql_process": ["SqlProcess.apply"],
    "mainstem.core.files": ["os.fsync", "sync_directory"],
}
NODE = """
import importlib, os, signal, sys
from functools import reduce
from pathlib import Path
import msgspec
from mainstem.client.connection import Connection
from mainstem.core.config import convert
from mainstem.serve.config import ServeConfig
from mainstem.serve.server import run

bootstrap, directory, settings, armed, module, step, when = sys.argv[1:]
*path, name = step.split(".")
holder = reduce(getattr, path, importlib.import_module(module))
real = getattr(holder, name)

def killed(*given, **named):
    kill = Path(armed).exists()
    if not kill or when == "after":
        result = real(*given, **named)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(holder, name, killed)
run("n", convert(msgspec.json.decode(settings), ServeConfig, where="test"), "127.0.0.1:0", Connection(bootstrap),
    Path(directory), on_ready=lambda at: print(at, flush=True))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A job with three versions that are ready, and what a node has left that moved from the first to the second."""
    with embedded() as log:
        connection = Connection(log.bootstrap)
        ensure_internal_topics(connection)
        with running_registry(connection) as url:
            fleet = Fleet(connection, Registry(url))
            job = PlayedJob(fleet, Registry(url))
            job.write("N1", 1)
            for version in "123":
                job.start(version)
                job.run(version, ("N1", int(version)))
            views = {
                "seats": {"kind": "key-value", "topics": job.name},
                "words": {"kind": "search", "topics": job.name},
                "both": {"kind": "sql", "topics": [job.name, fleet.planes]},
            }
            left = tmp_path_factory.mktemp("left") / "n"
            with fleet.node(left, **views) as http:
                assert versions(http, None, job) == ["v1"] * 3
                assert versions(http, cutover(fleet, (job, "2")), job) == ["v2"] * 3
            yield SimpleNamespace(fleet=fleet, job=job, views=views, left=left)


def versions(http, token, job):
    """By which versions the views answer."""
    headers = header(token) if token else {}
    row = http.get("/views/seats/row?tailnum=N1&timeout=60", headers=headers).json()["row"]
    hits = http.get("/views/words/search?q=tailnum:N1&timeout=60", headers=headers).json()["hits"]
    query = {"sql": f"SELECT manufacturer FROM {job.name.replace('-', '_')}"}
    ((made,),) = http.post("/views/both/query?timeout=60", json=query, headers=headers).json()["rows"]
    return [row["manufacturer"], hits[0]["row"]["manufacturer"], made]


def each_of(steps):
    return [(module, step) for module, names in steps.items() for step in names]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("module", "step"), each_of(STEPS))
def test_all_views_have_moved_or_none(world, tmp_path, module, step, when):
    kill_and_finish(world, tmp_path, module, step, when)


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("module", "step"), each_of(MORE))
def test_all_views_have_moved_or_none_at_more_steps(world, tmp_path, module, step, when):
    kill_and_finish(world, tmp_path, module, step, when)


def kill_and_finish(world, tmp_path, module, step, when):
    fleet, job, directory, armed = world.fleet, world.job, tmp_path / "n", tmp_path / "armed"
    cutover(fleet, (job, "1"))
    cutover(fleet, (job, "2"))
    shutil.copytree(world.left, directory)
    settings = msgspec.json.encode(fleet.config(**world.views)).decode()
    command = [sys.executable, "-c", NODE, fleet.connection.bootstrap, str(directory), settings, str(armed)]
    process = processes.start([*command, module, step, when], stdout=subprocess.PIPE, text=True)
    try:
        with httpx.Client(base_url=f"http://{process.stdout.readline().strip()}", timeout=60) as http:
            assert versions(http, None, job) == ["v2"] * 3
        armed.touch()
        moved = cutover(fleet, (job, "3"))
        assert process.wait(60) == -signal.SIGKILL
    finally:
        processes.stop(process)
        process.stdout.close()
    saved = msgspec.json.decode((directory / "current.json").read_bytes())["views"]
    assert {view[0]["directory"].strip("+")[-2:] for view in saved.values()} in ({"@2"}, {"@3"})
    with fleet.node(directory, **world.views) as http:
        assert set(versions(http, None, job)) <= {"v2", "v3"}
        assert versions(http, moved, job) == ["v3"] * 3
        assert http.get("/views/seats/row?tailnum=N1&version=2").json()["row"]["manufacturer"] == "v2"
        expected = {f"{view}{label}" for view, label in (("seats", "@{}"), ("words", "@{}"), ("both", "@{}+"))}
        expected = {each.format(version) for each in expected for version in "23"}
        wait_until(
            lambda: {each.name for each in (directory / "views").iterdir()} == expected, "version 1's are removed"
        )
