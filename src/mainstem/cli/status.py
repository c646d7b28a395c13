"""`mainstem status`: what runs, and how far it is."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mainstem.cli.output import json_option, to_json, to_table
from mainstem.cli.target import Target, connection_options
from mainstem.client.errors import BrokerUnavailable
from mainstem.connect.sources.postgres_pgoutput import format_lsn

if TYPE_CHECKING:
    from mainstem.standalone.supervisor import ChildState


@click.command(short_help="What runs, and how far it is.")
@json_option
@connection_options
@click.pass_context
def status(ctx: click.Context, as_json: bool, target: Target) -> None:
    """Show the processes of a project, its sources, jobs, destinations and views, and how far each is.

    The lag of a job, a destination or a view is in offsets; a source of a file is so many bytes behind. With --json, a
    source's position is as the source keeps it.

    Exit 1 if `mainstem up` does not run for this project (and no --bootstrap was given), a process of it is down, or a
    source, sink, job or view has failed or fails again and again. One that is idle waits for its input, as it should.
    """
    from mainstem.standalone.overview import Overview, overview
    from mainstem.standalone.state import is_up
    from mainstem.standalone.tasks import is_failing

    data = target.directory
    if target.bootstrap is None and not is_up(data):
        if as_json:
            click.echo(to_json(Overview(up=False)))
        click.echo(f"{data}: not up; {target.how_to_start}", err=True)
        ctx.exit(1)
    try:
        connection = target.connect()
    except BrokerUnavailable as error:
        if target.bootstrap is not None:
            raise
        click.echo(f"mainstem: {error}", err=True)  # the processes are there to be seen: one of them may be why
        connection = None
    seen = overview(data, connection)
    children = seen.node.children if seen.node else []
    if as_json:
        click.echo(to_json(seen))
    else:
        rows = [(c.name, c.state, None if c.pid is None else str(c.pid), c.restarts, _said(c)) for c in children]
        tables: dict[tuple[str, ...], Sequence[Sequence[Any]]] = {
            ("process", "state", "pid", "restarts", "ready line, or why it does not run"): rows,
            ("source, sink, job or view", "state", "failures", "why"): [
                (t.name, t.state, t.failures, t.told) for t in seen.tasks
            ],
            ("source", "records", "bytes behind", "position"): [
                (s.source, s.records, s.behind_bytes, position(s.position)) for s in seen.sources
            ],
            ("job", "version", "batch", "lag", "rows", "late"): [
                (j.job, j.version, j.batch, j.lag, j.rows, j.late) for j in seen.jobs
            ],
            ("reader", "topic", "lag", "rows", "undecodable"): [
                (r.reader, r.topic, r.lag, r.rows, r.quarantined) for r in seen.readers
            ],
            ("view", "node", "kind", "of", "position", "lag", "rows", "state", "why"): [
                (
                    v.view,
                    v.node,
                    v.kind,
                    ", ".join(v.topics.values()),
                    sum(sum(each.values()) for each in v.position.values()),
                    v.lag,
                    v.rows,
                    v.state,
                    v.why,
                )
                for v in seen.views
            ],
        }
        told = [to_table(columns, rows) for columns, rows in tables.items() if rows]
        click.echo("\n\n".join(told) or "no source, job, destination or view is known")
        if seen.disk is not None and seen.disk.is_low:
            click.echo(f"\ndisk: {seen.disk}")
    if connection is None or any(child.state != "running" for child in children) or any(map(is_failing, seen.tasks)):
        ctx.exit(1)


def position(value: Any) -> str:
    """Where a source is, for people: `streaming, lsn 0/16B3748` of a database, `byte 40,960` of a file,
    `version 2, offset 5,120` of a splice.
    """
    if isinstance(value, dict) and value.keys() >= {"inode", "position"}:
        return f"byte {value['position']:,}{' of a file that has ended' if value.get('ended') else ''}"
    if isinstance(value, dict) and value.keys() >= {"version", "output", "offsets"}:  # of a splice; without its books
        to = f", moves to version {value['move']['version']}" if value.get("move") else ""
        return f"version {value['version']}, offset {sum(value['offsets'].values()):,}{to}"
    if isinstance(value, dict) and value.keys() >= {"state", "lsn"}:
        return f"{value['state']}, lsn {format_lsn(value['lsn'])}"
    if isinstance(value, dict):
        # The ids of the topics that it has written are there for the books.
        return ", ".join(f"{name} {position(each)}" for name, each in value.items() if name != "topics")
    return f"[{', '.join(map(position, value))}]" if isinstance(value, list) else str(value)


def _said(child: "ChildState") -> str:
    """The line with which it said that it serves; where it does not run, why.

    An error that it has recovered from is history, and stays in the JSON.
    """
    return child.last_error if child.state in ("starting", "waiting", "failed") else child.ready_line
