"""Values in an address: the text of a key's column as the value that rows have there."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from mainstem.serve.errors import BadQuery


def parse_value(text: str, column: str, sql_type: str) -> Any:
    """The value of a column, as `registry.avro.decode` gives it.

    Raises:
        BadQuery: it is none of the column's type.
    """
    kind = sql_type.partition("(")[0]
    try:
        return _PARSERS.get(kind, str)(text)
    except (ValueError, OverflowError, InvalidOperation):  # a time whose zone leads out of the calendar, say
        raise BadQuery(f"{column}: expected {_TOLD.get(kind, kind)}, found {text[:100]!r}") from None


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _time_stamp(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _local_time_stamp(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError(text)
    return found


_PARSERS: dict[str, Callable[[str], Any]] = {
    "INTEGER": int,
    "BIGINT": int,
    "FLOAT": float,
    "DOUBLE": float,
    "BOOLEAN": _boolean,
    "DATE": date.fromisoformat,
    "TIME": time.fromisoformat,
    "TIMESTAMP": _local_time_stamp,
    "TIMESTAMP WITH TIME ZONE": _time_stamp,
    "UUID": UUID,
    "DECIMAL": Decimal,
}
_TOLD = {
    "INTEGER": "a whole number",
    "BIGINT": "a whole number",
    "FLOAT": "a number",
    "DOUBLE": "a number",
    "BOOLEAN": "true or false",
    "DATE": "a date like 2013-01-31",
    "TIME": "a time like 05:00:00",
    "TIMESTAMP": "a time like 2013-01-31T05:00:00",
    "TIMESTAMP WITH TIME ZONE": "a time like 2013-01-31T05:00:00Z",
    "UUID": "a UUID",
    "DECIMAL": "a decimal number",
}
