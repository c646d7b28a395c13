"""A server started by this user, root or not, keeps its address and its data over a stop and a crash."""

import os
import shutil

import psycopg2
import pytest

from mainstem.connect import local_postgres
from mainstem.connect.local_postgres import LocalPostgres


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


def test_a_server_that_cannot_start_says_why(tmp_path):
    with pytest.raises(local_postgres.PostgresDidNotStart, match="no_such_setting"):
        LocalPostgres(tmp_path / "pg", settings={"no_such_setting": "1"}).start()
