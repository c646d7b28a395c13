"""What each query has to give, by DuckDB over the generator's own columns: nothing of the log or an engine is in it.

Rows are compared as a bag: each as often as it is expected, in any order. Of q18, whose rows replace each other, only
the last row of each key counts.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from bench.nexmark.events import WINDOW_MS, Events, side_rows

QUERIES = {
    "q1": 'SELECT auction, bidder, price * 0.908::DOUBLE AS price, "at" FROM bid',
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q5": f"""
        SELECT auction, "at" // {WINDOW_MS} * {WINDOW_MS} AS start, count(*) AS bids
        FROM bid WHERE "at" < $closing GROUP BY ALL
    """,
    "q8": f"""
        SELECT person, 'person ' || person AS name, auction,
            person."at" // {WINDOW_MS} * {WINDOW_MS} AS start
        FROM person JOIN auction ON person = seller AND person."at" // {WINDOW_MS} = auction."at" // {WINDOW_MS}
        WHERE person."at" < $closing
    """,
    "q11": f"""
        WITH begun AS (
            SELECT bidder, "at", ("at" - lag("at") OVER one > {WINDOW_MS}) IS NOT FALSE AS begins
            FROM bid WHERE "at" < $closing WINDOW one AS (PARTITION BY bidder ORDER BY "at")
        ), numbered AS (
            SELECT bidder, "at", count(*) FILTER (begins) OVER (PARTITION BY bidder ORDER BY "at") AS session FROM begun
        )
        SELECT bidder, min("at") AS start, max("at") AS last, count(*) AS bids FROM numbered GROUP BY bidder, session
    """,
    "q13": 'SELECT auction, bidder, price, "at", value FROM bid JOIN side ON auction % 10000 = key',
    "q18": 'SELECT auction, bidder, max(("at", price))[2] AS price, max(("at", price))[1] AS "at" FROM bid GROUP BY ALL',
}
COLUMNS = {
    "q1": {"auction": "int64", "bidder": "int64", "price": "float64", "at": "int64"},
    "q2": {"auction": "int64", "price": "int64"},
    "q5": {"auction": "int64", "start": "int64", "bids": "int64"},
    "q8": {"person": "int64", "name": "string", "auction": "int64", "start": "int64"},
    "q11": {"bidder": "int64", "start": "int64", "last": "int64", "bids": "int64"},
    "q13": {"auction": "int64", "bidder": "int64", "price": "int64", "at": "int64", "value": "string"},
    "q18": {"auction": "int64", "bidder": "int64", "price": "int64", "at": "int64"},
}
READS = {"q8": ("person", "auction")} | {each: ("bid",) for each in QUERIES if each != "q8"}
"""The kinds of events that each query reads."""
TIMES = frozenset({"at", "start", "last"})
REPLACED_BY = {"q18": ("auction", "bidder"), "q5": ("auction", "start")}
"""The columns whose last row counts: of q18 in any engine, of q5 in one that tells of a window whenever it changes."""


class Verdict(msgspec.Struct, frozen=True):
    """How the rows of an engine differ from those expected."""

    expected: int
    missing: int
    surplus: int
    samples: list[str] = []

    @property
    def equal(self) -> bool:
        return not self.missing and not self.surplus

    def __str__(self) -> str:
        if self.equal:
            return f"{self.expected:,} rows, equal"
        return f"{self.expected:,} rows, {self.missing:,} missing, {self.surplus:,} too many: {'; '.join(self.samples)}"


class Oracle:
    """The answers for one run's events."""

    def __init__(self, events: Events) -> None:
        self.closing = events.closing
        self._database = duckdb.connect()
        self._asked("SET memory_limit = '3GB'")
        for kind, of_kind in events.kinds.items():
            table = pa.table({"at": of_kind.at, **of_kind.columns})
            self._database.register("arrow", table)
            self._asked(f"CREATE TABLE {kind} AS SELECT * FROM arrow")
            self._database.unregister("arrow")
        keys, values = zip(*side_rows(), strict=True)
        self._database.register("side", pa.table({"key": keys, "value": values}))

    def expected(self, query: str) -> int:
        """How many rows there have to be."""
        if not self._is_there(query):
            parameters = {"closing": self.closing} if "$closing" in QUERIES[query] else {}
            self._asked(f"CREATE TABLE expected_{query} AS {QUERIES[query]}", parameters)
        return int(self._asked(f"SELECT count(*) FROM expected_{query}")[0][0])

    def columns(self, query: str) -> list[str]:
        self.expected(query)
        return [each[0] for each in self._asked(f"DESCRIBE expected_{query}")]

    def compare(self, query: str, rows: Iterable[Mapping[str, Any]], *, replaced: bool = False) -> Verdict:
        """An engine's rows, in the order in which they were written, with times as milliseconds.

        Args:
            query: whose rows they are.
            rows: dictionaries with at least the columns of the query.
            replaced: only the last row of each key counts, by `REPLACED_BY`.
        """
        expected = self.expected(query)
        names = COLUMNS[query]
        lists: dict[str, list[Any]] = {name: [] for name in names}
        for row in rows:
            for name, values in lists.items():
                values.append(row[name])
        order = pa.array(range(len(next(iter(lists.values())))), pa.int64())
        columns = {
            name: pa.array(values, getattr(pa, kind)())
            for (name, values), kind in zip(lists.items(), names.values(), strict=True)
        }
        self._database.register("actual", pa.table(columns | {"_order": order}))
        wanted = ", ".join(f'"{name}"' for name in names)
        source = f"SELECT {wanted} FROM actual"
        if "$closing" in QUERIES[query]:  # windows of the closing events are none that anybody asks for
            source += f" WHERE start < {self.closing - WINDOW_MS}"
        if replaced or query == "q18":
            keys = ", ".join(REPLACED_BY[query])
            source = f"SELECT {wanted} FROM ({source.replace('FROM', ', _order FROM')}) QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY _order DESC) = 1"
        missing = f"SELECT {wanted} FROM expected_{query} EXCEPT ALL {source}"
        surplus = f"{source} EXCEPT ALL SELECT {wanted} FROM expected_{query}"
        counts, samples = [], []
        for what, asked in (("missing", missing), ("too many", surplus)):
            counts.append(int(self._asked(f"SELECT count(*) FROM ({asked})")[0][0]))
            if counts[-1]:
                some = self._asked(f"SELECT * FROM ({asked}) LIMIT 2")
                samples += [f"{what} {json.dumps(each)}" for each in some]
        self._database.unregister("actual")
        return Verdict(expected, counts[0], counts[1], samples)

    def _is_there(self, query: str) -> bool:
        return bool(
            self._asked("SELECT 1 FROM duckdb_tables() WHERE table_name = $name", {"name": f"expected_{query}"})
        )

    def _asked(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        return list(self._database.execute(statement, dict(parameters or {})).fetchall())
