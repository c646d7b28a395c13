"""`mainstem up PROJECT`: run a project on this machine."""

import shlex
import time
from pathlib import Path

import click

from mainstem.cli.output import log_level_option, tell
from mainstem.cli.paths import DIRECTORY
from mainstem.cli.target import data_directory, master_option, probe
from mainstem.client.connection import Connection, load_security
from mainstem.core import UserError
from mainstem.core.logging import configure
from mainstem.core.process import die_with_parent


@click.command(short_help="Run a project, and keep it running.")
@click.argument("project", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--data", type=DIRECTORY, help="Where state is kept [default: PROJECT/.mainstem].")
@click.option("--bootstrap", metavar="HOST:PORT", help="Run on this Kafka instead of a log of our own.")
@click.option("--listen", metavar="HOST:PORT", help="Address of our own log [default: 127.0.0.1:9092].")
@click.option("--gateway", metavar="HOST:PORT", help="Address of registry and collector [default: 127.0.0.1:9600].")
@master_option
@log_level_option("warning")
def up(
    project: Path,
    data: Path | None,
    bootstrap: str | None,
    listen: str | None,
    gateway: str | None,
    master: str | None,
    log_level: str,
) -> None:
    """Start the log, the gateway, sources, jobs and destinations of PROJECT, and keep them running.

    Ctrl-C stops all of them in order. Run it again, and it goes on where it was.
    """
    from mainstem.standalone import up as node
    from mainstem.standalone.state import UpState
    from mainstem.standalone.supervisor import ChildState

    if bootstrap is not None and listen is not None:
        raise UserError(
            f"--listen {listen}: expected no address for a log of our own, found --bootstrap {bootstrap} too",
            hint="give one of them: --bootstrap runs on a Kafka, --listen says where our own log listens",
        )
    configure("up", level=log_level)
    die_with_parent()
    if bootstrap is not None:
        at = Connection(bootstrap, load_security(project))
        probe(at, hint="is the address of --bootstrap right, and does a Kafka listen there that this machine reaches?")
    directory = data_directory(project, data)
    began = time.monotonic()
    shown: dict[str, tuple[str, int | None]] = {}

    def changed(children: list[ChildState]) -> None:
        for child in children:
            now = (child.state, child.pid)
            if shown.get(child.name) != now and child.state != "not started":
                shown[child.name] = now
                told = {"running": child.ready_line, "waiting": child.last_error, "failed": child.last_error}
                tell(
                    f"{time.monotonic() - began:7.1f} s  {child.name:<8} {child.state:<9} {told.get(child.state, '')}".rstrip()
                )

    def ready(state: UpState) -> None:
        tell(f"{time.monotonic() - began:7.1f} s  up: log {state.bootstrap}, gateway {state.gateway}")
        where = f"--project {shlex.quote(str(project))}" if data is None else f"--data {shlex.quote(str(data))}"
        tell(f"           logs in {directory / 'logs'}; `mainstem status {where}` shows what runs")

    def news(line: str) -> None:
        tell(f"{time.monotonic() - began:7.1f} s  {line}")

    node.up(
        project,
        directory,
        bootstrap=bootstrap,
        listen=listen,
        gateway=gateway,
        master=master,
        on_ready=ready,
        on_change=changed,
        on_news=news,
    )
