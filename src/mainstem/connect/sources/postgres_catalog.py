"""What a source asks its PostgreSQL: tables, keys, types and slot. Errors of the server become ours."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg2
import psycopg2.errors
import psycopg2.extensions
import psycopg2.extras

from mainstem.connect.sources.postgres_pgoutput import Column, Relation, parse_lsn
from mainstem.connect.sources.postgres_position import Server, Slot
from mainstem.connect.sources.postgres_types import SESSION_SETTINGS, ServerType
from mainstem.core import MainstemError, Retriable, UserError

CONNECT_TIMEOUT_SECONDS = 10
# A key's text that its column cannot hold, because it has another type now: no row has it.
_NO_SUCH_KEY = (
    psycopg2.errors.InvalidTextRepresentation,
    psycopg2.errors.InvalidDatetimeFormat,
    psycopg2.errors.DatetimeFieldOverflow,
    psycopg2.errors.NumericValueOutOfRange,
)
_ALTERED = (psycopg2.errors.UndefinedTable, psycopg2.errors.UndefinedColumn, *_NO_SUCH_KEY)
_FIRST_USER_OID = 16_384  # below it are the types that every database has
# libpq gives no code for a refused connection, only its text.
_REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "permission denied", "must be superuser")


class DatabaseUnavailable(Retriable):
    """The database is down, is starting, or closed the connection."""


class DatabaseRefused(UserError):
    """The database does not allow what is asked, or has not what is needed."""


class TableInfo(msgspec.Struct, frozen=True):
    """A table as the catalog has it now."""

    relation: Relation
    types: tuple[ServerType, ...]
    key: tuple[str, ...]  # of the replica identity where an index is named, else the primary key
    missing: dict[str, str] = {}  # what older rows have in columns that were added with a default


@contextmanager
def translated(doing: str, *, if_unavailable: str = "") -> Iterator[None]:
    """Turn psycopg2's errors into ours, one line each; `if_unavailable` is the hint for a database that is down."""
    try:
        yield
    except psycopg2.Error as error:
        raise translate(error, doing, if_unavailable=if_unavailable) from error


def translate(error: psycopg2.Error, doing: str, *, if_unavailable: str = "") -> MainstemError:
    """Ours for psycopg2's: what a person must mend is refused, everything else may pass."""
    lines = str(error).strip().splitlines()
    message = f"{doing}: {lines[0].removeprefix('ERROR:').strip() if lines else type(error).__name__}"
    code = error.pgcode or ""
    if code.startswith(("28", "3D", "42")) or code in ("55000", "0A000"):
        return DatabaseRefused(message, hint=_hint(message))
    if not code and any(part in message for part in _REFUSED):
        return DatabaseRefused(message, hint=_hint(message) or "check `url` in the settings")
    if isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError) or code.startswith(
        ("08", "53", "55", "57")
    ):
        return DatabaseUnavailable(message, hint=if_unavailable)
    return DatabaseRefused(message)


def _hint(message: str) -> str:
    if "wal_level" in message:
        return "ALTER SYSTEM SET wal_level = 'logical', then restart the database"
    if "row-level security" in message:
        return "ALTER ROLE <the source's role> BYPASSRLS; or leave the table out of `tables` in the source's settings"
    if "replication" in message or "permission" in message or "WAL sender" in message:
        return (
            "the role needs REPLICATION, SELECT on the tables, and CREATE on the database (or an existing publication)"
        )
    return ""


def connect(url: str, *, replication: bool = False, name: str = "mainstem") -> Any:
    """A connection whose texts are as `postgres_types` expects them.

    Raises:
        DatabaseUnavailable, DatabaseRefused: by the reason.
    """
    factory = psycopg2.extras.LogicalReplicationConnection if replication else None
    options = " ".join(
        f"-c {setting}={value}" for setting, value in SESSION_SETTINGS.items() if setting != "client_encoding"
    )
    _check_url(url)
    with translated("connect to PostgreSQL", if_unavailable="start the database, or correct `url` in the settings"):
        return psycopg2.connect(
            url,
            connection_factory=factory,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            options=options,
            client_encoding=SESSION_SETTINGS["client_encoding"],
            application_name=name,
            keepalives_idle=30,
        )


def _check_url(url: str) -> None:
    """Refuse what libpq would quote in its error, password and all.

    Raises:
        DatabaseRefused: it is not an address of a PostgreSQL database.
    """
    try:
        parts = psycopg2.extensions.parse_dsn(url)
    except psycopg2.Error:
        parts = {"host": "@"}
    # An @, : or / in a password that is not written %40, %3A or %2F shifts the rest into host and port.
    ports = parts.get("port", "").split(",")
    if "@" in parts.get("host", "") or not all(port.isdigit() or not port for port in ports):
        raise DatabaseRefused(
            "connect to PostgreSQL: `url` is not the address of a database (it is not shown: it may hold a password)",
            hint="it looks like postgresql://user:password@host:5432/database; write @ : / in a password as %40 %3A %2F",
        )


