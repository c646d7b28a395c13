"""`mainstem run gateway|connect|serve|spark`: one process of a project, as `mainstem up` starts it
or as another host does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mainstem.cli.output import log_level_option
from mainstem.cli.paths import DIRECTORY
from mainstem.cli.target import master_option
from mainstem.core.logging import configure
from mainstem.core.process import die_with_parent


def process_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = log_level_option("info")(command)
    command = click.option("--data", required=True, type=DIRECTORY, help="Where state is kept.")(command)
    command = click.option("--gateway", required=True, metavar="HOST:PORT", help="Registry and collector.")(command)
    command = click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Address of the log.")(command)
    return click.argument("project", type=click.Path(path_type=Path, exists=True, file_okay=False))(command)


@click.group(short_help="Run one process of a project.")
def run() -> None:
    """Run one process of a project; `mainstem up` runs them all."""


@run.command(short_help="Registry and collector.")
@process_options
def gateway(project: Path, bootstrap: str, gateway: str, data: Path, log_level: str) -> None:
    """The schema registry and the HTTP collector of PROJECT."""
    from mainstem.standalone.processes import run_gateway

    configure("gateway", level=log_level)
    die_with_parent()
    run_gateway(project, bootstrap, gateway, data)


@run.command(short_help="Sources and destinations.")
@process_options
def connect(project: Path, bootstrap: str, gateway: str, data: Path, log_level: str) -> None:
    """The sources of PROJECT, and its destinations that need no Spark."""
    from mainstem.standalone.processes import run_connect

    configure("connect", level=log_level)
    die_with_parent()
    run_connect(project, bootstrap, gateway, data)


@run.command(short_help="A serving node.")
@click.argument("project", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Address of the log.")
@click.option("--data", required=True, type=DIRECTORY, help="Where state is kept.")
@click.option("--node", required=True, metavar="NAME", help="`answers` of [serve.answers]; `answers-2` of several.")
@log_level_option("info")
def serve(project: Path, bootstrap: str, data: Path, node: str, log_level: str) -> None:
    """A serving node of PROJECT: the views that it keeps, over HTTP."""
    from mainstem.standalone.processes import run_serve

    configure(f"serve-{node}", level=log_level)
    die_with_parent()
    run_serve(project, bootstrap, data, node)


@run.command(short_help="Jobs and the lakehouse.")
@click.option("--code", required=True, metavar="HASH", help="Of the frozen code; `mainstem job show` shows it.")
@click.option("--job", "jobs", multiple=True, metavar="NAME@VERSION", help="A job to run; once for each.")
@click.option("--tables", is_flag=True, help="Keep the lakehouse too.")
@click.option("--application", default="", metavar="NAME", help="That the jobs name; its settings hold.")
@master_option
@process_options
def spark(
    project: Path,
    bootstrap: str,
    gateway: str,
    data: Path,
    log_level: str,
    code: str,
    jobs: tuple[str, ...],
    tables: bool,
    application: str,
    master: str | None,
) -> None:
    """The jobs of PROJECT that run from one version of its code in one application, on one Spark driver."""
    from mainstem.standalone.processes import run_spark

    configure("spark", level=log_level)
    die_with_parent()
    named = [(name, version) for name, _, version in (job.rpartition("@") for job in jobs)]
    run_spark(project, bootstrap, gateway, data, code, named, tables=tables, application=application, master=master)
