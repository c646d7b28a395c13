"""Which log a command speaks to: `--bootstrap`, else the project's running `up`, else the default address."""

import functools
import os
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mainstem.cli.paths import DIRECTORY
from mainstem.client.connection import Connection, load_security
from mainstem.client.errors import BrokerUnavailable
from mainstem.core import UserError
from mainstem.core.config import PROJECT_FILE
from mainstem.core.task import TaskState

if TYPE_CHECKING:
    from mainstem.standalone.state import UpState

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
PROBE_SECONDS = 2.5


class NotUp(UserError):
    """The project's log was started once and is not running."""


def data_directory(project: Path, data: Path | None = None) -> Path:
    """Where a project's state lives: `data`, `MAINSTEM_DATA`, or `.mainstem` in the project."""
    if data is not None:
        return data
    return Path(os.environ.get("MAINSTEM_DATA") or project / ".mainstem")


def up_command(project: Path, directory: Path, state: "UpState | None") -> str:
    """What starts the node in `directory` again as it was started last, from where the command is called.

    Args:
        project: of the command; where something has run, its project is meant.
        directory: the data directory.
        state: what has run in it.
    """
    where = project if state is None else Path(state.project)
    data = [] if data_directory(where).resolve() == directory.resolve() else ["--data", str(directory)]
    return shlex.join(["mainstem", "up", str(where), *data, *(state.options if state else [])])


class Target(msgspec.Struct, frozen=True):
    """What the options of a command say."""

    bootstrap: str | None
    project: Path
    data: Path | None
    named: bool = False  # the project was named, not taken from where the command was called

    @property
    def directory(self) -> Path:
        return data_directory(self.project, self.data)

    @property
    def project_of_data(self) -> Path:
        """The project that last ran on the data directory, wherever the command is called."""
        from mainstem.standalone.state import load

        state = load(self.directory)
        return self.project if state is None else Path(state.project)

    @property
    def tasks(self) -> list[TaskState]:
        """What the project's processes say of its jobs; nothing where another log is named."""
        from mainstem.standalone.overview import tasks_of

        return tasks_of(self.directory) if self.bootstrap is None else []

    @property
    def how_to_start(self) -> str:
        """What to do where the project is not up."""
        from mainstem.standalone.state import load

        state = load(self.directory)
        if state is None and not (self.project / PROJECT_FILE).exists():
            return "--project says which project is meant, and --data where `up` was told to keep its data"
        return f"`{up_command(self.project, self.directory, state)}` starts it"

    def connect(self) -> Connection:
        """The connection that the options mean, to a log that answers; its security is in the project's settings.

        Raises:
            NotUp: the project has run here on a log of its own, and does not now; or one was named that never ran here.
            BrokerUnavailable: nobody listens there.
        """
        from mainstem.standalone.state import is_up, load

        state = load(self.directory)
        if self.bootstrap is None and state is not None and state.own_log and not is_up(self.directory):
            hint = f"{self.how_to_start}; --bootstrap HOST:PORT names another log"
            raise NotUp(f"{self.directory}: not up; its log was at {state.bootstrap}", hint=hint)
        if self.bootstrap is None and state is None and (self.named or self.data is not None):
            hint = f"{self.how_to_start}; --data names its directory, where `up` was given one"
            raise NotUp(f"{self.directory}: expected the data of a project that is up, found none", hint=hint)
        known = state is not None and not (self.project / PROJECT_FILE).exists()
        security = load_security(Path(state.project) if known and state is not None else self.project)
        connection = Connection(self.bootstrap or (state.bootstrap if state else DEFAULT_BOOTSTRAP), security)
        probe(connection)
        return connection


def probe(
    connection: Connection,
    hint: str = "is `mainstem up` running? --bootstrap or --project says which log is meant",
) -> None:
    """Say at once that nobody listens: the clients below would try for half a minute.

    Raises:
        BrokerUnavailable: none of the addresses takes a connection.
    """
    reasons = []
    for address in connection.addresses:
        try:
            socket.create_connection(address, PROBE_SECONDS).close()
        except OSError as error:
            reasons.append(error.strerror or str(error))
        else:
            return
    raise BrokerUnavailable(f"{connection.bootstrap}: no log answers: {reasons[0]}", hint=hint)


def check_project(project: Path) -> Path:
    """`project`, if it is one: a name with a typo would mean whatever log listens at the default address.

    Raises:
        UserError: it holds no settings.
    """
    if not (project / PROJECT_FILE).is_file():
        raise UserError(
            f"--project {project}: expected a directory with a {PROJECT_FILE}, found none",
            hint="give the directory that `mainstem up` was given",
        )
    return project


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--bootstrap`, `--project` and `--data`; the command gets them as `target`."""

    @click.option(
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"Address of the log [default: the project's, else {DEFAULT_BOOTSTRAP}].",
    )
    @click.option(
        "--project",
        type=DIRECTORY,
        help="Project whose running log is meant (default: this directory).",
    )
    @click.option("--data", type=DIRECTORY, help="Its data directory, where `up` was given one.")
    @functools.wraps(command)
    def with_target(*args: Any, bootstrap: str | None, project: Path | None, data: Path | None, **kwargs: Any) -> Any:
        where = Path() if project is None else check_project(project)
        return command(*args, target=Target(bootstrap, where, data, project is not None), **kwargs)

    return with_target


class _Master(click.ParamType[str]):
    """A master that Spark knows."""

    name = "master"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from mainstem.process.session import check_master

        try:
            check_master(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def master_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--master`."""
    said = "Where Spark runs the jobs, as spark://HOST:PORT [default: `master` of the project's settings]."
    return click.option("--master", type=_Master(), metavar="URL", help=said)(command)
