"""Rows joined with a table as it was at their time."""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from mainstem.process.declare import SINCE, UNTIL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def as_of(rows: "DataFrame", table: "DataFrame", on: str | Sequence[str], time: str) -> "DataFrame":
    """`rows` with the columns of the version of a table's row that held at their time; nulls where none did.

    A version that arrives after the rows that it held for comes too late for them: the table is as it is when their
    batch begins.

    Args:
        rows: of a stream.
        table: of a `changelog` with `history`.
        on: the column or columns that are equal.
        time: the column of `rows` with their time.
    """
    from pyspark.sql import functions as F

    columns = [on] if isinstance(on, str) else [*on]
    mine = {column: f"_of_{column}" for column in columns}
    versions = table.withColumnsRenamed(mine)
    at = rows[time]
    held = (at >= F.col(SINCE)) & (F.col(UNTIL).isNull() | (at < F.col(UNTIL)))
    same = reduce(lambda both, column: both & (rows[column] == F.col(mine[column])), columns, held)
    return rows.join(versions, same, "left").drop(*mine.values(), SINCE, UNTIL)
