"""Whether a statement of SQL only reads, as far as DuckDB's parser tells.

A transaction that cannot write is not enough: a table function may run what it is given on a connection of its own
(`json_execute_serialized_sql`), take a text for a statement (`query`), read memory at any address (`arrow_scan`), or
change the engine for all (`checkpoint`, `enable_logging`). Those that only give rows are known by name; it is the
parser that says which are called, however their names are spelled or put together.
"""

import re
from typing import TYPE_CHECKING

import msgspec

from mainstem.serve.errors import BadQuery

if TYPE_CHECKING:
    import duckdb

TABLE_FUNCTIONS = frozenset({
    "generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "summary", "unnest",
    "histogram", "histogram_values",
    "duckdb_columns", "duckdb_constraints", "duckdb_databases", "duckdb_dialects", "duckdb_functions", "duckdb_indexes",
    "duckdb_keywords", "duckdb_memory", "duckdb_schemas", "duckdb_settings", "duckdb_tables", "duckdb_types",
    "duckdb_views", "icu_calendar_names", "pg_timezone_names", "pragma_database_size", "pragma_storage_info",
    "pragma_table_info", "pragma_version",
})  # fmt: skip
_KINDS = ("SELECT", "EXPLAIN")
_EXPLAIN = re.compile(r"explain(\s+analyze)?\b", re.IGNORECASE)
# The parser's answer is JSON as it writes it. In a text of the statement a quotation mark has a backslash before it,
# so that none looks like this; what does not look like this is refused. It is not decoded: 600 KB, and too deep.
_CALL = '"type":"TABLE_FUNCTION"'
_CALLED = re.compile(r'"function":\{"class":"FUNCTION","type":"FUNCTION",[^{}]*?"function_name":"([^"\\]*)"')


def check_reads(cursor: "duckdb.DuckDBPyConnection", sql: str) -> "duckdb.Statement":
    """The statement of a text.

    Raises:
        BadQuery: there is another number of them, or it is of another kind, or calls what may do more than read.
    """
    statements = cursor.extract_statements(sql)
    if len(statements) != 1:
        raise BadQuery(f"query: expected one statement, found {len(statements)}")
    statement: duckdb.Statement = statements[0]
    kind, text = statement.type.name, statement.query
    if kind not in _KINDS:
        # PIVOT without the values of its columns is several statements.
        hint = "of PIVOT: name the values, `FROM (PIVOT … ON … IN (…) USING …)`" if kind == "MULTI" else ""
        raise BadQuery(f"query: expected a statement that reads, as SELECT, found {kind}", hint=hint)
    if kind == "EXPLAIN" and (explain := _EXPLAIN.match(text)):
        text = text[explain.end() :]
    for name in sorted(set(_called(_parsed(cursor, text)))):
        if name.lower() not in TABLE_FUNCTIONS:
            raise BadQuery(
                f"query: expected functions that only give rows in place of a table, found {name}",
                hint=f"these do: {', '.join(sorted(TABLE_FUNCTIONS))}",
            )
    return statement


def _parsed(cursor: "duckdb.DuckDBPyConnection", text: str) -> str:
    """A SELECT as DuckDB's parser has it, in JSON."""
    found = cursor.execute("SELECT json_serialize_sql(?, skip_empty := true, skip_null := true)", [text]).fetchall()
    parsed = str(found[0][0])
    if parsed.startswith('{"error":true'):
        reason = msgspec.json.decode(parsed.encode()).get("error_message", "")
        raise BadQuery(
            f"query: expected SELECT, or EXPLAIN and SELECT: {reason}", hint="EXPLAIN takes no options but ANALYZE"
        )
    return parsed


def _called(parsed: str) -> list[str]:
    names = _CALLED.findall(parsed)
    if len(names) < parsed.count(_CALL):
        raise BadQuery(
            "query: expected calls of functions by their names in place of a table, found one of another form"
        )
    return names
