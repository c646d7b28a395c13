"""`mainstem sink retire`."""

import click
import msgspec

from mainstem.cli.output import json_option, to_json
from mainstem.cli.target import Target, connection_options


class SinkRetired(msgspec.Struct, frozen=True):
    """`sink retire --json`: of what the audit expects nothing any more."""

    sink: str


@click.group(short_help="Sinks that no project has any more.")
def sink() -> None:
    """The sinks that have run on this log."""


@sink.command(short_help="Have the audit expect nothing more of one.")
@click.argument("name")
@json_option
@connection_options
def retire(name: str, as_json: bool, target: Target) -> None:
    """Have the audit expect nothing of sink NAME any more. What it has written stays.

    For a sink that no project has: `mainstem up` does the same for one that was taken out of its project since the last
    start. One that starts again is expected to go on where it was. Refused for a sink that the project has.
    """
    from mainstem.standalone.declare import retire_sink

    retire_sink(target.connect(), name, target.project_of_data)
    click.echo(to_json(SinkRetired(name)) if as_json else f"sink {name}: retired; what it has written stays")
