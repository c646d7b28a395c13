"""`job cutover`, killed before and after each of its steps: the record is there or not, and nothing is left over."""

import signal
import subprocess
import sys
from typing import Any

import pytest

from mainstem import embedded
from mainstem.client.catalog import current_versions, read_catalog
from mainstem.client.compacted import read_state
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG
from mainstem.process.cutover import cutover, revert
from tests.support.versions import write_read, write_versions

STEPS = [
    f"mainstem.process.cutover:{step}"
    for step in ("look", "check_target", "Pin", "wait_until_read", "hold_catalog", "change_catalog")
]
STEPS += [
    "mainstem.client.transaction:SharedTransaction.fence",
    "mainstem.client.catalog_changes:read_catalog",
    "mainstem.process.cutover:_check_still",
    "mainstem.process.cutover:with_cutover",
    "mainstem.client.transaction:SharedTransaction.begin",
    "mainstem.client.transaction:TransactionWriter.finish",
]
STEPS += [COMMIT := "mainstem.client.transaction:SharedTransaction.commit", "mainstem.process.cutover:cluster_id"]
COMMAND = """
import os, pkgutil, signal, sys
from pathlib import Path
from mainstem.client.connection import Connection
from mainstem.process.cutover import cutover

_, bootstrap, data, step, when = sys.argv
real, (owner, _, name) = pkgutil.resolve_name(step), step.replace(":", ".").rpartition(".")

def killed(*given, **named):
    if when == "after":
        real(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(pkgutil.resolve_name(owner), name, killed)
cutover(Connection(bootstrap), Path(data), {"one": "2", "two": "2"})
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
    is_whole = (step, when) == ("mainstem.process.cutover:change_catalog", "after")
    written = is_whole or STEPS.index(step) > STEPS.index(COMMIT) or (step, when) == (COMMIT, "after")
    both = {"one": "2" if written else "1", "two": "2" if written else "1"}
    # What was left open is not waited for: the broker ends it after seconds, or who changes the catalog next.
    assert current_versions(read_state(connection, CATALOG, dict[str, Any], decided=True)) == both
    if not written:  # nothing is in the way of the next command
        cutover(connection, tmp_path, {"one": "2", "two": "2"})
    revert(connection, tmp_path, ["one", "two"])
    assert current_versions(read_catalog(connection)) == {"one": "1", "two": "1"}
