"""`mainstem audit`: do the books balance?"""

from collections import Counter
from typing import TYPE_CHECKING

import click

from mainstem.cli.output import json_option, to_json, to_table
from mainstem.cli.target import Target, connection_options

if TYPE_CHECKING:
    from mainstem.audit.books import Verdict


@click.command(short_help="Whether anything was lost or doubled.")
@click.argument("topics", nargs=-1)
@click.option("--complete", is_flag=True, help="Exit 1 also while a comparison is in flight.")
@json_option
@connection_options
@click.pass_context
def audit(
    ctx: click.Context,
    topics: tuple[str, ...],
    complete: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Compare what was written to TOPICS (default: all whose names do not begin with _) with what the log holds and
    what every reader says it saw.

    Exit 1 if anything is lost or doubled. In flight are a reader that has more to read, or has said nothing yet, and a
    topic that was written to meanwhile: nothing is wrong there so far.
    """
    from mainstem.audit.books import Verdict
    from mainstem.audit.report import audit as examine

    lines = examine(target.connect(), topics)
    counts = Counter(line.verdict for line in lines)
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
        counted = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
        click.echo(f"{partitions} partitions, {len(lines)} comparisons ({counted or 'none'}): {conclusion(counts)}")
    if counts[Verdict.WRONG] or (complete and counts[Verdict.IN_FLIGHT]):
        ctx.exit(1)


def conclusion(counts: Counter["Verdict"]) -> str:
    """What all lines say together; that the books balance only where nothing is left to come."""
    from mainstem.audit.books import Verdict

    if counts[Verdict.WRONG]:
        return f"{counts[Verdict.WRONG]} lines are WRONG"
    return "nothing is wrong so far" if counts[Verdict.IN_FLIGHT] else "the books balance"
