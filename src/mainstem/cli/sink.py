"""`mainstem sink retire`."""

import click
import msgspec

from mainstem.cli.output import json_option, to_json
from mainstem.cli.target import Target, connection_options


class SinkRetired(msgspec.Struct, frozen=True, omit_defaults=True):
    """`sink retire --json`: of what the audit expects nothing any more."""

    sink: str | None = None
    node: str | None = None


@click.group(short_help="Sinks and nodes that no project has.")
def sink() -> None:
    """The sinks that have run on this log."""


@sink.command(short_help="Have the audit expect nothing more of one.")
@click.argument("name")
@click.option("--node", is_flag=True, help="NAME is a serving node: its views are expected to read nothing more.")
@json_option
@connection_options
def retire(name: str, node: bool, as_json: bool, target: Target) -> None:
    """Have the audit expect nothing of sink NAME, or of a serving node, any more. What it has written stays.

    For one that no project has: `mainstem up` does the same for one that was taken out of its project since the last
    start. One that starts again is expected to go on where it was. Refused for one that the project has.
    """
    from mainstem.standalone.declare import retire_node, retire_sink

    (retire_node if node else retire_sink)(target.connect(), name, target.project_of_data)
    if as_json:
        click.echo(to_json(SinkRetired(node=name) if node else SinkRetired(sink=name)))
    else:
        click.echo(f"{'node' if node else 'sink'} {name}: retired; what it has written stays")
