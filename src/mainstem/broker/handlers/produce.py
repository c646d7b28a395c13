"""Produce, API 0, versions 3-13; advertised from 0 (KAFKA-18659: else older librdkafka sends uncompressed).

Behaviour: batches stay opaque; each partition's batches are appended in the order of the requests, also of requests in
flight behind each other on one connection. The answer leaves when the appends are durable, for acks 1 and all alike;
acks 0 has no answer, and a failure of it closes the connection, as in Kafka.

A transactional batch is taken only into a partition that belongs to its producer's running transaction (KIP-890):
before it changes anything, the log asks `transactions.verify_or_add`. From version 12 on the partition is added here
(transactions, version 2); before, it must have been added by AddPartitionsToTxn. Where nothing is known of the
producer, a batch that adds the partition has to be its first: the one before may have been refused, and comes again.
A producer that is fenced is told that first, as in Kafka.

Internal topics take nothing, as in Kafka; there the client id `__admin_client` may, here nobody.

5: log start offset. 7: zstd (KIP-110). 8: error message, and the records that are wrong (KIP-467). 10: the current
leader with an error; never needed: there is one node. 13: topic ids.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, NoReturn
from uuid import UUID

from mainstem.broker.answers import Later
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.recompression import Growth
from mainstem.broker.security.acls import TOPIC, TRANSACTIONAL_ID, WRITE
from mainstem.broker.transactions.transaction import Producer
from mainstem.core import MainstemError, TopicPartition
from mainstem.log import (
    AppendResult,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    PartitionLog,
    RefusedBatch,
    StorageError,
    TopicConfig,
)
from mainstem.records import BatchHeader, Span, iter_spans
from mainstem.records.batch import COMPRESSION_MASK, LOW_ATTRIBUTES, TRANSACTIONAL
from mainstem.records.compression import ZSTD
from mainstem.wire import produce as wire
from mainstem.wire.errors import Code, MalformedFrame, RequestError, code_of
from mainstem.wire.produce import PartitionResult, ProduceRequest, TopicRecords

_FIRST_WITH_ZSTD: Final = 7
_FIRST_IMPLICIT_ADD: Final = 12
_FIRST_ABORTABLE: Final = 11
_RETRY: Final = (  # the coordinator is not there yet: every producer knows how to repeat after this code
    Code.concurrent_transactions,
    Code.coordinator_load_in_progress,
    Code.coordinator_not_available,
    Code.not_coordinator,
)
_MOST_SECONDS: Final = 30.0  # that a request waits for places, looks inside and transactions, whatever its client says
_MOST_PARTITIONS: Final = 1_000
"""A request names so many more than there are at most: each is an object, until it is answered."""
_ACKS: Final = (-1, 0, 1)
_TOLD_WITH_LOG_START: Final = (RefusedBatch, OutOfOrderSequence, InvalidProducerEpoch, InvalidTransactionState)
"""What the log refuses for the batch's or its producer's sake: the answer says where the log starts, as in Kafka."""


class _Waits(Exception):
    """The batch waits for its transaction or for a look inside; then the append is tried again."""

    def __init__(self, ready: Callable[[], Awaitable[Any]], *, is_ours: bool) -> None:
        """`is_ours`: it is no transaction that it waits for."""
        super().__init__()
        self.ready = ready
        self.is_ours = is_ours


class _Append:
    """One partition's batches, not appended yet."""

    __slots__ = ("config", "growth", "log", "prepared", "records", "result")

    def __init__(self, log: PartitionLog, records: memoryview, result: PartitionResult) -> None:
        self.log = log
        self.records = records
        self.result = result
        self.prepared: asyncio.Future[bytes | memoryview] | None = None
        self.config: TopicConfig | None = None
        """With which they are prepared."""
        self.growth: Growth | None = None
        """Where that may take long."""

    def refuse(self, error: MainstemError, version: int) -> None:
        """It is not appended."""
        _refuse(self.result, error, version, self.log)
        self.let_go()

    def let_go(self) -> None:
        """Of what it has grown to, as soon as no thread is at it any more."""
        prepared, self.prepared = self.prepared, None
        if prepared is None:
            self._end()
        elif prepared.done():
            self._forget(prepared)
        else:
            prepared.add_done_callback(self._forget)

    def _forget(self, prepared: "asyncio.Future[bytes | memoryview]") -> None:
        if not prepared.cancelled() and (error := prepared.exception()) is not None:
            error.__traceback__ = None  # which holds what was unpacked
        self._end()

    def _end(self) -> None:
        if self.growth is not None:
            self.growth.end()


