"""Spare parts at two airports. Transfers move them from table to table: a reader sees each whole or not at all.

The truth is computed from the schedule of the transfers, in plain Python; no database is asked.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import psycopg2
from check import Line
from waiting import Background, until

TABLES = ("parts_ewr", "parts_jfk")
PARTS, EACH = 20, 1000
TRANSFERS = 300


class Transfer(NamedTuple):
    """So many pieces of a part, from one table to the other, in one transaction."""

    giving: str
    taking: str
    part: str
    pieces: int


def schedule() -> Iterator[Transfer]:
    """All transfers, in order."""
    for number in range(TRANSFERS):
        giving, taking = TABLES if number % 3 else TABLES[::-1]
        yield Transfer(giving, taking, f"part {number % PARTS}", number % 7 + 1)


def stock(transfers: int = TRANSFERS) -> dict[str, dict[str, int]]:
    """Table -> part -> pieces, after so many transfers."""
    tables = {table: {f"part {number}": EACH for number in range(PARTS)} for table in TABLES}
    for each in islice(schedule(), transfers):
        tables[each.giving][each.part] -= each.pieces
        tables[each.taking][each.part] += each.pieces
    return tables


def sums(transfers: int) -> tuple[int, ...]:
    """The pieces in each table after so many transfers."""
    return tuple(sum(parts.values()) for parts in stock(transfers).values())


class Transfers(Background):
    """Makes the transfers, each in a transaction of its own;
    the second half when the replica has shown some of the first.

    Args:
        dsn: the source database.
        reader: reads the replica.
        check: raises where there is nothing to wait for any more.
        pause: called before each with how many are left.
    """

    def __init__(
        self, dsn: str, reader: "ReplicaReader", check: Callable[[], None], pause: Callable[[int], None]
    ) -> None:
        super().__init__(self._make)
        self._dsn, self._reader, self._check_others, self._pause = dsn, reader, check, pause
        self.made = 0

    def _make(self) -> None:
        connection = psycopg2.connect(self._dsn)
        for each in schedule():
            if self.made == TRANSFERS // 2:
                until("the replica shows some of the transfers", lambda: self._reader.between > 0, self._check_others)
            self._pause(TRANSFERS - self.made)
            with connection, connection.cursor() as cursor:
                for table, pieces in ((each.giving, -each.pieces), (each.taking, each.pieces)):
                    cursor.execute(f"UPDATE {table} SET quantity = quantity + %s WHERE part = %s", (pieces, each.part))
                    assert cursor.rowcount == 1, f"{table} has {cursor.rowcount} rows of {each.part}"
            self.made += 1
        connection.close()


class ReplicaReader(Background):
    """Adds up each table of the replica again and again, both in one query: half a transfer would show in the sums."""

    def __init__(self, dsn: str) -> None:
        super().__init__(self._read)
        self._dsn = dsn
        self._stop_now = threading.Event()
        self.seen: Counter[tuple[int, ...]] = Counter()

    @property
    def between(self) -> int:
        """How many reads saw some of the transfers, but not all."""
        ends = (sums(0), sums(TRANSFERS))
        return sum(count for found, count in self.seen.copy().items() if found not in ends)

    def stop(self) -> None:
        self._stop_now.set()
        self.finish()

    def line(self) -> Line:
        """How many reads there were in the midst of the transfers, and how many saw what the source never held."""
        held = {sums(transfers) for transfers in range(TRANSFERS + 1)}
        wrong = sum(count for found, count in self.seen.items() if found not in held)
        reads = self.between
        note = f"{reads} reads in the midst of the transfers; sums seen: {dict(self.seen)}"
        return Line("replica", "reads with half a transfer", reads, wrong, 0, wrong == 0 and reads > 0, note)

    def _read(self) -> None:
        connection = psycopg2.connect(self._dsn)
        connection.autocommit = True
        query = "SELECT " + ", ".join(f"(SELECT sum(quantity) FROM {table})" for table in TABLES)
        with connection.cursor() as cursor:
            while not self._stop_now.wait(0.005 if len(self.seen) > 1 else 0.05):  # nothing is transferred yet
                try:
                    cursor.execute(query)
                except psycopg2.errors.UndefinedTable:
                    continue  # the initial load has not come yet
                row = cursor.fetchone()
                if None not in row:
                    self.seen[row] += 1
        connection.close()
