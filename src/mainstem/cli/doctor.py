"""`mainstem doctor`: can this machine run Mainstem, and what would be lost when it fails?"""

from pathlib import Path

import click

from mainstem.cli.output import json_option, to_json, to_table
from mainstem.cli.paths import DIRECTORY


@click.command(short_help="What this machine has of what is needed.")
@click.option("--data", type=DIRECTORY, default=".", show_default=True, help="Where state will be kept.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, data: Path, as_json: bool) -> None:
    """Check Python, Java, jars, packages, disk, file limits and the default ports of log and gateway.

    Exit 1 if a line is bad: what is installed here will not work, as Spark without a Java, or a directory that takes no
    file. An extra that is not installed is a warning: the log alone needs none, and `up` refuses what needs it.
    """
    from mainstem.standalone.doctor import examine

    findings = examine(data)
    if as_json:
        click.echo(to_json(findings))
    else:
        click.echo(to_table(["", "what", "found"], [(f.verdict, f.what, f.found) for f in findings]))
    if any(finding.verdict == "bad" for finding in findings):
        ctx.exit(1)
