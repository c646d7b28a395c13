"""A whole broker on the test's own event loop, with a clock that the test moves, and its sudden end.

async with running(directory, clock) as broker: ...
broker = await crashed(broker, elsewhere, clock)      # as after SIGKILL: what the files held at that moment
"""

import asyncio
import contextlib
import shutil
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mainstem.broker.config import BrokerConfig
from mainstem.broker.server import Broker
from mainstem.core import Clock, TopicPartition
from mainstem.log import LogConfig, LogDirectory, PartitionLog
from mainstem.records import Record, decode_header, decode_marker, decode_records, iter_spans
from mainstem.wire import codec, frames
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import joined

CONFIG = BrokerConfig(
    port=0, stop_timeout_ms=200, group_min_session_timeout_ms=100, group_max_session_timeout_ms=3_600_000
)


async def start(
    directory: Path, clock: Clock, config: BrokerConfig = CONFIG, *, disk: SimulatedDisk | None = None
) -> Broker:
    """A broker over `directory`; `stop` ends it."""
    log = await LogDirectory.open(directory, LogConfig(), clock=clock, disk=disk)
    broker = Broker(config, log, clock)
    await broker.start()
    return broker


async def stop(broker: Broker) -> None:
    await broker.stop()
    await broker.log.close()


@asynccontextmanager
async def running(directory: Path, clock: Clock, config: BrokerConfig = CONFIG) -> AsyncIterator[Broker]:
    broker = await start(directory, clock, config)
    try:
        yield broker
    finally:
        await stop(broker)


async def until(condition: Callable[[], bool], what: str, *, seconds: float = 30) -> None:
    """Wait for what comes without anybody asking."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what}") from None


async def crashed(broker: Broker, copy: Path, clock: Clock) -> Broker:
    """A broker over what the files hold at this moment; the old one ends unheard."""
    shutil.copytree(broker.log.path, copy)
    with contextlib.suppress(Exception):
        await stop(broker)
    return await start(copy, clock, broker.config)


async def restarted(broker: Broker, clock: Clock, disk: SimulatedDisk) -> Broker:
    """A broker over what is left of a simulated disk; the old one ends unheard."""
    with contextlib.suppress(Exception):
        await stop(broker)
    return await start(broker.log.path, clock, broker.config, disk=disk)


class Client:
    """One connection on the same loop; see `RawClient` for the blocking one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, broker: Broker) -> "Client":
        return cls(*await asyncio.open_connection(broker.host, broker.port))

    def send(self, api_key: int, version: int, /, **fields: Any) -> None:
        """One request."""
        body = bytes(codec.encode_request(api_key, version, fields))
        tags = b"\0" if frames.is_flexible(api_key, version) else b""
        head = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\0\1c" + tags
        self._writer.write((len(head) + len(body)).to_bytes(4, "big") + head + body)

    async def call(self, api_key: int, version: int, /, **fields: Any) -> Any:
        """One request and its answer."""
        self.send(api_key, version, **fields)
        return await self.answer(api_key, version)

    async def answer(self, api_key: int, version: int) -> Any:
        """That to the request that was sent first of those that have none."""
        tags = frames.is_flexible(api_key, version)
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = await self._reader.readexactly(size)
        start = frames.skip_tags(frame, 4) if tags and api_key != frames.API_VERSIONS else 4
        return codec.decode_response(api_key, version, frame, start)

    def close(self) -> None:
        self._writer.close()


async def committed_records(partition: PartitionLog) -> list[Record]:
    """What a reader of committed records sees, filtered as every client filters: by the list of aborted ones."""
    records: list[Record] = []
    offset = partition.log_start_offset
    while offset < partition.last_stable_offset:
        found = await partition.read(offset, 1 << 20, committed_only=True, at_least_one=True)
        whole = joined(found)
        if not whole:
            break
        waiting = sorted(found.aborted, key=lambda each: each.first_offset)
        aborted: set[int] = set()
        for span in iter_spans(whole):
            batch = whole[span.position : span.end]
            header = decode_header(batch)
            offset = span.last_offset + 1
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborted.add(waiting.pop(0).producer_id)
            if header.is_control:
                if not decode_marker(batch).commit:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                records += decode_records(batch)
    return records


def partition_of(broker: Broker, topic: str, number: int = 0) -> PartitionLog:
    return broker.partition(TopicPartition(topic, number))


def frame(api_key: int, version: int, correlation_id: int, message: dict[str, Any], flexible: bool = False) -> bytes:
    """A request in its frame."""
    head = struct.pack(">hhih", api_key, version, correlation_id, 1) + b"c" + (b"\0" if flexible else b"")
    body = head + bytes(codec.encode_request(api_key, version, message))
    return struct.pack(">i", len(body)) + body


async def who_takes_little(broker: Broker, address: str | None = None) -> socket.socket:
    """A connection whose client reads nothing, and has little room for what it does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    if address is not None:
        client.bind((address, 0))
    await asyncio.get_running_loop().sock_connect(client, (broker.host, broker.port))
    return client
