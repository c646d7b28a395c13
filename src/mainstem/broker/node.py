"""A log directory and the broker over it, opened and closed together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mainstem.broker.config import BrokerConfig
from mainstem.broker.server import Broker
from mainstem.core import Clock, SystemClock
from mainstem.log import Disk, LogConfig, LogDirectory, StorageError


@asynccontextmanager
async def serving(
    data: Path,
    broker_config: BrokerConfig,
    log_config: LogConfig,
    *,
    clock: Clock | None = None,
    disk: Disk | None = None,
) -> AsyncIterator[Broker]:
    """A broker that serves the log in `data` until the context is left; then both are stopped cleanly.

    `disk` is the operating system's files, where none is given.

    Raises:
        LogDirectoryInUse: another process has the directory.
        AddressInUse: the listen address is taken, or none of this machine's.
    """
    clock = clock if clock is not None else SystemClock()
    directory = await LogDirectory.open(data, log_config, clock=clock, disk=disk)
    try:
        broker = Broker(broker_config, directory, clock)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()
    finally:
        await directory.close()


async def until_ended(broker: Broker, stop: asyncio.Event) -> StorageError | None:
    """Wait until `stop` is set; or the disk has failed, which is returned: only another start helps then."""
    async with asyncio.TaskGroup() as group:
        ends = [group.create_task(event.wait()) for event in (stop, broker.log.failed)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in ends:
            task.cancel()
    return broker.log.error