def identify(replication: Any) -> Server:
    """Cluster, database and end of WAL; asked over a replication connection, which needs no other privilege."""
    with translated("identify the database"), replication.cursor() as cursor:
        cursor.execute("IDENTIFY_SYSTEM")
        system, _, wal_end, database = cursor.fetchone()
    return Server(system, database, parse_lsn(wal_end))


def check_wal_level(connection: Any) -> None:
    with translated("read wal_level"), connection.cursor() as cursor:
        cursor.execute("SHOW wal_level")
        (level,) = cursor.fetchone()
    if level != "logical":
        raise DatabaseRefused(
            f"PostgreSQL setting wal_level: expected logical, found {level}",
            hint="ALTER SYSTEM SET wal_level = 'logical', then restart the database",
        )


def see_all_rows(connection: Any) -> None:
    """Make a policy that hides rows from the role an error:
    the changes of these rows are in the stream all the same.
    """
    with translated("set row_security"), connection.cursor() as cursor:
        cursor.execute("SET row_security = off")


def is_partitioned(connection: Any, oid: int) -> bool:
    """Whether the table's rows are all in its partitions."""
    with translated("read the tables"), connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_class WHERE oid = %s AND relkind = 'p')", (oid,))
        return bool(cursor.fetchone()[0])


def read_slot(connection: Any, name: str) -> Slot | None:
    with translated(f"read slot {name}"), connection.cursor() as cursor:
        cursor.execute(
            "SELECT plugin, database, active_pid, confirmed_flush_lsn::text, wal_status "
            "FROM pg_replication_slots WHERE slot_name = %s",
            (name,),
        )
        found = cursor.fetchone()
    if found is None:
        return None
    plugin, database, active_pid, confirmed, status = found
    return Slot(plugin or "", database or "", active_pid, parse_lsn(confirmed) if confirmed else 0, status or "lost")


def drop_slot(connection: Any, name: str) -> None:
    with translated(f"drop slot {name}"), connection.cursor() as cursor:
        cursor.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def find_tables(connection: Any, names: Sequence[str]) -> list[TableInfo]:
    """The tables called `names` (`table` in schema public, or `schema.table`); without names all of schema public.

    Raises:
        DatabaseRefused: one of them does not exist.
    """
    wanted = list(dict.fromkeys(qualified(name) for name in names))
    with translated("read the tables"), connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.oid::bigint, n.nspname, c.relname, c.relreplident::text FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' "
            "AND n.nspname NOT LIKE 'pg\\_%%' AND n.nspname <> 'information_schema' ORDER BY 2, 3"
        )
        found = {(namespace, name): (oid, identity) for oid, namespace, name, identity in cursor.fetchall()}
    if not wanted:
        wanted = [place for place in found if place[0] == "public"]
    missing = [f"{namespace}.{name}" for namespace, name in wanted if (namespace, name) not in found]
    if missing or not wanted:
        raise DatabaseRefused(
            f"tables: expected {', '.join(missing) or 'at least one table in schema public'}, found no such table",
            hint="correct `tables` in the source's settings",
        )
    return [table_info(connection, found[place][0], *place, found[place][1]) for place in wanted]


def qualified(name: str) -> tuple[str, str]:
    """Schema and table of a name in the settings."""
    namespace, _, table = name.rpartition(".")
    return namespace or "public", table


def table_info(connection: Any, oid: int, namespace: str, name: str, identity: str) -> TableInfo:
    """Columns as the server replicates them: generated ones are left out."""
    with translated(f"read table {namespace}.{name}"), connection.cursor() as cursor:
        cursor.execute(
            "SELECT attname, atttypid::bigint, atttypmod FROM pg_attribute "
            "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            (oid,),
        )
        described = cursor.fetchall()
    key = key_columns(connection, oid)
    columns = tuple(Column(column, type_oid, modifier, column in key) for column, type_oid, modifier in described)
    types = server_types(connection, [(column.type_oid, column.type_modifier) for column in columns])
    return TableInfo(Relation(oid, namespace, name, identity, columns), types, key, missing_values(connection, oid))


def missing_values(connection: Any, oid: int) -> dict[str, str]:
    """The values that rows have in columns that were added after them: ADD COLUMN … DEFAULT does not write the rows."""
    with translated("read the defaults of added columns"), connection.cursor() as cursor:
        cursor.execute(
            "SELECT attname, (attmissingval::text::text[])[1] FROM pg_attribute "
            "WHERE attrelid = %s AND atthasmissing AND attmissingval IS NOT NULL AND NOT attisdropped",
            (oid,),
        )
        return {name: value for name, value in cursor.fetchall() if value is not None}


