"""`job cutover`, killed before and after each of its steps: the record is there or not, and nothing is left over."""

import signal
import subprocess
import sys

import pytest

from mainstem import embedded
from mainstem.client.catalog import current_versions, read_catalog
from mainstem.client.connection import Connection
from mainstem.process.cutover import cutover, revert
from tests.support.versions import write_read, write_versions

STEPS = [
    "look",
    "check_target",
    "Pin",
    "wait_until_read",
    "hold_catalog",
    "read_catalog",
    "_check_still",
    "with_cutover",
]
STEPS += ["write_catalog", "cluster_id"]
COMMAND = """
import os, signal, sys
from pathlib import Path
from mainstem.client.connection import Connection
from mainstem.process import cutover as module

_, bootstrap, data, step, when = sys.argv
real = getattr(module, step)

def killed(*given, **named):
    if when == "after":
        real(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(module, step, killed)
module.cutover(Connection(bootstrap), Path(data), {"one": "2", "two": "2"})
"""


@pytest.fixture(scope="module")
def connection():
    with embedded() as log:
        connection = Connection(log.bootstrap)
        for job in ("one", "two"):
            write_versions(connection, job)
            for version in "12":
                write_read(connection, job, version, 5)
        yield connection


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_cutover_is_done_as_a_whole_or_not_at_all(connection, tmp_path, step, when):
    command = [sys.executable, "-c", COMMAND, connection.bootstrap, str(tmp_path), step, when]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    written = STEPS.index(step) > STEPS.index("write_catalog") or (step, when) == ("write_catalog", "after")
    both = {"one": "2" if written else "1", "two": "2" if written else "1"}
    assert current_versions(read_catalog(connection)) == both
    if not written:  # nothing is in the way of the next command
        cutover(connection, tmp_path, {"one": "2", "two": "2"})
    revert(connection, tmp_path, ["one", "two"])
    assert current_versions(read_catalog(connection)) == {"one": "1", "two": "1"}
