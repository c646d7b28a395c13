"""Which log a command speaks to: `--bootstrap`, else the project's running `up`, else the default address."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mainstem.client.connection import Connection

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def data_directory(project: Path, data: Path | None = None) -> Path:
    """Where a project's state lives: `data`, `MAINSTEM_DATA`, or `.mainstem` in the project."""
    if data is not None:
        return data
    return Path(os.environ.get("MAINSTEM_DATA") or project / ".mainstem")


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--bootstrap` and `--project`; the command gets them as `bootstrap` and `project`."""
    command = click.option("--bootstrap", metavar="HOST:PORT", help="Address of the log.")(command)
    return click.option(
        "--project",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(),
        help="Project whose running log is meant (default: this directory).",
    )(command)


def connect(bootstrap: str | None, project: Path) -> Connection:
    """The connection that the options mean."""
    if bootstrap:
        return Connection(bootstrap)
    from mainstem.standalone.state import load

    state = load(data_directory(project))
    return Connection(state.bootstrap if state else DEFAULT_BOOTSTRAP)
