"""The registry's state and the `_schemas` topic: what is written is read back before anybody hears of it.

Several registries may run on one log. Each follows the topic. To write, one takes the transactional id (`fence`), reads
to the end, decides on that state, and commits; a commit by anyone else in between fences it, and it starts over. So a
decision, the next free id above all, is always made on everything that was written before.

    write:  1. hold the id, or fence   2. read to the end   3. decide   4. append in a transaction
            5. wait until read back
"""

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, TransactionFailed
from mainstem.client.internal import INTERNAL_TOPICS, SCHEMAS
from mainstem.client.reader import committed_consumer
from mainstem.client.topics import end_offsets, ensure_topic
from mainstem.client.transaction import SharedTransaction
from mainstem.core import TopicPartition
from mainstem.core.clock import Clock, SystemClock
from mainstem.core.logging import get_logger
from mainstem.registry.errors import RegistryError, StoreUnavailable
from mainstem.registry.records import BARRIER_KEY
from mainstem.registry.state import Records, State

T = TypeVar("T")

TRANSACTIONAL_ID = "mainstem.registry"
PARTITION = TopicPartition(SCHEMAS, 0)
ATTEMPTS = 12  # another registry may take the id each time we do; the pauses in between double, up to a second

log = get_logger()


class Store:
    """The state, kept as the topic says, on one event loop. `state` may be read there at any time."""

    def __init__(self, connection: Connection, *, clock: Clock | None = None, timeout_seconds: float = 30.0) -> None:
        self.state = State()
        self._connection = connection
        self._clock = clock or SystemClock()
        self._timeout_seconds = timeout_seconds
        self._applied = 0  # next offset: everything below it is in `state`
        self._moved = asyncio.Condition()
        self._turn = asyncio.Lock()
        self._holds_id = False
        self._transaction: SharedTransaction | None = None
        # One thread for all blocking calls of the writer: its transaction belongs to one thread at a time.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="registry-writer")
        self._stopping = threading.Event()
        self._reader: threading.Thread | None = None

    @property
    def follows(self) -> bool:
        """Whether what is written still comes to `state`; no more once its reader has ended."""
        return self._reader is not None and self._reader.is_alive()

    async def open(self) -> None:
        """Create the topic if it is not there, and read it to its end.

        Raises:
            BrokerUnavailable, StoreUnavailable: the log does not answer.
        """
        self._loop = asyncio.get_running_loop()
        config = next(topic.config for topic in INTERNAL_TOPICS if topic.name == SCHEMAS)
        await self._blocking(partial(ensure_topic, same_settings=True), self._connection, SCHEMAS, 1, config)
        self._reader = threading.Thread(target=self._follow, name="registry-reader", daemon=True)
        self._reader.start()
        await self.catch_up()
        log.info("registry_ready", subjects=len(self.state.subjects), max_id=self.state.max_id)

    async def close(self) -> None:
        """Stop following and writing; what was answered is in the log."""
        self._stopping.set()
        if self._reader is not None:
            await asyncio.to_thread(self._reader.join)
        if self._transaction is not None:
            await self._blocking(self._transaction.close)
        self._writer.shutdown()

    async def catch_up(self) -> None:
        """Return when `state` holds everything that was in the topic when this was called."""
        ends = await self._blocking(end_offsets, self._connection, SCHEMAS)
        await self._wait_for(ends[0])

    async def write(self, decide: Callable[[State], tuple[T, Records]]) -> T:
        """Decide on the state, append the records, and return the answer once they are durable and in `state`.

        `decide` may be called several times; it must not change anything.
        Where it gives no records, nothing is written.

        Raises:
            RegistryError: what `decide` raised, on the newest state.
            StoreUnavailable: the log did not answer: whether it is stored is not known.
        """
        async with self._turn:
            try:
                answer, records = decide(self.state)
                if not records:
                    return answer  # already so
            except RegistryError:
                pass  # may be otherwise on the newest state
            try:
                return await self._write(decide)
            except (BrokerUnavailable, TransactionFailed) as error:
                raise StoreUnavailable(f"the schema could not be stored: {error}", hint=error.hint) from error

    async def _write(self, decide: Callable[[State], tuple[T, Records]]) -> T:
        for attempt in range(ATTEMPTS):
            if not self._holds_id:
                await self._wait_for(await self._blocking(self._fence))
                self._holds_id = True
            answer, records = decide(self.state)
            if not records:
                return answer
            try:
                last = await self._blocking(self._append, records)
            except TransactionFailed as error:  # nothing of it is visible; mostly another registry has fenced us
                self._holds_id = False
                log.info("registry_lost_turn", transactional_id=TRANSACTIONAL_ID, error=str(error))
                # At random, or two would fence each other for ever.
                await asyncio.sleep(random.uniform(0, min(1.0, 0.02 * 2**attempt)))
                continue
            except BaseException:
                self._holds_id = False
                raise
            await self._wait_for(last + 1)
            return answer
        raise StoreUnavailable(f"other registries took the turn {ATTEMPTS} times in a row")

    def _fence(self) -> int:
        """Nobody else writes any more; the offset up to which `state` must be, as `read_compacted` has it."""
        if self._transaction is None:
            self._transaction = SharedTransaction(self._connection, TRANSACTIONAL_ID)
        self._transaction.fence()
        return append(self._connection, SCHEMAS, [(BARRIER_KEY, None)])[PARTITION.partition]

    def _append(self, records: Records) -> int:
        """The offset of the last record, once all are committed."""
        assert self._transaction is not None
        try:
            ticket = self._transaction.begin()
            with self._transaction.writer(ticket) as writer:
                keys, values = zip(*records, strict=True)
                writer.append(PARTITION, keys, values, None, self._clock.now_ms())
                done = writer.finish()
            self._transaction.commit({partition: appended.count for partition, appended in done.items()})
        except BaseException:
            self._transaction.abort()
            raise
        return done[PARTITION].last

    async def _wait_for(self, next_offset: int) -> None:
        async def until_there() -> None:
            async with self._moved:
                await self._moved.wait_for(lambda: self._applied >= next_offset)

        try:
            await asyncio.wait_for(until_there(), self._timeout_seconds)
        except TimeoutError:
            raise StoreUnavailable(
                f"{SCHEMAS}: read up to offset {self._applied}, expected {next_offset}, in {self._timeout_seconds:.0f} s",
                hint="is a transaction of another client open on it?",
            ) from None

    async def _blocking(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._writer, call, *arguments)

    # -- the reader's thread

    def _follow(self) -> None:
        """Hand committed records to the loop, in order, for ever."""
        # Not a `CommittedReader`: it would hide the offsets behind markers, for which `catch_up` waits.
        consumer = committed_consumer(self._connection, "mainstem.registry", deleted="earliest", wait_ms=100)
        try:
            consumer.assign([ConfluentPartition(SCHEMAS, 0, 0)])
            while not self._stopping.is_set():
                batch: list[tuple[bytes | None, bytes | None]] = []
                next_offset: int = -1
                first = consumer.poll(0.1)  # `consume` alone would wait for all 500, and a write waits for us
                for message in [] if first is None else [first, *consumer.consume(500, 0)]:
                    error = message.error()
                    offset = message.offset()
                    if error is None and offset is not None:
                        batch.append((message.key(), message.value()))
                        next_offset = offset + 1
                    elif error is not None and error.code() == KafkaError._PARTITION_EOF and offset is not None:
                        next_offset = offset  # behind the markers of transactions, which are no records
                if next_offset >= 0 and not self._hand_over(batch, next_offset):
                    return
        finally:
            consumer.close()

    def _hand_over(self, batch: list[tuple[bytes | None, bytes | None]], next_offset: int) -> bool:
        if self._loop.is_closed():
            return False
        asyncio.run_coroutine_threadsafe(self._take(batch, next_offset), self._loop)
        return True

    async def _take(self, batch: list[tuple[bytes | None, bytes | None]], next_offset: int) -> None:
        async with self._moved:
            for key, value in batch:
                try:
                    self.state.apply(key, value)
                except Exception as error:  # CorruptData, or what a record that no registry writes ends in
                    # One unreadable record must not take all schemas down; it is told, and `/health` counts it.
                    log.warning("registry_record_unreadable", error=f"{type(error).__name__}: {error}", key=repr(key))
                    self.state.unreadable += 1
            self._applied = max(self._applied, next_offset)
            self._moved.notify_all()
