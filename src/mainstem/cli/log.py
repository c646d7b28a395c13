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
    from mainstem.log.repair import Repair


class DamagedStretch(msgspec.Struct, frozen=True):
    """A stretch of a segment file that is lost, or an offset or a leader epoch that is set right."""

    path: str
    position: int
    reason: str
    first_offset: int
    end_offset: int
    lost_bytes: int
    kept_in: str | None
    markers: int
    set_right: bool


class Repaired(msgspec.Struct, frozen=True):
    """`log repair --json`: where a partition is damaged, and what was or would be lost."""

    topic: str
    partition: int
    result: Literal["no damage", "damaged", "repaired"]
    damages: list[DamagedStretch]
    open_transactions: dict[int, int]


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
    """Serve the log in directory DATA until SIGTERM, Ctrl-C, or the end of its terminal.

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


@log.command(short_help="Take what is damaged out of a partition.")
@click.option("--data", required=True, type=DIRECTORY, help="Directory of the log.")
@click.option("--yes", is_flag=True, help="Repair the partition; without it only what would be lost is told.")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@json_option
def repair(data: Path, yes: bool, topic: str, partition: int, as_json: bool) -> None:
    """Take what is damaged out of PARTITION of TOPIC; the log has to be stopped.

    What is whole stays, also behind the damage. The bytes that are taken out are kept in files beside the segments, and
    their offsets are not given to other records. The directory is brought up to date first, as by a start. Exit 1 if
    there is damage and it was not repaired.
    """
    from mainstem.core import SystemClock
    from mainstem.core.logging import configure
    from mainstem.log.repair import repair as repair_partition

    configure("log", level="critical")  # what the start finds is told below
    if not (data / "meta.properties").is_file():
        raise UserError(f"--data {data}: expected the directory of a log", hint="it holds a file meta.properties")
    where = TopicPartition(topic, partition)
    found = asyncio.run(repair_partition(data, where, clock=SystemClock(), mend=yes))
    if as_json:
        click.echo(to_json(_repaired(where, found, done=yes)))
    else:
        _tell_people(where, found, done=yes)
    if found.damages and not yes:
        raise click.exceptions.Exit(1)


def _repaired(where: TopicPartition, found: "Repair", *, done: bool) -> Repaired:
    damages = [
        DamagedStretch(
            str(each.path),
            each.position,
            each.reason,
            each.first_offset,
            each.end_offset,
            each.lost_bytes,
            str(each.kept_in) if done and each.kept_in else None,
            len(each.markers),
            bool(each.set_right),
        )
        for each in found.damages
    ]
    result: Literal["repaired", "damaged"] = "repaired" if done else "damaged"
    return Repaired(where.topic, where.partition, result if damages else "no damage", damages, found.open_transactions)


_MEANS = {
    "__mainstem_metadata": "it has topics, their settings, users, rights and quotas: what was in there has to be set again",
    "__consumer_offsets": (
        "it has the offsets that groups have committed: where the last one of a group was in there, it goes on at an"
        " earlier one, or where its auto.offset.reset says; Kafka's consumer-groups tool shows where each of them is"
    ),
    "__transaction_state": "it has how far transactions are: what was open in there is aborted when the log starts",
}
"""What the loss of records of a topic of the log's own is to people."""


def _tell_people(where: TopicPartition, found: "Repair", *, done: bool) -> None:
    if not found.damages:
        click.echo(f"{where}: no damage found")
        return
    for damage in found.damages:
        click.echo(f"{where}: {damage.path}: damaged at byte {damage.position}: {damage.reason}")
        if damage.set_right:
            click.echo(f"{'set right' if done else 'would be set right'}: nothing of it is lost")
            continue
        count = damage.end_offset - damage.first_offset
        offsets = f"offsets {damage.first_offset} to {damage.end_offset - 1} ({count})" if count else "no offsets"
        kept = f", kept in {damage.kept_in}" if done and damage.kept_in else ""
        click.echo(f"{'lost' if done else 'would be lost'}: {offsets}, {damage.lost_bytes} bytes{kept}")
        if damage.markers:
            click.echo(f"ends of transactions in there that are known: {len(damage.markers)}; they are written again")
    if where.topic in _MEANS and any(each.first_offset < each.end_offset for each in found.damages):
        click.echo(_MEANS[where.topic])
    if not done:
        click.echo("nothing was taken out, --yes does it; what is whole stays, also what follows")
    for producer_id, offset in found.open_transactions.items():
        click.echo(
            f"the transaction of producer {producer_id} is open since offset {offset}; the log aborts it when it starts,"
            " unless its transactional id goes on with it"
        )
