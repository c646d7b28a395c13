"""What the stream has: the publication, and whether the tables are still those that the log was begun with.

A publication follows a table, whatever it is called; the log's topics follow its name. A table that was renamed, or
whose name another one has taken, is therefore known by both: what fits in only one of them would be lost in silence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mainstem.connect.sources.postgres_catalog import DatabaseRefused, quoted, translated
from mainstem.connect.sources.postgres_pgoutput import Relation
from mainstem.connect.sources.postgres_position import PositionMismatch

_COLUMN_LISTS_SINCE = 150_000
_ALL_OPERATIONS = "insert, update, delete, truncate"
_NEW_SNAPSHOT = 'set on_gap = "snapshot" for this source: a new snapshot replaces all older rows of its topics'


def ensure_publication(connection: Any, name: str, tables: Sequence[Relation]) -> None:
    """Create the publication, or add the tables it lacks.

    Raises:
        DatabaseRefused: no permission; or it leaves out rows, columns or operations, which a snapshot would not.
    """
    with translated(f"publication {name}"), connection.cursor() as cursor:
        left_out = _operations_left_out(cursor, name)
        if left_out is None:
            listed = ", ".join(quoted(table.namespace, table.name) for table in tables)
            cursor.execute(
                f"CREATE PUBLICATION {quoted(name)} FOR TABLE {listed} WITH (publish_via_partition_root = true)"
            )
            return
        if left_out:
            raise DatabaseRefused(
                f"publication {name}: expected {_ALL_OPERATIONS}, found that it leaves out {', '.join(left_out)}",
                hint=f"ALTER PUBLICATION {quoted(name)} SET (publish = '{_ALL_OPERATIONS}'), or name another `publication`",
            )
        missing = _unpublished(cursor, name, tables)
        if missing:
            listed = ", ".join(quoted(table.namespace, table.name) for table in missing)
            cursor.execute(f"ALTER PUBLICATION {quoted(name)} ADD TABLE {listed}")
            _check_published(cursor, name, missing)
        _check_whole_tables(connection, cursor, name)


def _operations_left_out(cursor: Any, name: str) -> list[str] | None:
    """What the publication does not tell of; None where there is no such publication."""
    cursor.execute(
        "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s", (name,)
    )
    found = cursor.fetchone()
    if found is None:
        return None
    return [operation for operation, told in zip(_ALL_OPERATIONS.split(", "), found, strict=True) if not told]


def _unpublished(cursor: Any, name: str, tables: Sequence[Relation]) -> list[Relation]:
    cursor.execute("SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (name,))
    present = set(cursor.fetchall())
    return [table for table in tables if (table.namespace, table.name) not in present]


def _check_published(cursor: Any, name: str, tables: Sequence[Relation]) -> None:
    missing = _unpublished(cursor, name, tables)
    if missing:
        raise DatabaseRefused(
            f"publication {name}: expected table {missing[0].namespace}.{missing[0].name}, found its partitions",
            hint=f"ALTER PUBLICATION {quoted(name)} SET (publish_via_partition_root = true)",
        )


def _check_whole_tables(connection: Any, cursor: Any, name: str) -> None:
    if connection.server_version < _COLUMN_LISTS_SINCE:
        return
    cursor.execute(
        "SELECT r.prrelid::regclass::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid "
        "WHERE p.pubname = %s AND (r.prattrs IS NOT NULL OR r.prqual IS NOT NULL)",
        (name,),
    )
    found = cursor.fetchone()
    if found:
        raise DatabaseRefused(
            f"publication {name}: expected whole tables, found a column list or row filter on {found[0]}",
            hint="name another `publication`, which Mainstem then creates",
        )


def find_oids(connection: Any, source: str, tables: Sequence[str]) -> tuple[int, ...]:
    """The oids of tables, for a position that does not have them.

    Raises:
        PositionMismatch: one of them does not exist: it may have been renamed.
    """
    present = _present(connection, "", tables, [])
    found = {name: oid for oid, (name, _) in present.items()}
    for name in tables:
        if name not in found:
            raise PositionMismatch(
                f"source {source}: expected table {name}, found none: it was renamed or dropped",
                hint=f"rename it back; or {_NEW_SNAPSHOT}",
            )
    return tuple(found[name] for name in tables)


def check_published(connection: Any, source: str, publication: str, tables: Mapping[str, int]) -> list[str]:
    """See that everything that happens to the source's tables, by name and oid, is in the stream.

    Returns:
        The tables that were dropped. Nothing is lost with them.

    Raises:
        PositionMismatch: the publication leaves something out; or a table was renamed, or another one has its name.
    """
    with translated(f"publication {publication}"), connection.cursor() as cursor:
        left_out = _operations_left_out(cursor, publication)
    if left_out is None or left_out:
        found = "none" if left_out is None else f"that it leaves out {', '.join(left_out)}"
        raise PositionMismatch(
            f"source {source}: expected publication {publication} of {_ALL_OPERATIONS}, found {found}",
            hint=f"drop the publication, Mainstem creates it; {_NEW_SNAPSHOT}",
        )
    present = _present(connection, publication, list(tables), list(tables.values()))
    names = {name for name, _ in present.values()}
    dropped = []
    for name, oid in tables.items():
        now, published = present.get(oid, ("", False))
        if now == name and published:
            continue
        if now and now != name:
            raise PositionMismatch(
                f"source {source}: expected table {name}, found that it is now called {now}",
                hint=f"rename it back, nothing is lost then; or, where its new name is in `tables`, {_NEW_SNAPSHOT}",
            )
        if now or name in names:
            found = f"that publication {publication} does not have it" if now else "another table of that name"
            raise PositionMismatch(
                f"source {source}: expected table {name} in the stream, found {found}", hint=_NEW_SNAPSHOT
            )
        dropped.append(name)
    return dropped


def _present(
    connection: Any, publication: str, names: Sequence[str], oids: Sequence[int]
) -> dict[int, tuple[str, bool]]:
    """The tables that have one of the names or oids, by oid: name, and whether the publication has them."""
    with translated("read the tables"), connection.cursor() as cursor:
        cursor.execute(
            "WITH published AS MATERIALIZED (SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s) "
            "SELECT c.oid::bigint, n.nspname || '.' || c.relname, "
            "EXISTS (SELECT FROM published p WHERE p.schemaname = n.nspname AND p.tablename = c.relname) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND (c.oid = ANY(%s::oid[]) "
            "OR (c.relname = ANY(%s) AND n.nspname || '.' || c.relname = ANY(%s)))",
            (publication, list(oids), [name.partition(".")[2] for name in names], list(names)),
        )
        return {oid: (name, published) for oid, name, published in cursor.fetchall()}
