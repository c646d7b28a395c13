"""`mainstem job versions|reprocess|diff|cutover|revert`."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mainstem.cli.output import confirm, json_option, printable, to_json, to_table
from mainstem.cli.target import NotUp, Target, connection_options
from mainstem.core import UserError

if TYPE_CHECKING:
    from mainstem.process.cutover import Moves, Waiting
    from mainstem.standalone.moved_nodes import MovedNode
    from mainstem.standalone.moved_views import MovedView


class Moved(msgspec.Struct, frozen=True):
    """`job cutover --json` and `job revert --json`."""

    moved: "list[Any]"
    views: "list[MovedView]"
    nodes: "list[MovedNode]"
    basis: str


class Reprocessed(msgspec.Struct, frozen=True):
    """`job reprocess --json`; `up`: whether `mainstem up` runs, which starts it."""

    job: str
    version: str
    code: str
    output: str
    up: bool


def _timeout_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--timeout",
        default=600.0,
        show_default=True,
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="How long to wait for what is not ready.",
    )(command)


@click.command(short_help="The versions of a job; which are ready.")
@click.argument("name")
@json_option
@connection_options
def versions(name: str, as_json: bool, target: Target) -> None:
    """Show the versions of job NAME: which readers of its name mean, and which they can be moved to.

    A version is ready once it has read all that the current one had read when this was asked.
    """
    from mainstem.standalone.job_versions import job_versions

    found = job_versions(target.connect(), target.directory, name, target.tasks)
    if as_json:
        click.echo(to_json(found))
        return
    columns = ["version", "", "ready", "behind", "code", "frozen", "writes", "batch", "lag", "rows", "determinism"]
    rows = [
        (
            each.version,
            "current" if each.current else "previous" if each.previous else "",
            each.ready,
            each.behind,
            each.code,
            None if each.frozen_at is None else f"{datetime.fromtimestamp(each.frozen_at // 1000):%Y-%m-%d %H:%M}",
            each.output,
            each.batch,
            each.lag,
            each.rows,
            each.determinism,
            f"{each.state}: {each.why}" if each.why else each.state,
        )
        for each in found
    ]
    click.echo(to_table([*columns, "state"], rows))


@click.command(short_help="Build a job anew from the code of now.")
@click.argument("name")
@click.option("--state-of", default="", metavar="VERSION", help="Go on with the state of that one, from where it is.")
@click.option("--anyway", is_flag=True, help="Also where a version runs this very code.")
@click.option("--wait", is_flag=True, help="Return when readers can be moved to it.")
@_timeout_option
@json_option
@connection_options
def reprocess(
    name: str, state_of: str, anyway: bool, wait: bool, timeout: float, as_json: bool, target: Target
) -> None:
    """Build job NAME anew beside what runs: its next version, or the first one of a job that was added, from the code
    as it is now and from the earliest records.

    The `mainstem up` that runs starts it, and all else goes on meanwhile; where none runs, the next one does.

    With --state-of it does not begin with the earliest records but where that version is, with all that it keeps:
    windows that are open, totals, what a state function knows. Its topic has what is written from there on. The
    operator that keeps the state has to be the same, in the same columns; a state function may keep further variables.
    """
    from mainstem.process.reprocess import reprocess, wait_ready
    from mainstem.standalone.state import is_up

    running = is_up(target.directory)
    try:
        connection = target.connect()
    except NotUp:
        if wait:
            raise
        connection = None
    done = reprocess(connection, target.project_of_data, target.directory, name, anyway=anyway, state_of=state_of)
    if not as_json:
        when = "now" if running else "by the next `mainstem up`"
        click.echo(
            f"job {name}: version {done.version} is started {when} from the code {done.code}, and writes topic {done.output}"
        )
    if wait and connection is not None:
        wait_ready(connection, name, done.version, _waiting(target, timeout))
        if not as_json:
            click.echo(f"job {name}: version {done.version} is ready")
    if as_json:
        click.echo(to_json(Reprocessed(done.job, done.version, done.code, done.output, running)))


@click.command(short_help="Compare what two versions of a job wrote.")
@click.argument("name")
@click.argument("left", metavar="VERSION")
@click.argument("right", metavar="VERSION")
@click.option("--topic", default="", help="Of those that the job writes; the first one unless given.")
@click.option("--limit", default=10, show_default=True, type=click.IntRange(min=0), help="Rows that differ to show.")
@_timeout_option
@json_option
@connection_options
def diff(
    name: str, left: str, right: str, topic: str, limit: int, timeout: float, as_json: bool, target: Target
) -> None:
    """Compare the outputs of two versions of job NAME at one position of their inputs: rows, and columns that differ.

    While events arrive both versions are held there for a moment; then they go on.
    """
    from mainstem.process.diff import diff

    waiting = _waiting(target, timeout)
    found = diff(target.connect(), target.directory, name, left, right, topic=topic, limit=limit, waiting=waiting)
    if as_json:
        click.echo(to_json(msgspec.to_builtins(found, str_keys=True)))
        return
    click.echo(
        f"job {name}, version {left} to {right}: {found.equal:,} rows equal, {found.added:,} added, "
        f"{found.removed:,} removed, {found.changed:,} changed"
    )
    click.echo("exact" if found.exact else f"not exact: {found.why}")
    if found.columns:
        click.echo(to_table(["column", "rows", "only in"], [(c.column, c.rows, c.only_in) for c in found.columns]))
    for each in found.examples:
        sides = [json.dumps(msgspec.to_builtins(side), ensure_ascii=False) for side in (each.left, each.right)]
        click.echo(printable(f"{each.kind} {each.key}: {sides[0]} -> {sides[1]}"))


@click.command(short_help="Move readers of jobs to other versions.")
@click.argument("name")
@click.argument("version")
@click.option("--with", "others", nargs=2, multiple=True, metavar="NAME VERSION", help="Another job in the same step.")
@_timeout_option
@click.option(
    "--at-least-once",
    is_flag=True,
    help="Where the current version does not run: plain consumers of [splices] may read some records twice.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connection_options
def cutover(
    name: str,
    version: str,
    others: tuple[tuple[str, str], ...],
    timeout: float,
    at_least_once: bool,
    yes: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Make VERSION of job NAME current: what readers of the job's name mean.

    Waits until the version has read all that the current one had read when this was asked; what is given up before that
    has changed nothing. The old version goes on, and `job revert NAME` leads back to it.
    """
    from mainstem.process.cutover import check_targets, cutover

    targets = {name: version}
    for job, wanted in others:
        if targets.setdefault(job, wanted) != wanted:
            raise UserError(f"job {job}: expected one version, found {targets[job]} and {wanted}")
    connection = target.connect()
    if not yes:
        check_targets(connection, target.directory, targets)
        asked = ", ".join(f"{job} to version {wanted}" for job, wanted in targets.items())
        confirm(f"move readers of {asked}?")
    moves = cutover(connection, target.directory, targets, _waiting(target, timeout), at_least_once=at_least_once)
    _say(moves, target, as_json=as_json)


