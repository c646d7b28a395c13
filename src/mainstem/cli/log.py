"""`mainstem log`: the log alone."""

import asyncio
import gc
import importlib.util
import os
import signal
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import click

from mainstem.cli.output import log_level_option
from mainstem.core import UserError
from mainstem.core.address import format_address, parse_address
from mainstem.core.config import convert, overlay_environment, read_toml, settings_from
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
    _skip_slow_imports()
    from mainstem.core.logging import configure

    configure("log", level=log_level)
    die_with_parent()
    if (data / "mainstem.json").exists():
        raise UserError(
            f"--data {data}: expected the directory of a log, found the data directory of a project",
            hint=f"its log is in {data / 'log'}; `mainstem up` runs it",
        )
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "choose another directory"
        raise UserError(f"--data {data}: expected a directory to write to: {error.strerror}", hint=hint) from None
    host, port = parse_address(listen, "--listen")
    file, where = read_toml(config_file) if config_file is not None else {}, str(config_file or "environment")
    from mainstem.broker.config import BrokerConfig
    from mainstem.log import LogConfig, StorageError

    def load(environment: Mapping[str, str]) -> tuple[BrokerConfig, LogConfig]:
        tree = overlay_environment(file, environment)
        broker = {**tree.get("broker", {}), "host": host, "port": port}
        return (
            convert(broker, BrokerConfig, where=f"{where}: [broker]"),
            convert(tree.get("log", {}), LogConfig, where=f"{where}: [log]"),
        )

    broker_config, log_config = settings_from(os.environ, load, where=where)

    async def serve() -> StorageError | None:
        from mainstem.broker.node import serving

        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with serving(data, broker_config, log_config) as broker:
            gc.freeze()  # what was imported stays; what requests leave behind is young and goes at once
            gc.set_threshold(10_000, 20, 50)
            say_ready(f"listening on {format_address(broker.host, broker.port)}")
            async with asyncio.TaskGroup() as group:
                ends = [group.create_task(event.wait()) for event in (stop, broker.log.failed)]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in ends:
                    task.cancel()
            return broker.log.error

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        failure = runner.run(serve())
    if failure is not None:
        raise failure


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


def _skip_slow_imports() -> None:
    """Start-up is part of the product, and half of it would go to what a log never uses.

    Where development packages are installed, kio imports hypothesis and structlog imports rich: 0.3 s. And crc32c reads
    its own version through importlib.metadata, 20 ms: its one function is in an extension module beside that.
    """
    for name in ("hypothesis", "rich"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: the import fails, as if not installed
    found = importlib.util.find_spec("crc32c")
    if "crc32c" not in sys.modules and found is not None and found.submodule_search_locations:
        package = types.ModuleType("crc32c")
        package.__path__ = list(found.submodule_search_locations)
        sys.modules["crc32c"] = package
        try:
            extension = importlib.import_module("crc32c._crc32c")
        except ImportError:  # laid out otherwise in some other version: the slow way works for all of them
            del sys.modules["crc32c"]
        else:
            vars(package).update({name: value for name, value in vars(extension).items() if name[:1] != "_"})
