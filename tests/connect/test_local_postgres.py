"""A server started by this user, root or not, keeps its address and its data over a stop and a crash."""

import os
import shutil
import subprocess
import sys

import psycopg2
import pytest

from mainstem.connect import local_postgres
from mainstem.connect.local_postgres import LocalPostgres
from tests.support.node import wait_for
from tests.support.processes import alive


def run(dsn: str, statement: str):
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def check_server(directory):
    with LocalPostgres(directory, settings={"fsync": "off"}) as server:
        address = server.create_database("shop")
        assert server.create_database("shop") == address
        run(address, "CREATE TABLE kept (a int)")
        assert run(address, "SHOW wal_level") == [("logical",)]
        server.kill()
        assert server.pid is None
        server.start()
        assert run(address, "SELECT * FROM kept") == []
        taken_over = LocalPostgres(directory).start()
        assert taken_over.pid == server.pid
    assert server.pid is None


def test_a_server_survives_a_crash_and_is_taken_over_by_the_next_program(tmp_path):
    check_server(tmp_path / "pg")


def test_without_namespaces_root_becomes_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(local_postgres, "NAMESPACE", ("false",))
    check_server(tmp_path / "pg")
    shutil.rmtree((tmp_path / "pg" / "data").resolve().parent if os.geteuid() == 0 else tmp_path / "pg")


START = """
import sys
from pathlib import Path
from mainstem.connect import local_postgres
local_postgres.NAMESPACE = tuple(sys.argv[2:]) or local_postgres.NAMESPACE
server = local_postgres.LocalPostgres(Path(sys.argv[1])).start()
print(server.pid, flush=True)
input()
"""


@pytest.mark.parametrize("namespace", [(), ("false",)], ids=["this user", "nobody"])
def test_a_server_shuts_down_when_the_program_that_started_it_is_killed(tmp_path, namespace):
    command = [sys.executable, "-c", START, str(tmp_path / "pg"), *namespace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        pid = int(program.stdout.readline())
        program.kill()
    wait_for(lambda: not alive(pid))
    assert (tmp_path / "pg" / "postgres.log").read_text().rstrip().endswith("database system is shut down")
    shutil.rmtree((tmp_path / "pg" / "data").resolve().parent)


def test_a_server_that_cannot_start_says_why(tmp_path):
    with pytest.raises(local_postgres.PostgresDidNotStart, match="no_such_setting"):
        LocalPostgres(tmp_path / "pg", settings={"no_such_setting": "1"}).start()
