"""`mainstem job run`."""

from datetime import UTC, datetime

import click

from mainstem.cli.output import json_option, to_json
from mainstem.cli.target import NotUp, Target, connection_options, master_option
from mainstem.core.logging import configure


class _Time(click.ParamType[int]):
    """ISO 8601, in UTC unless it says otherwise; as ms since 1970."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            time = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"expected a date or a time like 2026-11-27 or 2026-11-27T10:30Z, found {value!r}", param, ctx)
        return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


@click.command(short_help="Run a job once, over a slice.")
@click.argument("name")
@click.option(
    "--from", "start", type=_Time(), required=True, metavar="TIME", help="The slice has records from then on,"
)
@click.option("--to", "end", type=_Time(), required=True, metavar="TIME", help="and before then, by their timestamps.")
@click.option("--version", metavar="VERSION", help='[default: "slices"; of a job that runs "on demand", that one]')
@master_option
@json_option
@connection_options
def run(
    name: str, start: int, end: int, version: str | None, master: str | None, as_json: bool, target: Target
) -> None:
    """Run job NAME over the records of its streams from one TIME to another, and exit.

    A TIME is a date or a time of ISO 8601, in UTC unless it says otherwise. All that comes of a slice is written in
    one transaction. A slice that is there is not run again, and one that overlaps it is refused. Slices know nothing of
    each other: `mainstem plan` says of which jobs they are together what the job makes when it runs by itself.
    """
    from mainstem.process.slices import Slice
    from mainstem.standalone.slices import run_slice
    from mainstem.standalone.state import load

    if start >= end:
        raise click.BadParameter("expected a time after that of --from", param_hint="--to")
    configure("job-run", level="error")
    connection, state = target.connect(), load(target.directory)
    if state is None:
        raise NotUp(
            f"{target.directory}: expected the data of a project that is up, found none", hint=target.how_to_start
        )
    done = run_slice(
        target.project_of_data,
        target.directory,
        connection,
        state.gateway,
        name,
        Slice(start, end),
        version=version,
        master=master,
        tell=lambda line: click.echo(line, err=True),
    )
    if as_json:
        click.echo(to_json(done))
    elif done.skipped:
        click.echo(f"job {name}: slice {done.slice} is there already")
    else:
        read, written = (
            ", ".join(f"{n:,} of {topic}" for topic, n in each.items()) or "none" for each in (done.read, done.written)
        )
        click.echo(f"job {name}: slice {done.slice}: records read: {read}; written: {written}")
