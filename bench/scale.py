"""Many of everything: partitions, producers, idle connections, groups that commit; and starts over much data.

    python -m bench.scale [--partitions 2000] [--producers 10] [--connections 1000] [--groups 10000] [--data-mb 4096]

Beside Apache Kafka: a topic of thousands of partitions, into all of which ten librdkafka producers send; connections
that asked for Metadata once and then stay open; groups of which each commits an offset several times, over ten
connections, as members without a generation (https://kafka.apache.org/protocol.html, OffsetCommit 2). Memory is the
server's resident memory; a JVM's is its heap's, which grows before it is needed.

Then ours alone: the seconds to end, and from the process's start to the first Metadata answer, with all those
partitions, with much data, and with the offsets of all those groups, each after a clean end and after SIGKILL while
the last records are only in the journal. The groups' offsets are read behind that: a commit waits for them.
"""

import os
import signal
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.clients import produce_all
from bench.report import Report
from bench.servers import (
    METADATA,
    Connection,
    Server,
    both,
    create_topic,
    delete_topic,
    framed,
    mainstem_server,
    options_of,
    table,
)

_OFFSET_COMMIT, _FIND_COORDINATOR = 8, 10
_OF_EACH_GROUP = 10  # partitions whose offsets it commits, where only the start is measured
_LOADING = (14, 15, 16)  # the coordinator is not there yet: COORDINATOR_LOAD_IN_PROGRESS and its neighbours


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def commit_request(group: str, topic: str, offset: int, partitions: int = 1) -> bytes:
    """OffsetCommit version 2 of so many partitions, by no member, kept as long as the server says."""
    body = _text(group) + struct.pack(">i", -1) + _text("") + struct.pack(">qi", -1, 1) + _text(topic)
    offsets = b"".join(struct.pack(">iq", number, offset) + _text("") for number in range(partitions))
    return framed(_OFFSET_COMMIT, 2, body + struct.pack(">i", partitions) + offsets)


def measure_partitions(server: Server, options: Any, number: int) -> None:
    before, began = server.memory_mb()[0], time.perf_counter()
    create_topic(server, f"wide-{number}", options.partitions, seconds=300)
    what = f"{options.partitions:,} partitions"
    server.add(f"{what}: created in (s)", time.perf_counter() - began)
    rate = produce_all(
        server.bootstrap,
        f"wide-{number}",
        options.records,
        100,
        handles=options.producers,
        partitions=options.partitions,
        everywhere=True,
    )
    server.add(f"{what} x {options.producers} producers (records/s)", rate)
    server.add(f"{what}: memory more (MB)", server.memory_mb()[0] - before)
    delete_topic(server, f"wide-{number}")  # the next round is to find none of it


def measure_connections(server: Server, count: int) -> None:
    before, began = server.memory_mb()[0], time.perf_counter()
    opened = [Connection(server.bootstrap) for _ in range(count)]
    for connection in opened:
        connection.send(METADATA)
    for connection in opened:
        connection.receive()
    server.add(f"{count:,} connections: opened and answered in (s)", time.perf_counter() - began)
    server.add(f"{count:,} connections: memory of one (KB)", (server.memory_mb()[0] - before) * 1024 / count)
    for connection in opened:
        connection.close()


def commit(
    connection: Connection, groups: list[str], topic: str, offset: int, partitions: int = 1, in_flight: int = 10
) -> list[int]:
    """Error codes of the answers (of the last partition), in the groups' order."""
    codes = []
    for start in range(0, len(groups), in_flight):
        some = groups[start : start + in_flight]
        connection.send(b"".join(commit_request(group, topic, offset, partitions) for group in some))
        codes += [struct.unpack(">h", connection.receive()[-2:])[0] for _ in some]
    return codes


def wait_for_coordinator(server: Server, groups: list[str], topic: str, *, seconds: float = 120) -> None:
    """Until all groups can commit: Kafka makes its topic of offsets when it is asked for a coordinator first."""
    connection, until = Connection(server.bootstrap), time.perf_counter() + seconds
    left = groups
    while left:
        connection.send(framed(_FIND_COORDINATOR, 0, _text(left[0])))
        connection.receive()
        codes = commit(connection, left, topic, 0)
        assert all(code in (0, *_LOADING) for code in codes), f"{server.name}: error codes {sorted(set(codes))}"
        left = [group for group, code in zip(left, codes, strict=True) if code]
        assert time.perf_counter() < until, f"{server.name}: {len(left)} groups without a coordinator"
        time.sleep(0.1 if left else 0)
    connection.close()


