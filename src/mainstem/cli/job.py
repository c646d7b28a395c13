"""`mainstem job`: list, show, retire, restore; versions, reprocess, diff, cutover and revert are in `cli.job_versions`,
run in `cli.job_run`.
"""

import click
import msgspec

from mainstem.cli import job_run, job_versions
from mainstem.cli.output import confirm, json_option, to_json, to_table
from mainstem.cli.target import Target, connection_options


class JobRetired(msgspec.Struct, frozen=True):
    """`job retire --json`: what never runs again, and the topic that stays; None: it has made none."""

    job: str
    version: str
    output: str | None


class JobRestored(msgspec.Struct, frozen=True):
    """`job restore --json`: the version that goes on, and its last batch that the log has."""

    job: str
    version: str
    batch: int


@click.group(short_help="The versions of jobs; move readers; stop one.")
def job() -> None:
    """The jobs that run, or have run, on this log."""


for command in (
    job_versions.versions,
    job_versions.reprocess,
    job_versions.diff,
    job_versions.cutover,
    job_versions.revert,
    job_run.run,
):
    job.add_command(command)


@job.command("list", short_help="Every version of every job.")
@json_option
@connection_options
def list_command(as_json: bool, target: Target) -> None:
    """Show every version of every job: what it reads and writes, its last batch, its lag, and how it is."""
    from mainstem.standalone.overview import job_states

    states = job_states(target.connect(), target.tasks)
    columns = [
        "job",
        "version",
        "current",
        "reads",
        "writes",
        "batch",
        "lag",
        "read",
        "rows",
        "each row",
        "rejected",
        "late",
        "state",
        "why",
    ]
    rows = [
        (
            s.job,
            s.version,
            s.current,
            ", ".join(s.inputs.values()),
            s.output,
            s.batch,
            s.lag,
            s.read,
            s.rows,
            s.guarantee.partition(":")[0],
            s.rejected,
            s.late,
            s.state,
            s.why,
        )
        for s in states
    ]
    click.echo(to_json(states) if as_json else to_table(columns, rows))


@job.command(short_help="The versions of one job, in full.")
@click.argument("name")
@json_option
@connection_options
def show(name: str, as_json: bool, target: Target) -> None:
    """Show job NAME: each version, the code it runs from, whether its output can be reproduced, and why."""
    from mainstem.standalone.overview import job_state

    states = job_state(target.connect(), name, target.tasks)
    if as_json:
        click.echo(to_json(states))
        return
    for state in states:
        lines = [
            ("version", f"{state.version}{' (current)' if state.current else ''}"),
            ("code", state.code),
            ("reads", ", ".join(f"{topic} as {name}" for name, topic in state.inputs.items())),
            ("writes", state.output),
            ("each row", state.guarantee),
            ("determinism", f"{state.determinism}: {state.reason}" if state.reason else state.determinism),
            ("batch", state.batch),
            ("lag", state.lag),
            ("records read", state.read),
            ("rows written", "not counted" if state.rows is None else state.rows),
            ("rows rejected", state.rejected),
            ("rows too late", state.late),
            ("records that do not decode", state.undecodable),
            ("state", f"{state.state}: {state.why}" if state.why else state.state),
            *((_figure(name), figure) for name, figure in state.figures.items()),
            *((f"failed {name}", text) for name, text in state.failure.items()),
        ]
        click.echo(to_table([state.job, ""], lines))


def _figure(name: str) -> str:
    """What a figure is called: all but one are of the last batch."""
    return "running batch ms" if name == "running_ms" else f"last {name.replace('_', ' ')}"


@job.command(short_help="Stop a version of a job for good.")
@click.argument("name")
@click.argument("version")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also where readers mean this version, or `revert` leads back to it.")
@json_option
@connection_options
def retire(name: str, version: str, yes: bool, force: bool, as_json: bool, target: Target) -> None:
    """Stop VERSION of job NAME for good. What it wrote stays; what it has not read it never reads.

    The log has to run; `mainstem up` may, and goes on with the others.
    Refused for the version that the project asks for, and without --force for the current one while another runs,
    and for the one that `revert` leads back to.
    """
    from mainstem.client.topics import list_topics
    from mainstem.process.retire import retirable, retire

    where = (target.connect(), target.directory, name, version, target.project_of_data)
    if not yes:
        output = retirable(*where, force=force).output
        confirm(f"stop job {name}@{version}, which writes topic {output}, for good?")
    output = retire(*where, force=force).output
    stays = output in list_topics(target.connect())  # a version that was only asked for has made none
    if as_json:
        click.echo(to_json(JobRetired(name, version, output if stays else None)))
        return
    left = (
        f"topic {output} stays, and gets nothing more from it"
        if stays
        else f"topic {output} was never made, or is gone"
    )
    click.echo(f"job {name}@{version}: retired; {left}")


@job.command(short_help="Make a lost checkpoint anew from the log.")
@click.argument("name")
@click.option("--version", metavar="VERSION", help="[default: the one that has none]")
@json_option
@connection_options
def restore(name: str, version: str | None, as_json: bool, target: Target) -> None:
    """Make the checkpoint of job NAME anew, where its disk was lost: it goes on behind its last commit.

    The log has to run; `mainstem up` may, and goes on with the job by itself. A job without state needs nothing but the
    log; one with state a copy of its checkpoint there, which `checkpoint_in_log` under [jobs.NAME] makes.
    """
    from mainstem.process.restore import lost_version, restore

    version = version or lost_version(target.directory, name)
    marker = restore(target.connect(), target.directory / "jobs" / f"{name}@{version}", name, version)
    if as_json:
        click.echo(to_json(JobRestored(name, version, marker.batch)))
        return
    click.echo(f"job {name}@{version}: restored; it goes on behind batch {marker.batch}")
