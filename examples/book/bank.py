"""A bank: the log of its credits and debits, and the balances, which are the same thing as a table."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from mainstem.process import stream, table, topic

transactions = topic("bank.transactions", key="account", event_time="at")


@table(to="bank.balances", key="account", watermark=("at", "1 day"), emit="changes")
def balances(transactions: DataFrame) -> str:
    """The balances as of now, folded from all transactions: the last row of each account counts."""
    return """
        SELECT account, sum(CASE kind WHEN 'credit' THEN cents ELSE -cents END) AS balance_cents
        FROM transactions
        GROUP BY account
    """


class Ledger(StatefulProcessor):
    """Adds up the transactions of an account in the order of the log, which is not the order of a group's rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._balance = handle.getValueState("balance", "cents long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        (balance,) = self._balance.get() or (0,)
        for row in sorted(rows, key=lambda row: row["_position"]["offset"]):
            balance += row["change_cents"]
            told = {name: row[name] for name in ("account", "change_cents", "at", "_position")}
            yield Row(**told, balance_cents=balance, as_of=row["_position"]["offset"])
        self._balance.update((balance,))

    def close(self) -> None:
        pass


@stream(to="bank.entries", key="account", watermark=("at", "1 day"))
def entries(transactions: DataFrame) -> DataFrame:
    """Each transaction with the balance after it, in the order of the log: of all entries up to any position, the last
    one of each account is its balance as of then.
    """
    change = F.when(F.col("kind") == "credit", F.col("cents")).otherwise(-F.col("cents"))
    return (
        transactions.withColumn("change_cents", change)
        .groupBy("account")
        .transformWithState(
            statefulProcessor=Ledger(),
            outputStructType="account string, change_cents long, balance_cents long, at timestamp, as_of long,"
            " _position struct<partition: int, offset: long, timestamp: timestamp>",
            outputMode="Append",
            timeMode="None",
        )
    )
