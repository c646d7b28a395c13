"""What commands print: tables for people, one JSON document for programs; both from the same structs."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
import msgspec

from mainstem.core import UserError

_MOVES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document; its fields are stable.")


def log_level_option(default: str) -> Callable[[Any], Any]:
    """`--log-level`; what is logged goes to stderr."""
    levels = click.Choice(["debug", "info", "warning", "error"])
    return click.option(
        "--log-level", default=default, show_default=True, type=levels, help="The least that is logged."
    )


def tell(line: str) -> None:
    """Print one line of news. Where nobody reads them any more, as after `| head`, they go nowhere and work goes on."""
    try:
        click.echo(line)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def confirm(question: str) -> None:
    """Ask; unless the answer is yes, the command ends here, with exit code 1.

    Raises:
        UserError: nobody answers.
    """
    try:
        yes = click.confirm(question, err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, EOFError):
            raise UserError("expected an answer, found the end of the input", hint="--yes does not ask") from None
        raise
    if not yes:
        raise click.exceptions.Exit(1)


def to_json(value: Any) -> str:
    """One document with sorted, stable field names."""
    plain = msgspec.to_builtins(
        value, str_keys=True
    )  # partitions are numbers, which keys of a sorted document cannot be
    return msgspec.json.format(msgspec.json.encode(plain, order="sorted")).decode()


def printable(text: str) -> str:
    """`text` for a terminal: what would move its cursor, change its colours or turn the line around is shown as JSON
    escapes it, so that JSON stays the same JSON.
    """
    return _MOVES.sub(lambda found: json.dumps(found[0])[1:-1], text)


def to_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as their widest cell; numbers to the right. Booleans read yes and no, None reads -."""
    listed = [list(row) for row in rows]
    cells = [[_text(cell) for cell in row] for row in listed]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    right = [
        bool(listed) and all(isinstance(row[i], (int, float)) and not isinstance(row[i], bool) for row in listed)
        for i in range(len(columns))
    ]
    lines = [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [list(columns), *cells]
    ]
    return "\n".join(lines)


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.3f}".rstrip("0").rstrip(".")
    return str(cell)
