"""The Kafka protocol by hand: one request, one answer, any version. For what no client would ever send.

with RawClient(bootstrap) as raw:
    raw.call(22, 4, transactional_id="t", transaction_timeout=10_000).producer_id
"""

import asyncio
import socket
import time
from struct import Struct
from types import TracebackType
from typing import Any

from mainstem.records import Record, build_batch
from mainstem.wire import codec, frames
from mainstem.wire.errors import Code

_HEADER = Struct(">ihhih")

RETRIED = frozenset(
    (
        Code.concurrent_transactions,
        Code.coordinator_load_in_progress,
        Code.coordinator_not_available,
        Code.not_coordinator,
        Code.not_enough_replicas,
        Code.unknown_topic_or_partition,
        Code.leader_not_available,
        Code.not_leader_or_follower,
    )
)
"""What Apache Kafka answers while it is not ready yet; clients ask again."""


class RawClient:
    """One connection."""

    def __init__(self, bootstrap: str, *, client_id: str = "raw") -> None:
        host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
        self._client_id = client_id.encode()
        self._address = (host, int(port))
        self._socket = socket.create_connection(self._address, timeout=60)
        self._correlation_id = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def another(self) -> "RawClient":
        """A second connection to the same broker."""
        return RawClient("{}:{}".format(*self._address))

    def send(self, api_key: int, version: int, /, **fields: Any) -> int:
        """Send without waiting for the answer; returns its correlation id."""
        self._correlation_id += 1
        body = bytes(codec.encode_request(api_key, version, fields))
        tags = b"\0" if frames.is_flexible(api_key, version) else b""
        size = _HEADER.size - 4 + len(self._client_id) + len(tags) + len(body)
        header = _HEADER.pack(size, api_key, version, self._correlation_id, len(self._client_id))
        self._socket.sendall(header + self._client_id + tags + body)
        return self._correlation_id

    def receive(self, api_key: int, version: int) -> Any:
        """The next answer, which is one to that API."""
        size = int.from_bytes(self._read(4), "big")
        frame = self._read(size)
        start = 4
        if api_key != frames.API_VERSIONS and frames.is_flexible(api_key, version):
            start = frames.skip_tags(frame, start)
        return codec.decode_response(api_key, version, frame, start)

    def call(self, api_key: int, version: int, /, **fields: Any) -> Any:
        """One request and its answer."""
        self.send(api_key, version, **fields)
        return self.receive(api_key, version)

    def unknown_version(self, api_key: int, version: int, *, answer_version: int) -> Any:
        """A request without a body in a version that nobody has; the answer is read in another one."""
        self._correlation_id += 1
        head = _HEADER.pack(_HEADER.size - 4 + 1, api_key, version, self._correlation_id, 0)
        self._socket.sendall(head + b"\0")
        return self.receive(api_key, answer_version)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data

    # --- what tests of transactions and groups send all the time ------------------------------------------------------

    def settled(self, api_key: int, version: int, /, *, seconds: float = 30, **fields: Any) -> Any:
        """`call`, again and again while the broker says that it is not ready."""
        until = time.monotonic() + seconds
        while True:
            answer = self.call(api_key, version, **fields)
            if not codes_of(answer) & RETRIED or time.monotonic() > until:
                return answer
            time.sleep(0.02)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        self.call(19, 5, topics=[topic], timeout=30_000)
        self.wait_for_topic(name, partitions)

    def wait_for_topic(self, name: str, partitions: int) -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:  # until the broker leads it
            found = self.call(3, 9, topics=[{"name": name}]).topics[0]
            led = [each for each in found.partitions if each.leader_id >= 0]
            if found.error_code == 0 and len(led) == partitions:
                return
            time.sleep(0.05)
        raise AssertionError(f"topic {name} is not there")

    def find_coordinators(self, *keys: str) -> None:
        """Ask for the coordinators, which makes Kafka create its internal topics, until they are there."""
        for kind in (0, 1):
            until = time.monotonic() + 30
            while time.monotonic() < until:
                answer = self.call(10, 4, key_type=kind, coordinator_keys=list(keys))
                if all(each.error_code == 0 for each in answer.coordinators):
                    break
                time.sleep(0.05)

    def init(self, transactional_id: str | None, *, version: int = 4, timeout_ms: int = 60_000, **fields: Any) -> Any:
        return self.settled(22, version, transactional_id=transactional_id, transaction_timeout=timeout_ms, **fields)

    def add(
        self, transactional_id: str, producer: tuple[int, int], topic: str, *partitions: int, version: int = 3
    ) -> Code:
        answer = self.settled(
            24,
            version,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[{"name": topic, "partitions": list(partitions or (0,))}],
        )
        (code,) = codes_of(answer) or {Code.none}
        return code

    def produce(
        self,
        topic: str,
        value: bytes,
        *,
        transactional_id: str | None = None,
        producer: tuple[int, int] = (-1, -1),
        sequence: int = -1,
        version: int = 9,
        partition: int = 0,
        settle: bool = True,
    ) -> Code:
        """One record; the code of its partition."""
        batch = build_batch(
            [Record(0, int(time.time() * 1000), b"key", value)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=transactional_id is not None,
        )
        answer = (self.settled if settle else self.call)(
            0,
            version,
            transactional_id=transactional_id,
            acks=-1,
            timeout=30_000,
            topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
        )
        return Code(answer.responses[0].partition_responses[0].error_code)

    def end(self, transactional_id: str, producer: tuple[int, int], *, commit: bool, version: int = 3) -> Any:
        return self.settled(
            26,
            version,
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )

    def wait_until_complete(self, transactional_id: str, *, seconds: float = 30) -> None:
        """Kafka answers EndTxn before the markers are written; until then it takes late batches."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            (state,) = self.call(65, 0, transactional_ids=[transactional_id]).transaction_states
            if state.transaction_state.startswith("Complete"):
                return
            time.sleep(0.02)
        raise AssertionError(f"transactional id {transactional_id} is not complete")

    def commit_in_transaction(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        group: str,
        topic: str,
        offset: int,
        *,
        version: int = 3,
        **fields: Any,
    ) -> Code:
        answer = self.settled(
            28,
            version,
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer[0],
            producer_epoch=producer[1],
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
            **fields,
        )
        return Code(answer.topics[0].partitions[0].error_code)

    def committed(self, group: str, topic: str, *, stable: bool = False) -> tuple[int, Code]:
        """(offset, code) of partition 0."""
        request = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        answer = self.call(9, 8, groups=[request], require_stable=stable)
        partition = answer.groups[0].topics[0].partitions[0]
        return partition.committed_offset, Code(partition.error_code)


def codes_of(answer: Any) -> set[Code]:
    """Every error code in an answer, however deep; without NONE."""
    found: set[Code] = set()
    if isinstance(answer, tuple):
        for each in answer:
            found |= codes_of(each)
    elif hasattr(answer, "__dataclass_fields__"):
        for name in answer.__dataclass_fields__:
            value = getattr(answer, name)
            if name.endswith("error_code"):
                found |= {Code(value)} - {Code.none}
            else:
                found |= codes_of(value)
    return found


def producer_of(answer: Any) -> tuple[int, int]:
    """(producer id, epoch) of an answer."""
    return int(answer.producer_id), int(answer.producer_epoch)


async def in_thread(function: Any, *args: Any) -> Any:
    """Blocking calls of this client from a test that is a coroutine."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def connect(log: Any) -> socket.socket:
    """A socket to an embedded log, and nobody who knows what goes over it."""
    host, _, port = log.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """The correlation id and the rest of the next one."""
    data = _read_exactly(connection, int.from_bytes(_read_exactly(connection, 4), "big"))
    return int.from_bytes(data[:4], "big"), data[4:]


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data


def is_closed(connection: socket.socket) -> bool:
    """By the other end."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
