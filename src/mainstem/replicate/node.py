"""Drives a replica: reads the partition, appends what the replica wants, and wakes whoever waits for an answer.

All of it happens on one event loop. Nobody polls: an answer is given the moment that its record is read back.
"""

import asyncio
import contextlib
import heapq
import itertools
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.partition import PartitionAppender, PartitionFollower
from mainstem.client.topics import (
    STREAM_SETTINGS,
    cluster_id,
    describe_config,
    end_offsets,
    ensure_topic,
    topic_ids,
    what_can_be_lost,
)
from mainstem.core import Clock, MainstemError, Retriable, SystemClock, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.replicate import checkpoint
from mainstem.replicate.checkpoint import Checkpoint, Identity
from mainstem.replicate.errors import Broken, Diverged, OtherLog, OutcomeUnknown, Refused, Stopped, UnknownRequest
from mainstem.replicate.records import Answer, Request
from mainstem.replicate.replica import Replica

log = get_logger()

_WATCH_SECONDS = 5.0  # between two looks whether it is still the same log
_AHEAD = 4  # lists of records that the follower may hand over before the first is received
_SOON_SECONDS = 0.002


class Answered(NamedTuple):
    """A service's answer. `basis`: the next offset; a read that is given it holds what this answer held."""

    value: Any
    basis: int


