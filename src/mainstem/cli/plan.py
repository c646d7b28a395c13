"""`mainstem plan PROJECT`: what the project means and what running it would change; nothing is run."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mainstem.cli.output import json_option, to_json, to_table
from mainstem.cli.paths import DIRECTORY
from mainstem.cli.target import data_directory, probe, up_command
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.core.logging import configure

if TYPE_CHECKING:
    from mainstem.process.plan import PlannedTopic


@click.command(short_help="What a project means and would change.")
@click.argument("project", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--data", type=DIRECTORY, help="Where state is kept [default: PROJECT/.mainstem].")
@click.option("--bootstrap", metavar="HOST:PORT", help="The Kafka that it is to run on [default: where it ran last].")
@json_option
def plan(project: Path, data: Path | None, bootstrap: str | None, as_json: bool) -> None:
    """Show the graph of PROJECT: topics with their columns, who writes and reads them, jobs, whether their outputs can
    be reproduced, and what would change.

    Where the project is up, or runs on a Kafka, the topics and schemas there are asked for too. Its settings are
    checked as `up` does it.
    """
    from mainstem.standalone.planned import planned_now
    from mainstem.standalone.state import is_up, load

    configure("plan", level="error")
    directory = data_directory(project, data)
    state = load(directory)
    if bootstrap is not None:
        probe(Connection(bootstrap), hint="is the address of --bootstrap right?")
    elif state is not None and not state.own_log and not is_up(directory):
        with contextlib.suppress(BrokerUnavailable):  # the plan says what is not known for it
            probe(Connection(state.bootstrap))
            bootstrap = state.bootstrap
    planned = planned_now(project, directory, bootstrap)
    if as_json:
        click.echo(to_json(planned))
        return
    click.echo(to_table(["project", planned.project], [("code", planned.code)]) + "\n")
    topics = [
        (t.name, t.kind, ", ".join(t.key), t.partitions, t.exists, t.writer, ", ".join((*t.readers, *t.destinations)))
        for t in planned.topics
    ]
    click.echo(to_table(["topic", "kind", "key", "partitions", "exists", "written by", "read by"], topics) + "\n")
    click.echo(to_table(["topic", "columns"], [(t.name, columns_of(t)) for t in planned.topics]) + "\n")
    jobs = [
        (
            j.name,
            j.version,
            ", ".join(j.inputs.values()),
            j.output,
            j.state,
            j.determinism or "not known yet",
            j.keeps_order,
            j.slices,
            j.guarantee.partition(":")[0],
            j.place,
        )
        for j in planned.jobs
    ]
    columns = [
        "job",
        "version",
        "reads",
        "writes",
        "state",
        "determinism",
        "keeps order",
        "slices",
        "each row",
        "declared at",
    ]
    click.echo(to_table(columns, jobs) + "\n")
    for job in planned.jobs:
        if job.reason:
            click.echo(": ".join(filter(None, (job.name, job.determinism, job.reason))))
        if ":" in job.guarantee:
            click.echo(f"{job.name}: each row comes {job.guarantee}")
        if job.order_lost_by:
            click.echo(f"{job.name}: does not keep the order of a key's rows: {job.order_lost_by}")
    for line in planned.warnings:
        click.echo(line)
    if not planned.complete:
        start = up_command(project, directory, state)
        click.echo(f"the log does not run, so which topics and schemas there are is not known: `{start}`")
    click.echo(
        "\n".join(planned.changes) or ("nothing would change" if planned.complete else "no other change is known")
    )


def columns_of(topic: "PlannedTopic") -> str:
    """`number bigint, amount double`."""
    if topic.columns is None:
        return "not known yet"
    return ", ".join(f"{column.name} {column.type}" for column in topic.columns)
