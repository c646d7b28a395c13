"""Answers with parts of files in them, over sockets."""

import asyncio
import ssl
import struct
from contextlib import suppress

import pytest
import uvloop

from mainstem.broker.config import BrokerConfig
from mainstem.core import ManualClock, SystemClock
from mainstem.log import SystemDisk
from mainstem.log.disk import SystemFile
from mainstem.log.file_slice import FileSlice
from mainstem.records import Record, build_batch
from mainstem.wire import codec
from tests.log.support import joined
from tests.support.broker import running, until
from tests.support.certificates import Authority

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
SIZE = 3_000_000


def run(test, loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(test)


def request(api_key, version, message):
    body = struct.pack(">hhih", api_key, version, 1, 1) + b"c" + bytes(codec.encode_request(api_key, version, message))
    return struct.pack(">i", len(body)) + body


def fetch(offset=0, most=50_000_000):
    wanted = [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": most}]
    topics = [{"topic": "t", "partitions": wanted}]
    return request(1, 4, {"max_wait": 0, "min_bytes": 1, "max_bytes": most, "topics": topics})


METADATA = request(3, 1, {"topics": []})


async def answer(reader, api_key, version):
    frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    return codec.decode_response(api_key, version, frame, 4)


async def records(reader):
    return (await answer(reader, 1, 4)).responses[0].partitions[0].records


async def filled(broker):
    log = (await broker.topics.create("t", 1, {})).logs[0]
    for number in range(SIZE // 20_000):
        await log.append(build_batch([Record(0, 1, None, number.to_bytes(4, "big") * 5_000)]))
    return log, joined(await log.read(0, 50_000_000))


@pytest.fixture
def slices(monkeypatch):
    """What was sent from files."""
    sent = []
    send = FileSlice.send

    def counted(self, descriptor):
        sent.append((len(self), send(self, descriptor)))
        return sent[-1][1]

    monkeypatch.setattr(FileSlice, "send", counted)
    return sent


@pytest.fixture(autouse=True)
def in_memory(monkeypatch):
    """The kernel takes pages back as it likes."""
    monkeypatch.setattr(SystemFile, "is_cached", lambda *_: True)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("slow", [False, True])
def test_answers_come_whole_and_in_order(tmp_path, slices, loop, slow):
    """Among others that are asked for together; a client that is slow, and one whose topic goes away meanwhile."""

    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            _, content = await filled(broker)
            reader, writer = await asyncio.open_connection(broker.host, broker.port, limit=4_096)
            order = [0, 1, 0, 0, 1, 1, 0]
            writer.writelines(METADATA if each else fetch() for each in order)
            if slow:
                await until(lambda: any(c._writing_paused for c in broker.connections), "it is stuck")
                assert any(sent < size for size, sent in slices)
            for each in order[:3]:
                if each:
                    assert (await answer(reader, 3, 1)).brokers
                else:
                    assert await records(reader) == content
            if slow:
                await broker.topics.delete(broker.topics.get("t"))
                others = [SystemDisk().open(tmp_path / f"other-{n}", create=True) for n in range(20)]
                for other in others:
                    other.write([b"x" * SIZE], 0)
            for each in order[3:]:
                if each:
                    assert (await answer(reader, 3, 1)).brokers
                else:
                    assert await records(reader) in ((content, None, b"") if slow else (content,))
            assert broker.answer_memory.held == 0
            writer.close()

    run(check(), loop)
    assert slices


@pytest.mark.parametrize("loop", LOOPS)
def test_every_range_is_what_the_log_reads(tmp_path, slices, loop):
    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            log, content = await filled(broker)
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            for offset, most in [(0, 1), (3, 1_000_000), (7, 70_000), (140, 1_000_000), (149, 1_000_000)]:
                writer.write(fetch(offset, most))
                found = await records(reader)
                assert joined(await log.read(offset, most)).startswith(found)
                assert found in content
            got, offset = b"", 0
            while offset < log.high_watermark:
                writer.write(fetch(offset, 1_000_000))
                got += await records(reader)
                offset = len(got) * log.high_watermark // len(content)
            assert got == content
            writer.close()

    run(check(), loop)
    assert all(sent == size for size, sent in slices if size < 100_000)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_file_that_is_cut_or_fails_amid_its_answer_ends_the_connection(tmp_path, monkeypatch, loop):
    """A frame that was begun cannot be ended; the partition is told damaged when it is asked again."""

    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            log, _ = await filled(broker)
            read = FileSlice.read

            def cut(self, skipped=0):
                log.segments[0].file.truncate(1_000_000)
                return read(self, skipped)

            monkeypatch.setattr(FileSlice, "send", lambda *_: 0)
            monkeypatch.setattr(FileSlice, "read", cut)
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(fetch())
            with suppress(ConnectionError):
                assert len(await reader.read()) < SIZE
            await until(lambda: not broker.connections, "it is gone")
            assert broker.answer_memory.held == 0
            writer.close()
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            monkeypatch.setattr(SystemFile, "is_cached", lambda *_: False)
            writer.write(fetch())
            assert (await answer(reader, 1, 4)).responses[0].partitions[0].error_code == 56
            writer.close()

    run(check(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_clients_that_leave_amid_an_answer_leave_nothing(tmp_path, slices, loop):
    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            await filled(broker)
            for read in (0, 1, 100_000):
                reader, writer = await asyncio.open_connection(broker.host, broker.port, limit=4_096)
                writer.write(fetch() * 3)
                with suppress(asyncio.IncompleteReadError):
                    await reader.readexactly(read)
                writer.transport.abort()
                await until(lambda: not broker.connections, "it is gone")
                assert broker.answer_memory.held == 0

    run(check(), loop)


def test_what_is_encrypted_is_read(tmp_path, slices):
    async def check() -> None:
        authority = Authority(tmp_path)
        authority.issue("log")
        files = {"certificate_file": str(tmp_path / "log.pem"), "key_file": str(tmp_path / "log.key")}
        config = BrokerConfig(protocol="SSL", port=0, **files)
        async with running(tmp_path / "data", SystemClock(), config) as broker:
            _, content = await filled(broker)
            context = ssl.create_default_context(cafile=str(authority.file))
            reader, writer = await asyncio.open_connection(broker.host, broker.port, ssl=context)
            writer.write(fetch())
            assert await records(reader) == content
            writer.close()

    run(check(), uvloop.new_event_loop)
    assert not slices