class Node:
    """A replica that follows its topic; use it in an `async with`.

        async with Node(connection, "arithmetic", StateMachine("n1", Arithmetic, nodes=3)) as node:
            answered = await node.write("x+=5")

    Args:
        connection: the log: any that speaks Kafka's protocol.
        topic: of one partition; it is created where it is not there.
        replica: one that nothing was received by.
        directory: where checkpoints are kept, this node's own; None reads the whole topic at each start.
        checkpoint_every: records between two checkpoints; one is also written at the end.
        timeout_seconds: how long a request waits for its record.
        clock: what silence is measured with.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        replica: Replica,
        *,
        directory: Path | None = None,
        checkpoint_every: int = 10_000,
        timeout_seconds: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self.replica = replica
        self.problem: MainstemError | None = None
        """Why it has stopped by itself."""
        self._connection, self._place = connection, TopicPartition(topic, 0)
        self._directory, self._checkpoint_every = directory, checkpoint_every
        self._checkpointed = 0
        self._timeout_seconds = timeout_seconds
        self._clock = clock or SystemClock()
        self._identity = Identity("", "")
        self._appender: PartitionAppender | None = None
        self._follower: PartitionFollower | None = None
        self._closed = False
        self._stopped = asyncio.Event()
        self._room = threading.Semaphore(_AHEAD)
        self._waiting: dict[int, asyncio.Future[Answered]] = {}  # by ticket
        self._bases: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap
        self._turns = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.TimerHandle | None = None
        # One thread for what blocks: requests to the log, and checkpoints.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="replicate")

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """1. the topic  2. the last checkpoint  3. read what is in the log now  4. take part.

        Raises:
            OtherLog: the checkpoint is of another log, or ahead of this one.
            TopicMismatch: the topic has other settings, by which it would lose what it holds.
            RecordsDeleted, Unreadable, Diverged: the replica cannot be made from what is there.
            BrokerUnavailable: the log does not answer.
        """
        self._loop = asyncio.get_running_loop()
        try:
            self._identity, end = await self._blocking(self._prepare)
            if self._directory is not None:
                dump = await self._blocking(checkpoint.read, self._directory, self._identity, self.replica.kind)
                if dump is not None:
                    self.replica.load(dump)
                    self._checkpointed = dump.position
            self._refuse_a_shorter_log(end)
            name = f"replicate-{self.replica.node}"
            self._appender = PartitionAppender(self._connection, self._place)
            self._follower = PartitionFollower(
                self._connection, self._place, self.replica.position, self._hand_over, self._not_read, name=name
            )
            await self._catch_up(end)
        except BaseException:
            await self.close()
            raise
        self.replica.start(self._now())
        self._pump()
        self._watch_later()
        log.info("replica_ready", node=self.replica.node, kind=self.replica.kind, position=self.replica.position)

    async def close(self) -> None:
        """Leave: what waits is told so, the state is kept."""
        if self._closed:
            return
        self._closed = True
        for timer in (self._timer, self._watcher):
            if timer is not None:
                timer.cancel()
        self._wake_all(f"{self.replica.node}: closed")
        self._room.release(1 << 20)  # the follower may wait for us
        if self._follower is not None:
            await asyncio.to_thread(self._follower.close)
        if self._appender is not None:
            await asyncio.to_thread(self._appender.close)
        if self._directory is not None and self.problem is None and self.replica.live:
            await self._blocking(self._keep, self._directory, self._checkpoint())
        self._stopped.set()
        self._threads.shutdown(wait=False)

    async def write(self, operation: Any, request: Request | None = None) -> Answered:
        """Carry out an operation. On return it is carried out on every node that has read the log so far.

        With a `request` it is carried out once, however often and wherever it is sent.

        Raises:
            Refused: the service says no; so it would everywhere.
            UnknownRequest: it may have been carried out before, and is not now.
            NotPrimary, NotApplied: it is not carried out, and never will be.
            TooLarge, Stopped: it is not carried out.
            OutcomeUnknown: it may be carried out later: send the same request again.
        """
        return await self._ask(lambda now: self.replica.write(operation, request, now))

    async def read(self, question: Any, *, local: bool = False, basis: int = 0) -> Answered:
        """Ask the service. The answer holds everything that was answered to anybody before this call.

        Args:
            question: the service's.
            local: answer from what this node has read so far, at once; it may be older than what others answer.
            basis: answer no sooner than everything before this offset is read.

        Raises:
            Refused, NotPrimary, OutcomeUnknown, Stopped: as `write`; a local read asks no primary.
        """
        if basis > self.replica.position:
            await self._reach(basis)
        if not local:
            return await self._ask(lambda now: self.replica.read(question, now))
        self._check()
        return _answered(self.replica.machine.query(question), self.replica.position)

    async def open_client(self) -> int:
        """A client's id, for the requests of one client.

        Raises:
            NotPrimary, NotApplied, OutcomeUnknown, Stopped: as `write`; an id that nobody was told does no harm.
        """
        return int((await self._ask(self.replica.open_client)).value)

    async def wait_stopped(self) -> None:
        """Return when the node was closed.

        Raises:
            MainstemError: it has stopped by itself: nothing that it says could be trusted any more.
        """
        await self._stopped.wait()
        if self.problem is not None:
            raise self.problem

    def status(self) -> dict[str, Any]:
        """For people: how it is and how far."""
        replica = self.replica
        return {
            "node": replica.node,
            "model": replica.kind,
            **replica.status(self._now()),
            "position": replica.position,
            "state": replica.machine.digest(),
            "problem": str(self.problem or ""),
        }

    # -- requests

    async def _ask(self, ask: Callable[[float], int]) -> Answered:
        self._check()
        ticket = ask(self._now())
        future: asyncio.Future[Answered] = self._loop.create_future()
        self._waiting[ticket] = future
        self._pump()
        try:
            return await asyncio.wait_for(future, self._timeout_seconds)
        except TimeoutError:
            raise OutcomeUnknown(
                f"{self._place}: not read back in {self._timeout_seconds:g} s; read up to offset {self.replica.position}",
                hint="the log does not answer, or a transaction of another client is open on it",
            ) from None
        finally:
            del self._waiting[ticket]
            self.replica.forget(ticket)

    async def _reach(self, basis: int) -> None:
        self._check()
        future: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._bases, (basis, next(self._turns), future))
        try:
            await asyncio.wait_for(future, self._timeout_seconds)
        except TimeoutError:
            raise OutcomeUnknown(
                f"{self._place}: expected offset {basis} within {self._timeout_seconds:g} s, "
                f"read up to {self.replica.position}"
            ) from None
        finally:
            if future.cancelled():  # it may never be read so far
                self._bases = [each for each in self._bases if each[2] is not future]
                heapq.heapify(self._bases)

    def _refuse_a_shorter_log(self, end: int) -> None:
        if self.replica.position > end:
            raise OtherLog(
                f"{self._place}: expected offsets up to {self.replica.position} at least, found {end}",
                hint="the log has lost what this node has read: bring it back, or give the node an empty directory",
            )

    async def _catch_up(self, end: int) -> None:
        """As long as records come it goes on, however many there are."""
        while True:
            before = self.replica.position
            try:
                if before < end:
                    await self._reach(end)
            except OutcomeUnknown as error:
                if self.replica.position == before:
                    raise BrokerUnavailable(str(error), hint=error.hint) from error
            except Stopped as error:
                raise self.problem or error from None
            else:
                return

    def _check(self) -> None:
        if self.problem is not None or self._closed:
            raise Stopped(f"{self.replica.node}: stopped: {self.problem or 'closed'}")

    # -- the follower's thread

    def _hand_over(self, records: list[tuple[int, bytes | None]], next_offset: int) -> None:
        self._room.acquire()
        self._in_loop(self._receive, records, next_offset)

    def _not_read(self, error: MainstemError) -> None:
        self._in_loop(self._fail, error)

    def _in_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(call, *arguments)

    # -- the loop

    def _receive(self, records: list[tuple[int, bytes | None]], next_offset: int) -> None:
        self._room.release()
        if self.problem is not None or self._closed:
            return
        try:
            for offset, value in records:
                self.replica.receive(offset, value, self._now())
            self.replica.reached(next_offset)
        except MainstemError as error:
            self._fail(error)
            return
        except Exception as error:  # nobody would hear of it, and no record would ever come again
            why = f"offset {self.replica.position}: the service failed: {type(error).__name__}: {error}"
            self._fail(Broken(why, hint="mend the service and start the node again: it goes on with that record"))
            return
        while self._bases and self._bases[0][0] <= self.replica.position:
            _settle(heapq.heappop(self._bases)[2], None)
        self._pump()
        if self._directory is not None and self.replica.position - self._checkpointed >= self._checkpoint_every:
            self._checkpointed = self.replica.position
            self._threads.submit(self._keep, self._directory, self._checkpoint())

    def _pump(self) -> None:
        """Do what the replica wants, and set the timer for what it will want."""
        if self.problem is not None or self._closed:
            return
        if self.replica.tick(self._now()):
            self._threads.submit(self._look)
        for value in self.replica.take_appends():
            try:
                assert self._appender is not None
                self._appender.append(value)
            except BrokerUnavailable as error:  # as if it were lost on its way
                log.warning("record_not_appended", topic=self._place.topic, error=str(error))
        for settled in self.replica.take_settled():
            future = self._waiting.get(settled.ticket)
            if future is not None and settled.answer is not None:
                _settle(future, settled.answer, settled.offset + 1)
            elif future is not None and settled.error is not None:
                _fail(future, settled.error)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self.replica.due() if self.replica.live else math.inf
        self._timer = None
        if due < math.inf:
            self._timer = self._loop.call_later(max(_SOON_SECONDS, due - self._now()), self._pump)

    def _fail(self, error: MainstemError) -> None:
        """Stop for good: nothing is read, answered or kept any more."""
        if self.problem is not None or self._closed:
            return
        self.problem = error
        log.error("replica_stopped", node=self.replica.node, error=str(error), hint=error.hint)
        if self._directory is not None and isinstance(error, Diverged):
            self._threads.submit(self._let_go, self._directory)
        self._wake_all(f"{self.replica.node}: stopped: {error}")
        self._stopped.set()

    def _wake_all(self, why: str) -> None:
        for asked in self._waiting.values():
            _fail(asked, OutcomeUnknown(f"{why}: what was on its way to the log may be carried out"))
        for _, _, waiting in self._bases:
            _fail(waiting, Stopped(why))
        self._bases.clear()

    def _checkpoint(self) -> bytes:
        return checkpoint.encode(Checkpoint(self._identity, self.replica.dump()))

    def _now(self) -> float:
        return self._clock.monotonic()

    # -- what blocks

    def _keep(self, directory: Path, state: bytes) -> None:
        """Where it cannot, the one before is kept, and the next start reads more of the log."""
        try:
            checkpoint.write(directory, state)
        except OSError as error:
            log.warning("checkpoint_not_written", node=self.replica.node, directory=str(directory), error=str(error))

    def _let_go(self, directory: Path) -> None:
        try:
            checkpoint.remove(directory)
        except OSError as error:
            hint = "delete it before this node starts again"
            log.warning("checkpoint_not_removed", directory=str(directory), error=str(error), hint=hint)

    def _prepare(self) -> tuple[Identity, int]:
        topic = self._place.topic
        found = ensure_topic(self._connection, topic, 1, STREAM_SETTINGS, same_settings=True)
        settings = describe_config(self._connection, topic)
        if lost := what_can_be_lost(topic, settings):
            log.warning("acknowledged_before_durable", topic=topic, reason=lost)
        if found.replication_factor > 1 and settings.get("min.insync.replicas") == "1":
            log.warning("acknowledged_by_one_broker", topic=topic, setting="min.insync.replicas")
        return self._where()

    def _where(self) -> tuple[Identity, int]:
        """Which log this is, and where it ends for readers of committed records."""
        topic = self._place.topic
        topic_id = topic_ids(self._connection, [topic]).get(topic, "")  # none: it was deleted
        end = end_offsets(self._connection, topic, committed=True)[self._place.partition]
        return Identity(cluster_id(self._connection), topic_id), end

    def _look(self) -> None:
        end: int | None = None
        try:
            identity, end = self._where()
        except Retriable as error:
            log.info("log_not_asked", topic=self._place.topic, error=str(error))
        except MainstemError as error:
            self._in_loop(self._fail, error)
            return
        else:
            if identity != self._identity:
                self._in_loop(self._fail, self._other(identity))
                return
        self._in_loop(self._looked, end)

    def _looked(self, end: int | None) -> None:
        self.replica.looked(end, self._now())
        self._pump()

    def _watch_later(self) -> None:
        self._watcher = self._loop.call_later(_WATCH_SECONDS, lambda: self._threads.submit(self._watch))

    def _watch(self) -> None:
        try:
            identity, _ = self._where()
        except Retriable:
            pass
        except MainstemError as error:
            self._in_loop(self._fail, error)
        else:
            if identity != self._identity:
                self._in_loop(self._fail, self._other(identity))
        self._in_loop(self._watched)

    def _watched(self) -> None:
        if self.problem is None and not self._closed:
            self._watch_later()

    def _other(self, found: Identity) -> OtherLog:
        expected = self._identity
        return OtherLog(
            f"{self._place}: expected log {expected.log} with topic id {expected.topic_id}, "
            f"found {found.log} with {found.topic_id}",
            hint="the log was replaced, or the topic made anew: start the node again with an empty directory",
        )

    async def _blocking(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await self._loop.run_in_executor(self._threads, call, *arguments)


def _settle(future: "asyncio.Future[Any]", answer: Answer | None, basis: int = 0) -> None:
    if future.done():
        return
    try:
        future.set_result(None if answer is None else _answered(answer, basis))
    except MainstemError as error:
        future.set_exception(error)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _answered(answer: Answer, basis: int) -> Answered:
    if answer.unknown:
        raise UnknownRequest(answer.error)
    if answer.error:
        raise Refused(answer.error)
    return Answered(answer.value, basis)
