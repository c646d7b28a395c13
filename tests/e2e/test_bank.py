"""A bank's balances as of any position: transactions are posted, a job enters them, and a view is asked, while the node
is killed and its index is lost.
"""

import os
import random
import shutil
import signal
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from mainstem.client.connection import Connection
from mainstem.registry.reader import TypedReader
from tests.support.node import Node, wait_for
from tests.support.ports import free_port

BOOK = Path(__file__).parents[2] / "examples" / "book"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ACCOUNTS = "abc"
BATCHES = [(0, 1), (1, 20), (20, 60)]


def some_transactions():
    """In the order of the log, which is not that of their times."""
    chance = random.Random(11)
    return [
        {
            "account": chance.choice(ACCOUNTS),
            "kind": chance.choice(["credit", "debit"]),
            "cents": chance.randrange(1, 1000),
            "at": (NOON + timedelta(minutes=number, days=chance.choice([0, 0, -900]))).isoformat(),
        }
        for number in range(BATCHES[-1][1])
    ]


def clerk(transactions):
    """Account -> balance, added up by hand."""
    balances = {}
    for each in transactions:
        change = each["cents"] if each["kind"] == "credit" else -each["cents"]
        balances[each["account"]] = balances.get(each["account"], 0) + change
    return balances


def balances_in(rows):
    return {account: row["balance_cents"] for account, row in rows.items()}


class Views:
    """What the node at `address` answers; `options` and `token` as its interface has them."""

    def __init__(self, address):
        self._client = httpx.Client(base_url=f"http://{address}", timeout=180)

    def close(self):
        self._client.close()

    def rows(self, view, *, token="", **options):
        """Account -> row, of what is there."""
        found = {}
        for account in ACCOUNTS:
            asked = {"account": account, "timeout": 120} | options
            answer = self._client.get(f"/views/{view}/row", params=asked, headers=basis(token))
            assert answer.status_code in (200, 404), answer.text
            if answer.status_code == 200:
                found[account] = answer.json()["row"]
        return found

    def history(self, position, *, token=""):
        """Account -> balance of the transactions before a position."""
        sql = "SELECT account, arg_max(balance_cents, as_of) FROM bank_entries WHERE as_of < ? GROUP BY account"
        asked = {"sql": sql, "parameters": [position]}
        answer = self._client.post("/views/history/query", params={"timeout": 120}, json=asked, headers=basis(token))
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["rows"])

    def ready(self):
        try:
            return self._client.get("/health").status_code == 200
        except httpx.TransportError:  # the node starts
            return False


def records_of(node, topic):
    """Offset -> row."""
    with TypedReader(Connection(node.state["bootstrap"]), topic) as reader:
        return {each.offset: each.value for each in reader}


def basis(token):
    return {"Mainstem-Basis": token} if token else {}


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_balances_are_known_as_of_any_position(tmp_path):
    project, data, address = tmp_path / "book", tmp_path / "data", f"127.0.0.1:{free_port()}"
    shutil.copytree(BOOK, project, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    settings = (project / "mainstem.toml").read_text()
    settings = settings.replace("[serve.branch]", f'[serve.branch]\nlisten = "{address}"')
    (project / "mainstem.toml").write_text(
        settings.replace('["page_views.py", "newsfeed.py", "bank.py", "census.py", "patterns.py"]', '"bank.py"')
    )
    transactions = some_transactions()
    with closing(Views(address)) as views, Node(project, data) as node:
        for start, end in BATCHES:
            token = node.post("bank.transactions/events", transactions[start:end])["token"]
            assert balances_in(views.rows("balances", token=token)) == clerk(transactions[:end])
            assert balances_in(views.rows("entries", token=token)) == clerk(transactions[:end])
            assert views.history(1_000, token=token) == clerk(transactions[:end])

        posted = dict(
            zip(records_of(node, "bank.transactions"), transactions, strict=True)
        )  # markers have offsets, too
        entered = {offset: row["as_of"] for offset, row in records_of(node, "bank.entries").items()}
        assert sorted(entered.values()) == [*posted]

        def check():
            for position in range(max(posted) + 2):
                before = [each for offset, each in posted.items() if offset < position]
                assert views.history(position) == clerk(before), position
            for position in range(max(entered) + 2):
                before = [posted[number] for offset, number in entered.items() if offset < position]
                assert balances_in(views.rows("entries", at=f"0:{position}")) == clerk(before), position

        check()
        os.kill(node.child("serve-branch")["pid"], signal.SIGKILL)
        wait_for(views.ready)
        check()
        node.stop()