def _result(prepared: "asyncio.Future[bytes | memoryview]") -> bytes | memoryview:
    """What a thread has made of the batches, or raise what is wrong with them. The traceback would hold what they were
    unpacked to, in a ring of references.
    """
    try:
        return prepared.result()
    except MainstemError as error:
        del prepared
        raise error.with_traceback(None) from None


def _failure(request: ProduceRequest, code: int) -> dict[str, Any]:
    return {
        "responses": [
            {
                "name": topic.name,
                "topic_id": UUID(bytes=topic.topic_id) if topic.topic_id else None,
                "partition_responses": [
                    {"index": each.index, "error_code": code, "base_offset": -1} for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


@handler(wire.API_KEY, failure=_failure, decode=wire.decode)
def produce(request: ProduceRequest, ctx: RequestContext) -> Later | Coroutine[Any, Any, Later]:
    if request.acks not in _ACKS:
        raise RequestError(Code.invalid_required_acks, f"acks {request.acks}, expected -1, 0 or 1")
    if request.transactional_id is not None:
        _check_transaction(request, ctx)
    if len(request.topics) == 1 and len(request.topics[0].partitions) == 1 and request.transactional_id is None:
        answer = _produce_one(request, ctx)
        if answer is not None:
            return answer
    named = sum(len(topic.partitions) for topic in request.topics)
    if named > _MOST_PARTITIONS and named > _MOST_PARTITIONS + sum(len(topic.logs) for topic in ctx.broker.topics):
        raise MalformedFrame(f"a Produce names {named} partitions, and there are not so many")
    appends = _Produce(request, ctx)
    if appends.start():
        return appends.answer
    return appends.finish()


def _check_transaction(request: ProduceRequest, ctx: RequestContext) -> None:
    if not ctx.may(WRITE, TRANSACTIONAL_ID, request.transactional_id or "") and any(
        each.records is not None and any(_is_transactional(each.records, span) for span in iter_spans(each.records))
        for topic in request.topics
        for each in topic.partitions
    ):
        ctx.check(WRITE, TRANSACTIONAL_ID, request.transactional_id or "")


def _produce_one(request: ProduceRequest, ctx: RequestContext) -> Later | None:
    """The usual request, to one partition and without a transaction, with as little as possible around the append.

    None if the append has to wait.
    """
    topic = request.topics[0]
    (sent,) = topic.partitions
    result = PartitionResult(sent.index)
    answer = Later()
    partition_log: PartitionLog | None = None

    def finish() -> None:
        if request.acks == 0:
            if result.code != Code.none:
                ctx.connection.close()
            answer.give(None)
        else:
            answer.give(wire.encode(ctx.version, [(topic, [result])]))

    def told(appended: AppendResult, error: StorageError | None) -> None:
        _settle(result, appended, error, ctx.version)
        finish()

    try:
        partition_log = _find(topic, sent.index, ctx)
        records = _checked(sent.records, ctx.version)
        if partition_log.takes_long(records):
            return None
        partition_log.append_and_tell(records, told, verify=_refuse_transactional)
    except MainstemError as error:
        _refuse(result, error, ctx.version, partition_log)
        finish()
    return answer


def _refuse_transactional(header: BatchHeader) -> NoReturn:
    raise RequestError(Code.invalid_txn_state, "a transactional batch in a request without transactional id")


class _Produce:
    """One request: its appends are started in order, and its answer is ready when all are durable."""

    def __init__(self, request: ProduceRequest, ctx: RequestContext) -> None:
        self._request = request
        self._ctx = ctx
        self._broker = ctx.broker
        self._results: list[tuple[TopicRecords, list[PartitionResult]]] = []
        self._open = 1  # appends that are not durable yet, and one for the starting itself
        self._todo: list[_Append] = []
        self._transactional: frozenset[TopicPartition] = frozenset()
        """Of a transaction, those that the client may write to."""
        self.answer = Later()

    def start(self) -> bool:
        """Start the appends; False if one has to wait: then `finish` goes on from there."""
        for topic in self._request.topics:
            results = [PartitionResult(each.index) for each in topic.partitions]
            self._results.append((topic, results))
            for each, result in zip(topic.partitions, results, strict=True):
                try:
                    partition_log = _find(topic, each.index, self._ctx)
                    self._todo.append(_Append(partition_log, _checked(each.records, self._ctx.version), result))
                except MainstemError as error:
                    _refuse(result, error, self._ctx.version)
        if self._request.transactional_id is not None:
            self._transactional = frozenset(
                each.log.topic_partition for each in self._todo if _begins_transactional(each.records)
            )
        try:
            self._append_all()
        except _Waits:
            return False
        return True

    async def finish(self) -> Later:
        """Wait, then go on; the connection's next request waits too, so that order is kept."""
        try:
            return await self._finish()
        finally:
            for append in self._todo:  # something went wrong
                append.let_go()

    async def _finish(self) -> Later:
        loop = self._broker.loop
        until = loop.time() + _MOST_SECONDS
        while True:
            try:
                self._append_all()
            except _Waits as waiting:
                seconds = until - loop.time()
                if not waiting.is_ours:
                    seconds = min(seconds, self._request.timeout_ms / 1000)
                try:
                    await asyncio.wait_for(waiting.ready(), seconds)
                except TimeoutError:
                    self._todo.pop(0).refuse(RequestError(Code.request_timed_out), self._ctx.version)
                except MainstemError as error:
                    self._todo.pop(0).refuse(error, self._ctx.version)
                if self._ctx.connection.closed and self._request.acks != 0:
                    self._refuse_all(RequestError(Code.request_timed_out, "its client has gone"))
            else:
                return self.answer

    def _refuse_all(self, error: MainstemError) -> None:
        """Nobody was promised anything of what is left."""
        while self._todo:
            self._todo.pop(0).refuse(error, self._ctx.version)

    def _append_all(self) -> None:
        while self._todo:
            try:
                self._append(self._todo[0])
            except MainstemError as error:
                self._todo[0].refuse(error, self._ctx.version)
            self._todo.pop(0)
        self._one_done()

    def _append(self, append: _Append) -> None:
        partition_log, result = append.log, append.result
        records: bytes | memoryview = append.records
        if append.prepared is not None and append.config is not partition_log.config:
            append.prepared = None  # the topic's settings have changed meanwhile
        if append.prepared is None and partition_log.takes_long(records):
            if append.growth is None:
                append.growth = self._broker.growth(self._ctx.client_host)
            if not append.growth.has_place:
                raise _Waits(append.growth.begin, is_ours=True)
            append.prepared, append.config = partition_log.prepare(records), partition_log.config
        if append.prepared is not None:
            if not append.prepared.done():
                raise _Waits(partial(asyncio.wait, {append.prepared}), is_ours=True)
            records = _result(append.prepared)
            assert append.growth is not None
            append.growth.came_to(max(0, len(records) - len(append.records)))

        adds = self._ctx.version >= _FIRST_IMPLICIT_ADD

        def verify(header: BatchHeader) -> None:
            transactional_id = self._request.transactional_id
            if transactional_id is None:
                _refuse_transactional(header)
            transactions = self._broker.transactions
            if adds and header.base_sequence > 0 and partition_log.producer(header.producer_id) is None:
                producer = Producer(header.producer_id, header.producer_epoch)
                transactions.check_writer(transactional_id, producer, partition_log.topic_partition)
                raise OutOfOrderSequence(
                    f"{partition_log.topic_partition}: sequence {header.base_sequence} of producer {header.producer_id}, "
                    "of whom nothing is here: expected 0"
                )
            added = transactions.verify_or_add(
                transactional_id,
                header.producer_id,
                header.producer_epoch,
                partition_log.topic_partition,
                implicit_add=adds,
                beside=self._transactional,
            )
            if added is not None:
                raise _Waits(partial(asyncio.shield, added), is_ours=False)

        def told(appended: AppendResult, error: StorageError | None) -> None:
            append.let_go()
            _settle(result, appended, error, self._ctx.version)
            self._one_done()

        self._open += 1
        try:
            partition_log.append_and_tell(records, told, verify=verify, prepared=append.prepared is not None)
        except BaseException:  # then it is not told
            self._open -= 1
            raise

    def _one_done(self) -> None:
        self._open -= 1
        if self._open:
            return
        if self._request.acks != 0:
            self.answer.give(wire.encode(self._ctx.version, self._results))
            return
        self.answer.give(None)
        if any(result.code != Code.none for _, results in self._results for result in results):
            self._ctx.connection.close()


def _settle(result: PartitionResult, appended: AppendResult, error: StorageError | None, version: int) -> None:
    """What became of an append."""
    if error is not None:
        _refuse(result, error, version)
        return
    result.base_offset = appended.base_offset
    result.log_append_time_ms = appended.log_append_time_ms
    result.log_start_offset = appended.log_start_offset


def _refuse(
    result: PartitionResult, error: BaseException, version: int, partition_log: PartitionLog | None = None
) -> None:
    code = code_of(error)
    if code in _RETRY:
        code = Code.not_enough_replicas
    elif code is Code.transaction_abortable and version < _FIRST_ABORTABLE:
        code = Code.invalid_txn_state
    result.code = code
    result.message = str(error)
    if isinstance(error, RefusedBatch):
        result.records = error.records
    if partition_log is not None and isinstance(error, _TOLD_WITH_LOG_START):
        result.log_start_offset = partition_log.log_start_offset


def _find(topic: TopicRecords, index: int, ctx: RequestContext) -> PartitionLog:
    topics = ctx.broker.topics
    if ctx.broker.authorizer is not None:
        name = topics.name_of(topic.topic_id) if topic.topic_id else topic.name
        if name is not None:
            ctx.check(WRITE, TOPIC, name)
    log = topics.partition_by_id(topic.topic_id, index) if topic.topic_id else topics.partition(topic.name, index)
    topics.check_not_internal(log.topic_partition.topic)
    return log


def _checked(records: memoryview | None, version: int) -> memoryview:
    if not records:
        raise RequestError(Code.invalid_record, "a produce request without records for a partition")
    if version < _FIRST_WITH_ZSTD and any(_is_zstd(records, span) for span in iter_spans(records)):
        raise RequestError(
            Code.unsupported_compression_type, f"zstd takes version {_FIRST_WITH_ZSTD} of Produce, found {version}"
        )
    return records


def _begins_transactional(records: memoryview) -> bool:
    return len(records) > LOW_ATTRIBUTES and bool(records[LOW_ATTRIBUTES] & TRANSACTIONAL)


def _is_transactional(records: memoryview, span: Span) -> bool:
    return bool(records[span.position + LOW_ATTRIBUTES] & TRANSACTIONAL)


def _is_zstd(records: memoryview, span: Span) -> bool:
    return records[span.position + LOW_ATTRIBUTES] & COMPRESSION_MASK == ZSTD