@click.command(short_help="Move readers of jobs back.")
@click.argument("name")
@click.option("--with", "others", multiple=True, metavar="NAME", help="Another job in the same step.")
@_timeout_option
@json_option
@connection_options
def revert(name: str, others: tuple[str, ...], timeout: float, as_json: bool, target: Target) -> None:
    """Make the version of job NAME current again that was before the last cutover; reverted once more, it goes forward.

    Waits, as `job cutover` does, until that version has read as much as the one that is left.
    """
    from mainstem.process.cutover import revert

    moves = revert(target.connect(), target.directory, dict.fromkeys([name, *others]), _waiting(target, timeout))
    _say(moves, target, as_json=as_json)


def _waiting(target: Target, timeout: float) -> "Waiting":
    from mainstem.process.cutover import Waiting
    from mainstem.standalone.tasks import failed_jobs, jobs_tried_again

    return Waiting(
        timeout_seconds=timeout,
        failed=lambda: failed_jobs(target.tasks),
        tried_again=lambda: jobs_tried_again(target.tasks),
        tell=lambda line: click.echo(line, err=True),
    )


def _say(moves: "Moves", target: Target, *, as_json: bool) -> None:
    """What was moved; returns when views of lakehouses and nodes have followed, or says which have not."""
    from mainstem.standalone.moved_nodes import wait_for_nodes
    from mainstem.standalone.moved_views import wait_for_views

    try:
        views = wait_for_views(target.project_of_data, target.directory, moves.moves)
    except UserError as error:  # what was moved is moved
        click.echo(f"mainstem: views are not looked at: {error}", err=True)
        views = []
    for view in views:
        if not view.moved:
            click.echo(f"mainstem: {view.path} does not lead to {view.table} yet; it will when that is there", err=True)
    nodes = wait_for_nodes(target.connect(), moves)
    for node in nodes:
        if not node.moved:
            click.echo(f"mainstem: view {node.view} of node {node.node} has not moved yet: {node.why}", err=True)
    if as_json:
        click.echo(to_json(Moved(msgspec.to_builtins(moves.moves, str_keys=True), views, nodes, moves.basis)))
        return
    for each in moves.moves:
        click.echo(
            f"job {each.job}: version {each.version} is current, which writes topic {each.output}; "
            f"version {each.previous} goes on"
        )
    for view in views:
        if view.moved:
            click.echo(f"{view.path} leads to {view.table}")
    for node in nodes:
        if node.moved:
            click.echo(f"view {node.view} at {node.address} answers by it")
    click.echo(f"basis: {moves.basis}")
