"""Answers with parts of files in them, over sockets."""

import asyncio
import os
import socket
import ssl
import struct
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from mainstem.broker import sending
from mainstem.broker.config import BrokerConfig
from mainstem.broker.pending import Pending
from mainstem.core import ManualClock, SystemClock
from mainstem.log import SystemDisk
from mainstem.log.disk import SystemFile
from mainstem.log.file_slice import FileSlice
from mainstem.records import Record, build_batch
from mainstem.wire import codec
from tests.log.support import joined, sequenced
from tests.support.broker import running, until
from tests.support.certificates import Authority

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
SIZE = 3_000_000


def run(test, loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(test)


def request(api_key, version, message):
    body = struct.pack(">hhih", api_key, version, 1, 1) + b"c" + b"\0" * (api_key == 1 and version >= 12)
    body += bytes(codec.encode_request(api_key, version, message))
    return struct.pack(">i", len(body)) + body


def fetch(offset=0, most=50_000_000, *, version=4, partitions=1, **fields):
    wanted = [{"partition": n, "fetch_offset": offset, "partition_max_bytes": most} for n in range(partitions)]
    topics = [{"topic": "t", "partitions": wanted}]
    fields = {"max_wait": 0, "min_bytes": 1, "max_bytes": most, "topics": topics, **fields}
    return request(1, version, fields)


METADATA = request(3, 1, {"topics": []})


async def answer(reader, api_key, version):
    frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    return codec.decode_response(api_key, version, frame, 5 if (api_key, version) >= (1, 12) and api_key == 1 else 4)


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
    monkeypatch.setattr(SystemFile, "cached_share", lambda *_: 1.0)
    monkeypatch.setattr(
        SystemFile, "read_cached", lambda file, buffer, position: os.preadv(file._descriptor, [buffer], position)
    )


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
                await until(lambda: any(c._outbox.is_stuck for c in broker.connections), "it is stuck")
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
            assert broker.fetched_memory.held == 0
            writer.close()

    run(check(), loop)
    assert slices


@pytest.mark.parametrize("loop", LOOPS)
def test_every_range_is_what_the_log_reads(tmp_path, slices, loop):
    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            log, content = await filled(broker)
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            for offset, most in [(0, 1), (3, 1_000_000), (7, 90_000), (140, 1_000_000), (149, 1_000_000)]:
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
    assert [(size, sent) for size, sent in slices if size < 100_000] == [(80_288, 80_288)]


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
            assert broker.fetched_memory.held == 0
            writer.close()
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            monkeypatch.setattr(SystemFile, "cached_share", lambda *_: 0.0)
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
                assert broker.fetched_memory.held == 0
                assert slices
                slices.clear()

    run(check(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_overtakes_what_the_transport_has(tmp_path, slices, loop):
    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            log, _ = await filled(broker)
            with socket.create_connection((broker.host, broker.port)) as client:
                client.setblocking(False)
                await until(lambda: broker.connections, "it is there")
                (connection,) = broker.connections
                transport, before, got = connection._transport, 0, b""
                while not transport.get_write_buffer_size():
                    transport.write(b"A" * 16_384)
                    before += 16_384
                got = client.recv(1 << 24)  # the socket has room again, and the transport something that goes first
                assert transport.get_write_buffer_size()
                found = await log.read_to_send(0, 1_000_000, enough=1, committed_only=False, at_least_one=True)
                chunks = [b"HEAD", *found.pieces, b"TAIL"]
                pending = Pending(1, 4, 1, "c", None, chunks=chunks, done=True, answer_size=found.size)
                connection._unanswered.append(pending)
                connection._hold_answer(pending)
                connection._flush()
                while len(got) < before + found.size + 8:
                    got += await asyncio.get_running_loop().sock_recv(client, 1 << 20)
                assert got == b"A" * before + b"HEAD" + b"".join(each.read() for each in found.pieces) + b"TAIL"
                await until(lambda: broker.fetched_memory.held == 0, "it is taken")

    run(check(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_is_slow_has_a_megabyte_of_its_answer_in_memory(tmp_path, monkeypatch, slices, loop):
    """Also when it is to be closed: no more than that is read in a turn of the loop."""
    monkeypatch.setattr(f"{__name__}.SIZE", 20_000_000)
    in_one_turn, turn, read = [], [0], FileSlice.read

    def each_turn(of):
        turn[0] += 1
        of.call_soon(each_turn, of)

    def counted(self, skipped=0):
        in_one_turn.append(turn[0])
        return read(self, skipped)

    monkeypatch.setattr(FileSlice, "read", counted)

    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            log, content = await filled(broker)
            each_turn(broker.loop)
            reader, writer = await asyncio.open_connection(broker.host, broker.port, limit=4_096)
            writer.write(fetch())
            await until(lambda: any(c._outbox.is_stuck for c in broker.connections), "it is stuck")
            (connection,) = broker.connections
            assert connection._transport.get_write_buffer_size() < 1_200_000
            assert max(size for size, _ in slices) <= 1 << 20
            assert connection.unsent_bytes > 8_000_000
            found = await records(reader)
            assert 15_000_000 < len(found) <= 16 << 20
            assert found == content[: len(found)]
            await until(lambda: broker.fetched_memory.held == 0, "it is taken")
            writer.write(fetch(len(found) * log.high_watermark // len(content)))
            assert await records(reader) == content[len(found) :]
            writer.write(fetch())
            await until(lambda: any(c._outbox.is_stuck for c in broker.connections), "it is stuck again")
            in_one_turn.clear()
            connection.close()
            assert not in_one_turn
            assert await records(reader) == found, "what was answered is sent"
            assert max(Counter(in_one_turn).values()) == 1
            assert not await reader.read()
            writer.close()

    run(check(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_comes_back_from_the_disk_while_it_waits_for_the_client_is_not_sent_unchecked(tmp_path, monkeypatch, loop):
    monkeypatch.setattr(f"{__name__}.SIZE", 20_000_000)

    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            log, content = await filled(broker)
            reader, writer = await asyncio.open_connection(broker.host, broker.port, limit=4_096)
            writer.write(fetch())
            await until(lambda: len(broker.connections) == 1, "it is connected")
            (connection,) = broker.connections

            def left():
                return [each for each in connection._outbox.unsent if isinstance(each, FileSlice)]

            await until(lambda: connection._outbox.is_stuck and left(), "it is stuck amid the file")
            (segment,) = log.segments
            last = left()[-1]
            with segment.path.open("r+b") as file:
                file.seek(last.position + 10_000)
                file.write(b"damaged")
            segment.trust.end(segment.size)
            answers = b""
            with suppress(ConnectionError):
                while more := await reader.read(1 << 20):
                    answers += more
            assert b"damaged" not in answers
            records_of_it = answers[answers.index(content[:1_000]) :]
            # What is on its way when the connection is reset may be lost: on a busy machine 60 KB were.
            assert last.position - 1_000_000 <= len(records_of_it) <= last.position, "what is right"
            assert content.startswith(records_of_it)
            assert broker.fetched_memory.held == 0
            writer.close()

    run(check(), loop)


def test_a_default_timeout_of_the_program_holds_up_nobody():
    """A broker in the process of a program shares it, and the loop waited so long for a client that took nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                ours.send(bytes(1 << 20))
        try:
            socket.setdefaulttimeout(20)
            began = time.monotonic()
            assert sending._send(ours.fileno(), b"x", more=False) == 0
        finally:
            socket.setdefaulttimeout(None)
        assert time.monotonic() - began < 10
        assert not ours.getblocking()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_has_said_that_it_is_done_and_takes_nothing_is_idle(tmp_path, monkeypatch, loop):
    monkeypatch.setattr(f"{__name__}.SIZE", 20_000_000)

    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            await filled(broker)
            _, writer = await asyncio.open_connection(broker.host, broker.port, limit=4_096)
            writer.write(fetch())
            await until(lambda: any(c._outbox.unsent for c in broker.connections), "it waits")
            (connection,) = broker.connections
            writer.write_eof()
            await until(lambda: connection.idle, "it counts for nothing")
            connection.abort()
            await until(lambda: not broker.connections, "it is gone")
            assert broker.fetched_memory.held == 0
            writer.close()

    run(check(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_whatever_goes_wrong_amid_an_answer_ends_the_connection(tmp_path, monkeypatch, loop):
    """The next answer would be taken for the rest of it."""

    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(FileSlice, "send", lambda self, descriptor: self.file.send(descriptor, 1_000, self.position))
    monkeypatch.setattr(FileSlice, "read", fails)

    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            await filled(broker)
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(fetch() + METADATA)
            with suppress(ConnectionError):
                assert len(await reader.read()) < 2_000
            await until(lambda: not broker.connections, "it is gone")
            assert broker.fetched_memory.held == 0
            writer.close()

    run(check(), loop)


def test_a_fetch_that_waits_holds_no_files(tmp_path):
    async def check() -> None:
        async with running(tmp_path, SystemClock(), BrokerConfig(port=0)) as broker:
            broker.log._files._most = 2
            for log in (await broker.topics.create("t", 20, {})).logs:
                await log.append(build_batch([Record(0, 1, None, b"v" * 70_000)]))
            _, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(fetch(partitions=20, max_wait=60_000, min_bytes=40_000_000))
            await until(lambda: broker.topics.get("t").logs[-1]._listeners, "it waits")
            assert broker.fetched_memory.held == 0
            assert sum(each.name.endswith(".log") and tmp_path in each.parents for each in _open_files()) <= 4
            writer.close()

    run(check(), uvloop.new_event_loop)


def _open_files():
    return [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


@pytest.mark.parametrize("loop", LOOPS)
def test_partitions_with_segments_and_aborted_transactions_in_one_answer(tmp_path, slices, loop):
    async def check() -> None:
        async with running(tmp_path, ManualClock(), BrokerConfig(port=0)) as broker:
            logs = (await broker.topics.create("t", 2, {})).logs
            for log in logs:
                for part in range(3):
                    for number in range(10):
                        await log.append(
                            sequenced(
                                b"%d" % log.topic_partition.partition * 20_000,
                                sequence=10 * part + number,
                                transactional=True,
                            )
                        )
                    await log.append_marker(1, 0, commit=part == 1, coordinator_epoch=0)
                    log.roll()
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            offset = 0
            while offset < logs[0].high_watermark:
                writer.write(fetch(offset, version=12, partitions=2, isolation_level=1, session_id=0, session_epoch=-1))
                answered = (await answer(reader, 1, 12)).responses[0].partitions
                for log, found in zip(logs, answered, strict=True):
                    read = await log.read(offset, 50_000_000, committed_only=True)
                    assert found.records == joined(read)
                    aborted = [(each.producer_id, each.first_offset) for each in read.aborted]
                    assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions] == aborted
                    assert bool(aborted) == (offset != 11)
                offset += 11
            writer.close()

    run(check(), loop)
    assert len(slices) == 6


@pytest.mark.parametrize("loop", LOOPS)
def test_what_is_encrypted_is_read(tmp_path, slices, loop):
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

    run(check(), loop)
    assert not slices
