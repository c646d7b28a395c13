"""`mainstem audit`: do the books balance?"""

from pathlib import Path

import click

from mainstem.cli.output import json_option, to_json, to_table
from mainstem.cli.target import connect, connection_options


@click.command()
@click.argument("topics", nargs=-1)
@json_option
@connection_options
@click.pass_context
def audit(ctx: click.Context, topics: tuple[str, ...], as_json: bool, bootstrap: str | None, project: Path) -> None:
    """Compare what was written to TOPICS (default: all) with what the log holds and what every reader says it saw.

    Exit 1 if anything is lost or doubled.
    """
    from mainstem.audit.books import Verdict
    from mainstem.audit.report import audit as examine

    lines = examine(connect(bootstrap, project), topics)
    wrong = [line for line in lines if line.verdict is Verdict.WRONG]
    if as_json:
        click.echo(to_json(lines))
    else:
        columns = ["partition", "tier", "who", "expected", "found", "verdict", ""]
        rows = [
            (str(line.partition), line.tier, line.name, line.expected, line.found, line.verdict.value, line.detail)
            for line in lines
        ]
        click.echo(to_table(columns, rows))
        partitions = len({line.partition for line in lines})
        verdict = "the books balance" if not wrong else f"{len(wrong)} lines are WRONG"
        click.echo(f"{partitions} partitions, {len(lines)} comparisons: {verdict}")
    if wrong:
        ctx.exit(1)
