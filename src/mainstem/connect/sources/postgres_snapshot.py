"""The rows of the tables as of the moment at which the replication slot begins.

The slot is created with an exported snapshot: a transaction that adopts it sees exactly what was committed before the
slot's first change. All tables are read in that one transaction, and all rows go into one Kafka transaction together
with the position: a kill on the way leaves nothing visible, and the next start drops the slot and begins anew.

The limit of that: a snapshot must be done within the broker's longest transaction (`transaction.max.timeout.ms`, 15
minutes unless changed), which is some 40 million rows; docs/decisions/postgres.md has the figures.
"""

import re
from collections.abc import Callable
from typing import Any

from mainstem.connect.sources.postgres_catalog import is_partitioned, quoted, translated
from mainstem.connect.sources.postgres_pgoutput import Relation, Row, parse_lsn

SNAPSHOT_TIMEOUT_MS = 900_000

_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def create_slot(replication: Any, name: str) -> tuple[int, str]:
    """Create the slot; where it begins, and the snapshot's name, which lives until the connection is used again."""
    with translated(f"create slot {name}"), replication.cursor() as cursor:
        cursor.execute(f"CREATE_REPLICATION_SLOT {quoted(name)} LOGICAL pgoutput (SNAPSHOT 'export')")
        _, consistent_point, snapshot, _ = cursor.fetchone()
    return parse_lsn(consistent_point), str(snapshot)


def adopt(connection: Any, snapshot: str) -> None:
    """Make the transaction that begins here see the exported snapshot."""
    with translated(f"adopt snapshot {snapshot}"), connection.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot,))


def leave(connection: Any) -> None:
    """End that transaction: while it lives, nobody can alter the tables and no dead row can be cleaned up."""
    with translated("end the snapshot"), connection.cursor() as cursor:
        cursor.execute("COMMIT")


def copy_table(connection: Any, relation: Relation, on_row: Callable[[Row], None]) -> None:
    """Give every row of the table to `on_row`, as pgoutput would send it.

    A table that inherits from this one is a table of its own, in the stream too. Partitions are not: there the rows are
    the parent's.
    """
    columns = ", ".join(quoted(column.name) for column in relation.columns)
    table = quoted(relation.namespace, relation.name)
    only = "" if is_partitioned(connection, relation.oid) else "ONLY "
    query = f"COPY (SELECT {columns} FROM {only}{table}) TO STDOUT"  # noqa: S608 - quoted names
    with translated(f"read table {relation.namespace}.{relation.name}"), connection.cursor() as cursor:
        cursor.copy_expert(query, _Rows(on_row))


class _Rows:
    """What psycopg2 writes COPY's lines to, one call per row."""

    def __init__(self, on_row: Callable[[Row], None]) -> None:
        self._on_row = on_row

    def write(self, line: bytes) -> int:
        self._on_row(parse_copy_line(line))
        return len(line)


def parse_copy_line(line: bytes) -> Row:
    r"""One line of COPY's text format: columns between tabs, NULL as `\N`, and `\t`, `\n`, `\\` … in texts.

    https://www.postgresql.org/docs/16/sql-copy.html#id-1.9.3.55.9.2
    """
    fields = line.removesuffix(b"\n").split(b"\t")
    if b"\\" not in line:
        return list(fields)
    return [None if field == rb"\N" else _ESCAPE.sub(_unescape, field) if b"\\" in field else field for field in fields]


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    if code[:1].isdigit() and code[0] < ord("8"):
        return bytes((int(code, 8) & 0xFF,))
    if code[:1] == b"x" and len(code) > 1:
        return bytes((int(code[1:], 16),))
    return _ESCAPED.get(code, code)