def measure_groups(server: Server, count: int, commits: int, connections: int = 10) -> None:
    create_topic(server, "committed")
    names = [f"group-{number}" for number in range(count)]
    before = server.memory_mb()[0]
    wait_for_coordinator(server, names, "committed")
    opened = [Connection(server.bootstrap) for _ in range(connections)]
    wrong: list[int] = []

    def run(number: int) -> None:
        for offset in range(1, commits + 1):
            wrong.extend(filter(None, commit(opened[number], names[number::connections], "committed", offset)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.add(f"{count:,} groups: commits/s", count * commits / (time.perf_counter() - began))
    server.add(f"{count:,} groups: memory of one (KB)", (server.memory_mb()[0] - before) * 1024 / count)
    assert not wrong, f"{server.name}: error codes {sorted(set(wrong))}"
    for connection in opened:
        connection.close()


def measure_restarts(
    directory: Path, what: str, topic: str, partitions: int, records: int, size: int
) -> dict[str, float]:
    """Fill, end and start; then write a little more, kill and start."""
    figures: dict[str, float] = {}
    with mainstem_server(directory) as (server, _):
        create_topic(server, topic, partitions)
        produce_all(server.bootstrap, topic, records, size, partitions=partitions)
        began = time.perf_counter()
    figures[f"{what}: clean end (s)"] = time.perf_counter() - began
    with mainstem_server(directory) as (server, took):
        figures[f"{what}: start after it (s)"] = took
        produce_all(server.bootstrap, topic, max(records // 20, 1), size, partitions=partitions)
        os.kill(server.process_id, signal.SIGKILL)
    with mainstem_server(directory) as (server, took):
        figures[f"{what}: start after SIGKILL (s)"] = took
        figures[f"{what}: memory after it (MB)"] = server.memory_mb()[0]
    return figures


def measure_restarts_with_groups(directory: Path, groups: int, partitions: int) -> dict[str, float]:
    """As `measure_restarts`, where each group has an offset of each partition; and until the groups have been read."""
    figures: dict[str, float] = {}
    what, names = f"{groups * partitions:,} offsets of {groups:,} groups", [f"group-{n}" for n in range(groups)]

    def commit_all(server: Server, names: list[str], offset: int) -> None:
        connection = Connection(server.bootstrap)
        assert not any(commit(connection, names, "committed", offset, partitions))
        connection.close()

    with mainstem_server(directory) as (server, _):
        create_topic(server, "committed", partitions)
        commit_all(server, names, 1)
    with mainstem_server(directory) as (server, took):
        figures[f"{what}: start after a clean end (s)"] = took
        began = time.perf_counter()
        commit_all(server, names[:1], 2)
        figures[f"{what}: until a commit is answered (s)"] = took + time.perf_counter() - began
        commit_all(server, names[: groups // 20], 2)
        os.kill(server.process_id, signal.SIGKILL)
    with mainstem_server(directory) as (server, took):
        figures[f"{what}: start after SIGKILL (s)"] = took
        figures[f"{what}: memory after it (MB)"] = server.memory_mb()[0]
    return figures


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--partitions", type=int, default=2_000)
    parser.add_argument("--producers", type=int, default=10)
    parser.add_argument("--records", type=int, default=2_000_000, help="of 100 bytes, into all partitions")
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--commits", type=int, default=5, help="of each group")
    parser.add_argument("--data-mb", type=int, default=4_096, help="in one topic, for the starts")
    parser.add_argument("--rounds", type=int, default=7, help="of producing and of starts")
    options = parser.parse_args()
    report = Report("scale", options.keep)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as name:
        directory = Path(name)
        with both(directory, options.heap_mb) as servers:
            for server in servers:  # before anything else has made its memory grow
                measure_connections(server, options.connections)
                measure_groups(server, options.groups, options.commits)
            for number in range(1, options.rounds + 1):
                for server in servers if number % 2 else servers[::-1]:
                    measure_partitions(server, options, number)
                    report.say(f"round {number}, {server.name}: {options.partitions:,} partitions done")
            for server in servers:
                server.add("memory, highest (MB)", server.memory_mb()[1])
            report.say(f"\n{table(servers)}\n")
        alone = Server("mainstem", "", 0)
        for number in range(options.rounds):
            cases = (
                (f"{options.partitions:,} partitions", options.partitions, options.records, 100),
                (f"{options.data_mb:,} MB", 1, options.data_mb * 2**20 // 10_000, 10_000),
            )
            for what, partitions, records, size in cases:
                with tempfile.TemporaryDirectory(prefix="start-", dir=directory) as place:
                    alone.add_all(measure_restarts(Path(place), what, f"start-{number}", partitions, records, size))
            with tempfile.TemporaryDirectory(prefix="start-", dir=directory) as place:
                alone.add_all(measure_restarts_with_groups(Path(place), options.groups, _OF_EACH_GROUP))
        report.say(f"{table([alone])}\n")
    print(f"raw output: {report.path}")


if __name__ == "__main__":
    main()
