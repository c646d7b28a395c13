"""Requests that neither aiokafka nor librdkafka offers, over aiokafka's connections.

aiokafka's connection brings TLS, SASL and request timeouts; the bodies are encoded by kio, in the versions that Kafka
4.3 speaks. Why not aiokafka's sender: docs/decisions/shared-identity-transaction.md.
"""

import asyncio
import io
from collections.abc import Awaitable
from enum import IntEnum
from functools import cache
from struct import pack
from typing import Any, NamedTuple

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaError

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, UnknownTopic
from mainstem.core import TopicPartition
from mainstem.wire.kafka import EntityType, ErrorCode

REQUEST_TIMEOUT_MS = 30_000
_GOOD_BYE_SECONDS = 1.0
CLIENT_ID = "mainstem"


class Api(IntEnum):
    """The requests that are sent from here, by Kafka's number."""

    PRODUCE = 0
    FETCH = 1
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


class Coordinator(IntEnum):
    """The two kinds of coordinators, by the key type of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Cluster:
    """Connections to the brokers of one cluster, opened when they are first needed. Belongs to one event loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[Coordinator, str], int] = {}
        self._connections: dict[tuple[str, int], AIOKafkaConnection] = {}
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self.features: dict[str, int] = {}  # finalized by the cluster; known after `open`

    async def open(self) -> None:
        """Connect to the first bootstrap server that answers and learn what the cluster can do."""
        # One may end before it answers: then another is asked.
        for attempt in range(1 + len(self._connection.addresses)):
            try:
                response = await self.call(
                    await self._any(), Api.API_VERSIONS, 3, client_software_name=CLIENT_ID, client_software_version="0"
                )
            except BrokerUnavailable:
                if attempt == len(self._connection.addresses):
                    raise
            else:
                self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}
                return

    async def close(self) -> None:
        """Close every connection; one whose broker takes nothing within a second is cut off."""
        for connection in self._connections.values():
            writer, closed = connection._writer, connection.close()  # once it is closed nothing leads to its transport
            if closed is not None:
                await asyncio.wait([closed], timeout=_GOOD_BYE_SECONDS)
            if writer is not None:
                writer.transport.abort()
        self._connections.clear()

    async def node(self, node_id: int) -> AIOKafkaConnection:
        """The connection to a broker by its id."""
        if node_id not in self._addresses:
            raise BrokerUnavailable(f"broker {node_id}: address unknown")
        return await self._connect(self._addresses[node_id])

    async def leader(self, partition: TopicPartition) -> AIOKafkaConnection:
        """The connection to the leader of a partition, as far as is known; `forget_leaders` after a refusal.

        Raises:
            UnknownTopic: the topic or the partition does not exist.
            BrokerUnavailable: it has no leader now, or its leader does not answer.
        """
        if partition not in self._leaders:
            await self._learn(partition.topic)
        if partition not in self._leaders:
            raise BrokerUnavailable(f"{partition}: no leader")
        return await self.node(self._leaders[partition])

    def forget_leaders(self, topic: str) -> None:
        """Ask for the leaders of all partitions of `topic` again before they are next used."""
        for partition in [known for known in self._leaders if known.topic == topic]:
            del self._leaders[partition]

    async def coordinator(self, kind: Coordinator, key: str) -> AIOKafkaConnection:
        """The connection to the coordinator of a group or a transactional id.

        Asking for it is also what makes a fresh cluster create the coordinator's topic.

        Raises:
            BrokerUnavailable: there is none yet, or it does not answer.
        """
        if (kind, key) not in self._coordinators:
            response = await self.call(
                await self._any(), Api.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=(key,)
            )
            found = response.coordinators[0]
            if found.error_code is not ErrorCode.none:
                raise BrokerUnavailable(f"coordinator of {key}: {found.error_code.name}")
            self._addresses[found.node_id] = (found.host, found.port)
            self._coordinators[kind, key] = found.node_id
        return await self.node(self._coordinators[kind, key])

    def forget_coordinator(self, kind: Coordinator, key: str) -> None:
        """Ask who coordinates the group or transactional id again before it is next used."""
        self._coordinators.pop((kind, key), None)

    async def call(self, connection: AIOKafkaConnection, api: Api, version: int, **fields: Any) -> Any:
        """Send one request and wait for its answer, a kio entity.

        Raises:
            BrokerUnavailable: the connection broke or no answer came in time; the request may have been carried out.
        """
        return await self.post(connection, api, version, **fields)

    def post(self, connection: AIOKafkaConnection, api: Api, version: int, **fields: Any) -> Awaitable[Any]:
        """Send one request now; await the result later, as `call`. Answers come in the order of the requests."""
        try:
            sent = connection.send(_Request(api, version, fields))
        except (KafkaError, OSError) as error:
            raise BrokerUnavailable(f"{api.name}: {error}") from error
        return self._answer(connection, api, sent)

    async def _answer(self, connection: AIOKafkaConnection, api: Api, sent: Awaitable[Any]) -> Any:
        try:
            return await sent
        except TimeoutError as error:
            # A broker that hangs: the next try opens a connection, or asks another one.
            writer = connection._writer
            connection.close()
            if writer is not None:  # what it did not take would keep the transport open
                writer.transport.abort()
            raise BrokerUnavailable(f"{api.name}: no answer within {REQUEST_TIMEOUT_MS} ms") from error
        except (KafkaError, OSError) as error:
            raise BrokerUnavailable(f"{api.name}: no answer: {error!r}") from error

    async def _learn(self, topic: str) -> None:
        topics = (nested(Api.METADATA, 12, "MetadataRequestTopic")(topic_id=None, name=topic),)
        fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        response = await self.call(await self._any(), Api.METADATA, 12, topics=topics, **fields)
        self._addresses |= {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        found = response.topics[0]
        if found.error_code in (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception):
            raise UnknownTopic(f"topic {topic}: no such topic")
        for partition in found.partitions:
            if partition.leader_id >= 0 and partition.error_code is not ErrorCode.leader_not_available:
                self._leaders[TopicPartition(topic, partition.partition_index)] = partition.leader_id

    async def _any(self) -> AIOKafkaConnection:
        """An open connection, else one to the first broker that answers: bootstrap servers, then brokers once seen."""
        for connection in self._connections.values():
            if connection.connected():
                return connection
        failure: Exception | None = None
        for address in dict.fromkeys((*self._connection.addresses, *self._addresses.values())):
            try:
                return await self._connect(address)
            except BrokerUnavailable as error:
                failure = error
        raise BrokerUnavailable(
            f"{self._connection.bootstrap}: no broker answers: {failure}", hint="is the log running?"
        )

    async def _connect(self, address: tuple[str, int]) -> AIOKafkaConnection:
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is not None and connection.connected():
                return connection
            host, port = address
            security = self._connection.aiokafka()
            opened = AIOKafkaConnection(
                host, port, client_id=CLIENT_ID, request_timeout_ms=REQUEST_TIMEOUT_MS, **security
            )
            try:
                await opened.connect()
            except (KafkaError, OSError, TimeoutError) as error:
                if opened._protocol is not None:  # a refused password: the loop may be closed soon, the socket first
                    await asyncio.wait([opened._closed_fut], timeout=_GOOD_BYE_SECONDS)
                raise BrokerUnavailable(f"{host}:{port}: {error!r}") from error
            self._connections[address] = opened
            return opened


@cache
def _schemas(api: int, version: int) -> tuple[type[Any], Any, Any, bool]:
    """The class of a request, its writer, the reader of its answer, and whether both are flexible."""
    from kio.index import load_request_schema, load_response_schema
    from kio.serial import entity_reader, entity_writer

    request: Any = load_request_schema(api, version)
    response: Any = load_response_schema(api, version)
    return request, entity_writer(request), entity_reader(response), request.__flexible__


@cache
def nested(api: int, version: int, name: str) -> Any:
    """A struct inside of a request, e.g. `TopicProduceData`."""
    from kio.index import load_payload_module

    return getattr(load_payload_module(api, version, EntityType.request), name)


class _AnswerHeader(NamedTuple):
    correlation_id: int


class _Bytes(bytes):
    def encode(self) -> bytes:
        return self


class _Request:
    """One kio request in the shape that `AIOKafkaConnection.send` expects of a request and of its answer's type."""

    def __init__(self, api: int, version: int, fields: dict[str, Any]) -> None:
        self._api, self._version = api, version
        entity, write, self._read, self._flexible = _schemas(api, version)
        body = io.BytesIO()
        write(body, entity(**fields))
        self._body = body.getvalue()
        self.RESPONSE_TYPE = self

    def prepare(self, versions: dict[int, tuple[int, int]]) -> "_Request":
        lowest, highest = versions.get(self._api, (0, -1))
        if not lowest <= self._version <= highest:
            raise BrokerUnavailable(
                f"{Api(self._api).name}: version {self._version} is needed, the broker has {lowest} to {highest}",
                hint="Mainstem needs Apache Kafka 3.6 or newer",
            )
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> _Bytes:
        name = client_id.encode()
        header = pack(">hhih", self._api, self._version, correlation_id, len(name)) + name
        return _Bytes(header + b"\0" if self._flexible else header)

    def encode(self) -> bytes:
        return self._body

    def parse_response_header(self, buffer: io.BytesIO) -> _AnswerHeader:
        correlation_id = int.from_bytes(buffer.read(4), "big")
        if self._flexible and self._api != Api.API_VERSIONS:  # its answer must be readable before versions are known
            buffer.read(1)  # no tags
        return _AnswerHeader(correlation_id)

    def decode(self, buffer: io.BytesIO) -> Any:
        return self._read(buffer.getbuffer()[buffer.tell() :].tobytes(), 0)[0]

    def __repr__(self) -> str:
        return f"{Api(self._api).name} v{self._version}"
