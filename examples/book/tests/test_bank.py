"""A bank: the log and the table say the same, as of any position."""

import random
from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BATCHES = [(0, 1), (1, 20), (20, 40)]


def some_transactions():
    """In the order of the log, which is not that of their times: some are years old when they are entered."""
    chance = random.Random(7)
    return [
        {
            "account": chance.choice("abc"),
            "kind": chance.choice(["credit", "debit"]),
            "cents": chance.randrange(1, 1000),
            "at": NOON + timedelta(minutes=number, days=chance.choice([0, 0, -900])),
        }
        for number in range(40)
    ]


def balances_of(transactions):
    """What a clerk adds up."""
    found = {}
    for each in transactions:
        sign = {"credit": 1, "debit": -1}[each["kind"]]
        found[each["account"]] = found.get(each["account"], 0) + sign * each["cents"]
    return found


def last_of_each(rows):
    return {row["account"]: row["balance_cents"] for row in rows}


def test_entries_up_to_a_position_are_the_balances_as_of_it(mainstem_jobs):
    transactions = some_transactions()
    with mainstem_jobs.start("entries") as job:
        entries = [row for start, end in BATCHES for row in job.feed(transactions=transactions[start:end])]
        assert job.late == []
    entries.sort(key=lambda row: row["as_of"])
    assert [row["as_of"] for row in entries] == [*range(40)]
    for position in range(40):
        told = [row for row in entries if row["as_of"] <= position]
        assert last_of_each(told) == balances_of(transactions[: position + 1])


def test_balances_are_those_of_all_transactions(mainstem_jobs):
    transactions, table = some_transactions(), {}
    with mainstem_jobs.start("balances") as job:
        for start, end in BATCHES:
            table |= last_of_each(job.feed(transactions=transactions[start:end]))
            assert table == balances_of(transactions[:end])
        assert job.late == []
