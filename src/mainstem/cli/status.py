"""`mainstem status`: what runs, and how far it is."""

from pathlib import Path

import click

from mainstem.cli.output import json_option, to_json, to_table
from mainstem.cli.target import connect, connection_options, data_directory


@click.command()
@json_option
@connection_options
@click.pass_context
def status(ctx: click.Context, as_json: bool, bootstrap: str | None, project: Path) -> None:
    """Show the processes of a project, its sources, jobs and destinations, and the lag of each.

    Exit 1 if `mainstem up` does not run for this project (and no --bootstrap was given), a process of it is down, or a
    source or sink has failed.
    """
    from mainstem.standalone.overview import overview
    from mainstem.standalone.state import is_up

    data = data_directory(project)
    if bootstrap is None and not is_up(data):
        click.echo(f"{data}: not up; `mainstem up {project}` starts it", err=True)
        ctx.exit(1)
    seen = overview(data, connect(bootstrap, project))
    children = seen.node.children if seen.node else []
    if as_json:
        click.echo(to_json(seen))
    else:
        rows = [(c.name, c.state, c.pid, c.restarts, c.last_error or c.ready_line) for c in children]
        tables = [
            to_table(["process", "state", "pid", "restarts", "said"], rows),
            to_table(
                ["source or sink", "state", "failures", "error"],
                [(t.name, t.state, t.failures, f"{t.error} ({t.hint})" if t.hint else t.error) for t in seen.tasks],
            ),
            to_table(["source", "records", "position"], [(s.source, s.records, str(s.position)) for s in seen.sources]),
            to_table(
                ["job", "version", "batch", "lag", "rows"],
                [(j.job, j.version, j.batch, j.lag, j.rows) for j in seen.jobs],
            ),
            to_table(["reader", "topic", "lag", "rows"], [(r.reader, r.topic, r.lag, r.rows) for r in seen.readers]),
        ]
        click.echo("\n\n".join(tables))
    if any(child.state != "running" for child in children) or any(task.state == "failed" for task in seen.tasks):
        ctx.exit(1)
