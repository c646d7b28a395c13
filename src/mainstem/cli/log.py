"""`mainstem log`: the log alone."""

import asyncio
import gc
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from mainstem.cli.output import json_option, log_level_option, to_json
from mainstem.cli.paths import DIRECTORY
from mainstem.core import TopicPartition, UserError
from mainstem.core.process import die_with_parent, say_ready

if TYPE_CHECKING:
    from mainstem.log.repair import Damage


class Repaired(msgspec.Struct, frozen=True):
    """`log repair --json`: where a partition is damaged, and what was or would be lost; null where it is whole."""

    topic: str
    partition: int
    result: Literal["no damage", "damaged", "cut"]
    path: str | None = None
    position: int | None = None
    reason: str | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    lost_bytes: int | None = None
    kept_in: str | None = None


@click.group(short_help="The log alone: start it, repair it.")
def log() -> None:
    """The log: a broker that speaks the Kafka protocol over one directory."""


@log.command(short_help="Serve the log in a directory.")
@click.option("--data", required=True, type=DIRECTORY, help="Directory of the log.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where clients connect, instead of [broker] host and port; port 0 is any. [default: 127.0.0.1:9092]",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="A mainstem.toml; its tables [broker] and [log] are read.",
)
@log_level_option("info")
def start(data: Path, listen: str | None, config_file: Path | None, log_level: str) -> None:
    """Serve the log in directory DATA until SIGTERM or Ctrl-C.

    Where the disk fails it ends, with exit code 2: what was acknowledged is safe.
    `mainstem up` starts its own log again.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # until `run_log` has begun, which has an end of its own
    gc.disable()  # while modules are imported; `run_log` enables it
    from mainstem.standalone.log_process import run_log, skip_slow_imports

    skip_slow_imports()
    from mainstem.core.logging import configure

    configure("log", level=log_level)
    die_with_parent()
    run_log(data, listen, config_file, on_ready=lambda address: say_ready(f"listening on {address}"))


@log.command(short_help="Cut a partition where it is damaged.")
@click.option("--data", required=True, type=DIRECTORY, help="Directory of the log.")
@click.option("--yes", is_flag=True, help="Cut the partition; without it only what would be lost is told.")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@json_option
def repair(data: Path, yes: bool, topic: str, partition: int, as_json: bool) -> None:
    """Cut PARTITION of TOPIC at its first damaged batch; the log has to be stopped.

    What is cut off is kept in a file beside the segments, and its offsets are not given to other records. Exit 1 if
    there is damage and it was not cut.
    """
    from mainstem.core import SystemClock
    from mainstem.core.logging import configure
    from mainstem.log.repair import repair as repair_partition

    configure("log", level="error")
    if not (data / "meta.properties").is_file():
        raise UserError(f"--data {data}: expected the directory of a log", hint="it holds a file meta.properties")
    where = TopicPartition(topic, partition)
    damage = asyncio.run(repair_partition(data, where, clock=SystemClock(), cut=yes))
    if as_json:
        click.echo(to_json(_repaired(where, damage, cut=yes)))
    else:
        _tell_people(where, damage, cut=yes)
    if damage is not None and not yes:
        raise click.exceptions.Exit(1)


def _repaired(where: TopicPartition, damage: "Damage | None", *, cut: bool) -> Repaired:
    if damage is None:
        return Repaired(where.topic, where.partition, "no damage")
    return Repaired(
        where.topic,
        where.partition,
        "cut" if cut else "damaged",
        str(damage.path),
        damage.position,
        damage.reason,
        damage.first_offset,
        damage.end_offset,
        damage.lost_bytes,
        str(damage.kept_in) if cut else None,
    )


def _tell_people(where: TopicPartition, damage: "Damage | None", *, cut: bool) -> None:
    if damage is None:
        click.echo(f"{where}: no damage found")
        return
    click.echo(f"{where}: {damage.path}: damaged at byte {damage.position}: {damage.reason}")
    count = damage.end_offset - damage.first_offset
    offsets = f"offsets {damage.first_offset} to {damage.end_offset - 1} ({count})" if count else "no offsets"
    if cut:
        click.echo(f"lost: {offsets}, {damage.lost_bytes} bytes, kept in {damage.kept_in}")
    else:
        click.echo(f"would be lost: {offsets}, {damage.lost_bytes} bytes; nothing was changed, --yes cuts them off")
