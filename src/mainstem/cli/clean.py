"""`mainstem clean`: remove what a project has kept on this machine."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import click
import msgspec

from mainstem.cli.output import confirm, json_option, to_json
from mainstem.cli.paths import DIRECTORY
from mainstem.cli.target import data_directory
from mainstem.core.locks import DirectoryLock


class Cleaned(msgspec.Struct, frozen=True):
    """`clean --json`. A directory that is a link is emptied, and stays."""

    directory: str
    result: Literal["nothing there", "emptied", "deleted"]


@click.command(short_help="Delete the data directory of a project.")
@click.argument("project", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--data", type=DIRECTORY, help="The data directory, where it is not PROJECT/.mainstem.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def clean(project: Path, data: Path | None, yes: bool, as_json: bool) -> None:
    """Delete the data directory of PROJECT: its log, checkpoints and tables. Refused while it is in use, is none, or
    is that of another project.

    What sources and destinations keep (a replication slot, rows of a replica) is not touched, nor what a link in it
    points to. Interrupted, it is run again.
    """
    directory = data_directory(project, data)
    cleaned = _clean(project, directory, yes)
    click.echo(to_json(cleaned) if as_json else f"{directory}: {cleaned.result}")


def _clean(project: Path, directory: Path, yes: bool) -> Cleaned:
    from mainstem.process.project_config import project_name
    from mainstem.standalone.state import check_project, delete_directory, is_empty

    if not directory.exists() or (directory.is_dir() and is_empty(directory)):
        return Cleaned(str(directory), "nothing there")
    check_project(directory, project, project_name(project))
    if not yes:
        with _locked(directory):  # not while it asks: who holds the lock counts as a running `up`
            pass
        confirm(f"delete {directory} with the log and all tables for good?")
    with _locked(directory):
        delete_directory(directory)
    return Cleaned(str(directory), "emptied" if directory.exists() else "deleted")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    from mainstem.standalone.state import LAYOUT

    with contextlib.ExitStack() as held:
        held.enter_context(DirectoryLock(directory))
        log = directory / LAYOUT["log"]
        if log.is_dir():  # a log that was started alone holds only its own lock
            held.enter_context(DirectoryLock(log, ".lock"))
        yield
