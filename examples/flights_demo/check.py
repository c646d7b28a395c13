"""Hold what Mainstem made against the truth, row by row, and print the result as a table."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from mainstem.client.connection import Connection
from mainstem.registry.reader import TypedReader

Row = tuple[Any, ...]


class Line(NamedTuple):
    """One line of the final table: what a stage took in, gave out, and should have given."""

    stage: str
    name: str
    took: int | None
    gave: int
    truth: int
    equal: bool
    note: str = ""


def plain(value: Any) -> Any:
    """A value in the form in which all sides are compared: times as text in UTC, numbers to nine places."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float | Decimal):
        number = round(float(value), 9)
        return int(number) if number.is_integer() else number
    return value


def normal(rows: Iterable[Sequence[Any]]) -> Counter[Row]:
    return Counter(tuple(plain(value) for value in row) for row in rows)


def compare(
    stage: str, name: str, took: int | None, found: Iterable[Sequence[Any]], truth: Iterable[Sequence[Any]]
) -> Line:
    """Equal means: the same rows, each as often; order apart."""
    have, want = normal(found), normal(truth)
    note = ""
    if have != want:
        missing, extra = want - have, have - want
        note = f"missing {missing.total()}, e.g. {next(iter(missing), None)}; extra {extra.total()}, e.g. {next(iter(extra), None)}"
    return Line(stage, name, took, have.total(), want.total(), have == want, note)


def topic_rows(connection: Connection, topic: str, columns: str) -> list[Row]:
    """Every committed record of a stream, as a tuple of `columns`."""
    names = [name.strip() for name in columns.split(",")]
    with TypedReader(connection, topic) as reader:
        return [tuple(record.value[name] for name in names) for record in reader if record.value is not None]


def table_of(connection: Connection, topic: str, columns: str) -> list[Row]:
    """The rows that a changelog leads to: the last value of every key; of change records, the row after the change."""
    names = [name.strip() for name in columns.split(",")]
    rows: dict[str | None, Mapping[str, Any] | None] = {}
    with TypedReader(connection, topic) as reader:
        for record in reader:
            row = record.value
            rows[record.key] = row["after"] if row is not None and "after" in row else row
    return [tuple(row[name] for name in names) for row in rows.values() if row is not None]


def delta_rows(tables: Path, topic: str, columns: str) -> list[Row]:
    """A Delta table as delta-rs reads it."""
    names = [name.strip() for name in columns.split(",")]
    found = DeltaTable(str(tables / topic)).to_pyarrow_table(columns=names)
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


def print_lines(lines: Iterable[Line]) -> None:
    columns = ("stage", "what", "in", "out", "truth", "equal")
    cells = [
        (line.stage, line.name, *(f"{n:,}" if n is not None else "" for n in line[2:5]), "yes" if line.equal else "NO")
        for line in lines
    ]
    widths = [max(len(row[i]) for row in [columns, *cells]) for i in range(len(columns))]
    for row in [columns, tuple("-" * width for width in widths), *cells]:
        left = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
        print("  ".join(left + right), flush=True)
