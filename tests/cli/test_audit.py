import json

from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.client.catalog import write_catalog
from mainstem.client.connection import Connection
from mainstem.client.reports import Report, write_reports
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.client.writer import TransactionalWriter
from tests.support.commands import mainstem


def test_books_that_do_not_balance_are_exit_1(cli_log):
    connection = Connection(cli_log)
    ensure_internal_topics(connection)
    ensure_topic(connection, "orders", 1)
    good = CliRunner().invoke(group, ["audit", "--bootstrap", cli_log])
    assert (good.exit_code, "the books balance" in good.stdout) == (0, True)
    writer = TransactionalWriter(connection, "shop")
    writer.open()
    writer.begin()
    writer.send("orders", None, b"1", b"v")
    writer.commit({})
    writer.close()
    write_catalog(connection, {"sink:search": {"topics": ["orders"]}})
    behind = mainstem("audit", "--bootstrap", cli_log)
    assert behind.returncode == 0
    assert "3 comparisons (2 balanced, 1 in flight): nothing is wrong so far" in behind.stdout
    assert mainstem("audit", "--complete", "--bootstrap", cli_log).returncode == 1
    write_catalog(connection, {"sink:search": None})
    write_reports(connection, [Report(reader="table", topic="orders", partition=0, end=0, rows=1)])
    bad = mainstem("audit", "orders", "--json", "--bootstrap", cli_log)
    assert bad.returncode == 1
    assert [line["verdict"] for line in json.loads(bad.stdout)] == ["balanced", "balanced", "WRONG"]
