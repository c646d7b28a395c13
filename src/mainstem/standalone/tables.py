"""The tables that a `mainstem.toml` may have. It imports no room: the log alone checks them too, and starts fast."""

from collections.abc import Mapping
from typing import Any

from mainstem.core.config import BadSetting, variable_of
from mainstem.core.wrong_settings import suggestion

TABLES = (
    "project",
    "topics",
    "jobs",
    "spark",
    "log",
    "broker",
    "gateway",
    "security",
    "sources",
    "sinks",
    "serve",
    "splices",
)


def check_tables(
    tree: Mapping[str, Any], file: Mapping[str, Any], environment: Mapping[str, str], *, where: str
) -> None:
    """Refuse a table that there is none of: a typo in its name would mean that the defaults hold.

    Args:
        tree: the tables of the file with the variables over them.
        file: those of the file alone.
        environment: the variables.
        where: the file, for errors.

    Raises:
        BadSetting: the message names the file or the variable, and the table.
    """
    for table in tree:
        if table not in TABLES:
            place = where if table in file else variable_of(table, environment)
            raise BadSetting(f"{place}: unknown table [{table}]", hint=suggestion(table, TABLES))