def key_columns(connection: Any, oid: int) -> tuple[str, ...]:
    """Columns of the index that the replica identity names, else of the primary key, in the index's order."""
    with translated("read the primary key"), connection.cursor() as cursor:
        cursor.execute(
            "SELECT array_agg(a.attname::text ORDER BY k.n) FROM pg_index i "
            "CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, n) "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
            "WHERE i.indrelid = %s AND k.n <= i.indnkeyatts AND (i.indisprimary OR i.indisreplident) "
            "GROUP BY i.indexrelid ORDER BY i.indisreplident DESC LIMIT 1",
            (oid,),
        )
        found = cursor.fetchone()
    return tuple(found[0]) if found else ()


def server_types(connection: Any, wanted: Sequence[tuple[int, int]]) -> tuple[ServerType, ...]:
    """The types of (oid, modifier) pairs; a domain becomes the type it is based on, an unknown oid is text."""
    with translated("read the types"), connection.cursor() as cursor:
        return tuple(_server_type(cursor, oid, modifier) for oid, modifier in wanted)


def _server_type(cursor: Any, oid: int, modifier: int) -> ServerType:
    while True:
        cursor.execute(
            "SELECT typtype::text, typbasetype::bigint, typtypmod, format_type(oid, %s), "
            "CASE WHEN typcategory = 'A' AND typlen = -1 THEN typelem::bigint ELSE 0 END FROM pg_type WHERE oid = %s",
            (modifier, oid),
        )
        found = cursor.fetchone()
        if found is None:
            return ServerType(oid, modifier, "text", builtin=False)
        kind, base, base_modifier, name, element = found
        if kind != "d":
            return ServerType(oid, modifier, name, builtin=max(oid, element) < _FIRST_USER_OID, element=element)
        oid, modifier = base, base_modifier


def read_columns(
    connection: Any, relation: Relation, key: dict[str, str], columns: Sequence[str]
) -> list[bytes | None] | None:
    """The present text of some columns of one row, null for columns that are dropped; None where the row is gone.

    The table is as its relation was, or has been altered, renamed or dropped since.
    """
    place = (relation.namespace, relation.name)
    with translated(f"read {'.'.join(place)}"):
        try:
            return _read_columns(connection, place, key, columns)
        except _ALTERED:
            now = _present_columns(connection, relation.oid)
        if now is None or not key.keys() <= now[1]:
            return None
        place, present = now
        left = [column for column in columns if column in present]
        try:
            values = _read_columns(connection, place, key, left)
        except _NO_SUCH_KEY:
            return None
    if values is None:
        return None
    by_column = dict(zip(left, values, strict=True))
    return [by_column.get(column) for column in columns]


def _read_columns(
    connection: Any, place: tuple[str, str], key: dict[str, str], columns: Sequence[str]
) -> list[bytes | None] | None:
    listed = ", ".join(f"{quoted(column)}::text" for column in columns)
    where = " AND ".join(f"{quoted(column)} = ".replace("%", "%%") + "%s" for column in key)
    query = f"SELECT {listed} FROM {quoted(*place)} WHERE "  # noqa: S608 - quoted names
    with connection.cursor() as cursor:
        cursor.execute(query.replace("%", "%%") + where, list(key.values()))
        found = cursor.fetchone()
    return None if found is None else [None if value is None else value.encode() for value in found]


def _present_columns(connection: Any, oid: int) -> tuple[tuple[str, str], set[str]] | None:
    """What a table and its columns are called now; None where there is no such table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT n.nspname, c.relname, array_agg(a.attname::text) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid "
            "WHERE c.oid = %s AND a.attnum > 0 AND NOT a.attisdropped GROUP BY 1, 2",
            (oid,),
        )
        found = cursor.fetchone()
    return None if found is None else (found[:2], set(found[2]))


def is_visible(connection: Any, xid: int) -> bool:
    """Whether new statements see what a transaction has committed; `xid` has 32 bits, as in the stream.

    The stream may be ahead: a commit is sent as soon as it is in the WAL, and shows to others a moment later, or much
    later where the commit waits for a synchronous standby.
    """
    with translated("read the snapshot"), connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_snapshot()::text")
        _, above, running = cursor.fetchone()[0].split(":")
    age = (int(above) - xid) % (1 << 32)  # transaction ids go round; half of them are in the past
    return 0 < age < 1 << 31 and xid not in {int(each) % (1 << 32) for each in running.split(",") if each}


def emit_message(connection: Any, prefix: str, content: str) -> int:
    """Put a message into the WAL, in a transaction of its own; the LSN where it stands, which its commit follows."""
    with translated("emit a heartbeat"), connection.cursor() as cursor:
        cursor.execute("SELECT pg_logical_emit_message(true, %s, %s)::text", (prefix, content))
        return parse_lsn(cursor.fetchone()[0])


def quoted(*names: str) -> str:
    """A name, or a name in a schema, as SQL wants it."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
