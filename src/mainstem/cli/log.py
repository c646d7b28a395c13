"""`mainstem log`: the log alone."""

import asyncio
from pathlib import Path

import click

from mainstem.cli.output import log_level_option
from mainstem.core import UserError
from mainstem.core.process import die_with_parent, say_ready


@click.group(short_help="The log alone: start it, repair it.")
def log() -> None:
    """The log: a broker that speaks the Kafka protocol over one directory."""


@log.command(short_help="Serve the log in a directory.")
@click.option("--data", required=True, type=click.Path(file_okay=False, path_type=Path), help="Directory of the log.")
@click.option(
    "--listen",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients connect; port 0 is any.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="A mainstem.toml; its tables [broker] and [log] are read.",
)
@log_level_option("info")
def start(data: Path, listen: str, config_file: Path | None, log_level: str) -> None:
    """Serve the log in directory DATA until SIGTERM or Ctrl-C.

    Where the disk fails it ends, with exit code 2: what was acknowledged is safe.
    `mainstem up` starts its own log again.
    """
    from mainstem.standalone.log_process import run_log, skip_slow_imports

    skip_slow_imports()
    from mainstem.core.logging import configure

    configure("log", level=log_level)
    die_with_parent()
    run_log(data, listen, config_file, on_ready=lambda address: say_ready(f"listening on {address}"))


@log.command(short_help="Cut a partition where it is damaged.")
@click.option("--data", required=True, type=click.Path(file_okay=False, path_type=Path), help="Directory of the log.")
@click.option("--yes", is_flag=True, help="Cut the partition; without it only what would be lost is told.")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
def repair(data: Path, yes: bool, topic: str, partition: int) -> None:
    """Cut PARTITION of TOPIC at its first damaged batch; the log has to be stopped.

    What is cut off is kept in a file beside the segments, and its offsets are not given to other records.
    """
    from mainstem.core import SystemClock, TopicPartition
    from mainstem.core.logging import configure
    from mainstem.log.repair import repair as repair_partition

    configure("log", level="error")
    if not (data / "meta.properties").is_file():
        raise UserError(f"--data {data}: expected the directory of a log", hint="it holds a file meta.properties")
    where = TopicPartition(topic, partition)
    damage = asyncio.run(repair_partition(data, where, clock=SystemClock(), cut=yes))
    if damage is None:
        click.echo(f"{where}: no damage found")
        return
    click.echo(f"{where}: {damage.path}: damaged at byte {damage.position}: {damage.reason}")
    count = damage.end_offset - damage.first_offset
    offsets = f"offsets {damage.first_offset} to {damage.end_offset - 1} ({count})" if count else "no offsets"
    if yes:
        click.echo(f"lost: {offsets}, {damage.lost_bytes} bytes, kept in {damage.kept_in}")
    else:
        click.echo(f"would be lost: {offsets}, {damage.lost_bytes} bytes; nothing was changed, --yes cuts them off")
        raise click.exceptions.Exit(1)
