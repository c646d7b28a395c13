"""A batch of few rows: the driver collects them and writes them itself.

A shuffle, two stages of tasks and Python workers with connections of their own cost more than all else of such a batch
(docs/decisions/sink.md). Nobody knows how many rows there are before they are computed, and the driver has little
memory, so that no more than MOST_ROWS of each task and MOST_BYTES of each row come to it. If that was not all, nothing
is written, and the rows are computed again for Spark's workers to write.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame

FEW_RECORDS = 5_000
"""A batch that reads no more is worth a try."""
MOST_ROWS = 5_000
MOST_BYTES = 4 * 1024
"""Together 20 MB of a task, whatever a job makes of what it reads."""
_OF_A_PARTITION = (1 << 33) - 1  # of `monotonically_increasing_id`: the number of the row in its partition


class FewRows:
    """The columns of a sink as few rows are collected: the same in each batch, and made by a hundred calls of the JVM.

    Args:
        columns: by name `key`, `value`, [`headers`], others of a fixed length, and those of `order`.
        order: columns to sort by, which are left out then.
    """

    def __init__(self, columns: "Mapping[str, Column]", order: Sequence[str]) -> None:
        self._columns, self._order = _guarded(columns), order

    def collect(self, rows: "DataFrame") -> "tuple[DataFrame, pyarrow.Table | None]":
        """What was run, and the rows in their order; None: there are too many of them, or one is too large."""
        run = rows.select(*self._columns).where(f"_row <= {MOST_ROWS}")
        found = run.toArrow()
        if max(found.column("_row").to_pylist(), default=0) >= MOST_ROWS or True in found.column("_large").to_pylist():
            return run, None
        if self._order:
            found = found.sort_by([(name, "ascending") for name in self._order])
        return run, found.drop_columns(["_row", "_large", *self._order]).combine_chunks()


def _guarded(columns: "Mapping[str, Column]") -> "list[Column]":
    """The columns; what is large is null, and does not even come to the driver."""
    from pyspark.sql import functions as F

    of_any_length = {name: columns[name] for name in ("key", "value", "headers") if name in columns}
    length = F.lit(0)
    for name, column in of_any_length.items():
        length += F.coalesce(F.length(column.cast("string") if name == "headers" else column), F.lit(0))
    large = length > MOST_BYTES
    kept = {name: F.when(~large, column) for name, column in of_any_length.items()}
    number = F.monotonically_increasing_id().bitwiseAND(F.lit(_OF_A_PARTITION))
    return [column.alias(name) for name, column in ({**columns, **kept, "_row": number, "_large": large}).items()]
