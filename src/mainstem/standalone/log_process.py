"""The process of the log alone, from its settings to its end. What is slow to import is imported where it is needed."""

import asyncio
import gc
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.core import UserError
from mainstem.core.address import format_address, parse_address
from mainstem.core.config import convert, overlay_environment, read_toml, settings_from
from mainstem.core.files import why_no_directory
from mainstem.core.process import end_signals
from mainstem.standalone.tables import check_tables

if TYPE_CHECKING:
    from mainstem.broker.config import BrokerConfig
    from mainstem.log import LogConfig, StorageError


_OF_A_LOG = re.compile(r"meta\.properties|checkpoint|journal\..*|\.lock|.+-\d+")
"""Names of what is in its directory."""


def log_directory(data: Path) -> Path:
    """`data`, made where it is not there yet.

    Raises:
        UserError: it belongs to a project or is full of something else, or cannot be made.
    """
    try:
        if (data / "mainstem.json").exists():
            raise UserError(
                f"--data {data}: expected the directory of a log, found the data directory of a project",
                hint=f"its log is in {data / 'log'}; `mainstem up` runs it",
            )
        data.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in data.iterdir() if path.name != "lost+found"]
        if names and not any(map(_OF_A_LOG.fullmatch, names)):
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise UserError(
                f"--data {data}: expected the directory of a log, or an empty one, found {min(names)}{others}",
                hint="give it a directory of its own",
            )
    except OSError as error:
        reason = why_no_directory(error)
        raise UserError(
            f"--data {data}: expected a directory to write to: {reason}", hint="choose another directory"
        ) from None
    return data


def log_settings(
    listen: str | None, config_file: Path | None, environment: Mapping[str, str]
) -> "tuple[BrokerConfig, LogConfig]":
    """`[broker]` and `[log]` of a file, if there is one, under what the environment says; `listen` is above both.

    Raises:
        BadSetting: the file or the environment is wrong; the message says which.
        UserError: `listen` is no HOST:PORT.
    """
    from mainstem.broker.config import BrokerConfig
    from mainstem.log import LogConfig

    address: dict[str, str | int] = {}
    if listen is not None:
        address["host"], address["port"] = parse_address(listen, "--listen")
    file, where = {}, str(config_file or "environment")
    if config_file is not None:
        file = read_toml(config_file, hint="give --config a mainstem.toml, or leave it out")

    def load(environment: Mapping[str, str]) -> tuple[BrokerConfig, LogConfig]:
        tree = overlay_environment(file, environment)
        check_tables(tree, file, environment, where=where)
        broker = tree.get("broker", {})
        if isinstance(broker, Mapping):
            broker = {**broker, **address}
        directory = Path() if config_file is None else config_file.parent
        return (
            convert(broker, BrokerConfig, where=f"{where}: [broker]").below(directory.resolve()),
            convert(tree.get("log", {}), LogConfig, where=f"{where}: [log]"),
        )

    return settings_from(environment, load, where=where)


def run_log(data: Path, listen: str | None, config_file: Path | None, *, on_ready: Callable[[str], None]) -> None:
    """Serve the log in `data` until SIGTERM or SIGINT. `on_ready` is called with the address.

    Raises:
        UserError: of the settings or the directory.
        LogDirectoryInUse, AddressInUse: as they say.
        StorageError: the disk has failed; what was acknowledged is safe.
    """
    broker_config, log_config = log_settings(listen, config_file, os.environ)
    log_directory(data)  # which is made: where something else is wrong, nothing is
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        failure = runner.run(_serve(data, broker_config, log_config, on_ready))
    if failure is not None:
        raise failure


async def _serve(
    data: Path, broker_config: "BrokerConfig", log_config: "LogConfig", on_ready: Callable[[str], None]
) -> "StorageError | None":
    from mainstem.broker.node import serving, until_ended
    from mainstem.log import SWITCH_SECONDS

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in end_signals():
        loop.add_signal_handler(number, stop.set)
    async with serving(data, broker_config, log_config) as broker:
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.freeze()  # what was imported stays; what requests leave behind is young and goes at once
        gc.set_threshold(10_000, 20, 50)
        gc.enable()
        on_ready(format_address(broker.host, broker.port))
        return await until_ended(broker, stop)


def skip_slow_imports() -> None:
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
