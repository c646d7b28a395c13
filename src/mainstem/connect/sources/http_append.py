"""Group commit: what several requests bring becomes one Kafka transaction, and all are answered when it is durable.

    requests ──append()──> queue ──one group at a time──> transaction ──commit──> answers
                             └── what arrives meanwhile is the next group

One transactional id per collector. Whoever starts takes it (`fence`), so a gateway that was thought dead and comes back
can append nothing any more. Only then are the topics' tails read for the event ids that were taken in before. Both ids
and partitions are forgotten where a topic was deleted and made anew. The books of the collector (records and hash per
partition, for the audit) travel in the same transaction, with the ids of their topics: those of a topic that is gone,
or is another one by now, are left out.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, Fenced, IdentityLost, TransactionFailed, UnknownTopic
from mainstem.client.internal import SOURCES, source_transactional_id
from mainstem.client.partitioner import partition_for
from mainstem.client.progress import Written, add_written
from mainstem.client.topics import describe, topic_ids
from mainstem.client.transaction import Appended, SharedTransaction
from mainstem.client.writer import SourceState, read_source
from mainstem.connect.sources.http_window import Seen, Undecided, Window, read_tail
from mainstem.core import Retriable, TopicPartition, UserError
from mainstem.core.clock import Clock, SystemClock
from mainstem.core.logging import get_logger
from mainstem.records.fingerprint import MODULUS, fingerprint

log = get_logger()

BOOKS = TopicPartition(SOURCES, 0)
INTERNAL = "__mainstem."
FEW_TOPICS = 100  # in the books: so many are not worth a look at which of them are still there
MAX_IDS = 1_000_000  # kept of all topics together, some 300 MB; the topic used last keeps its window whatever its size


class Overloaded(Retriable):
    """More is waiting for the log than may wait."""


class LogUnavailable(Retriable):
    """The log did not take the transaction, or did not say so in time: a retry with the same ids does no harm."""


class TakenOver(Retriable):
    """A newer gateway has this collector's transactional id; this process appends nothing any more."""


class NewRecord(msgspec.Struct):
    """A record on its way. With an `id`, a second one of that id is not appended."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes | None]]
    id: str | None = None
    content: int = 0  # hash of what the id stands for


class Placed(msgspec.Struct, frozen=True):
    """Where a record is. `reused`: its id was taken by another content, which is there; nothing was appended."""

    status: Literal["accepted", "duplicate", "reused"]
    partition: int
    offset: int  # -1 where others wrote into the same partition in between
    next_offset: int  # whoever has read up to it has read the record


class _Request(msgspec.Struct):
    records: list[NewRecord]
    size: int
    answer: "asyncio.Future[list[Placed]]"


class _Group:
    """The records of one transaction by partition, and for every record of every request how to find its place."""

    def __init__(self) -> None:
        self.lanes: dict[TopicPartition, list[NewRecord]] = {}
        self.fresh: dict[tuple[str, str], tuple[TopicPartition, int, int]] = {}  # (topic, id) -> lane, number, content
        self.places: list[list[Callable[[dict[TopicPartition, Appended]], Placed]]] = []


class Appender:
    """The collector's only way into the log. Lives on one event loop; `run` must be running for `append` to return."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        window_size: int = 100_000,
        group_bytes: int = 16 << 20,
        waiting_bytes: int = 64 << 20,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.fenced = False
        self._connection = connection
        self._window_size = window_size
        self._group_bytes = group_bytes
        self._waiting_bytes = waiting_bytes
        self._clock = clock or SystemClock()
        self._queue: deque[_Request] = deque()
        self._waiting = 0  # bytes in the queue
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="collector")
        self._transaction: SharedTransaction | None = None
        self._holds_id = False
        self._windows: dict[str, Window] = {}  # the one used last at the end
        self._partitions: dict[str, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._turns: dict[str, int] = {}
        self._books = SourceState({})
        self._many_topics = FEW_TOPICS
        self.committed = 0  # transactions

    # -- for requests

    async def append(self, records: list[NewRecord]) -> list[Placed]:
        """Append records in their order; on return they are durable and visible.

        Raises:
            Overloaded, LogUnavailable, TakenOver: nothing is known to be appended; the same ids may be sent again.
            UserError: the topic's settings do not allow one of them, or it is gone; nothing of this call is appended.
        """
        if self.fenced:
            raise self._taken_over()
        size = sum(map(_size, records))
        if self._waiting and self._waiting + size > self._waiting_bytes:
            raise Overloaded(f"{self._waiting} bytes are waiting for the log", hint="try again in a second")
        return await self._queued(records, size)

    async def settled(self) -> None:
        """Return when what was appended before this call is durable or refused; others may go on appending.

        Raises:
            LogUnavailable, TakenOver: as `append` does.
        """
        if self.fenced:
            raise self._taken_over()
        await self._queued([], 0)

    async def _queued(self, records: list[NewRecord], size: int) -> list[Placed]:
        request = _Request(records, size, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        self._waiting += size
        self._wake.set()
        return await request.answer

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic as the last group found it."""
        return self._topic_ids.get(topic)

    # -- the one that commits

    async def open(self) -> None:
        """Take the transactional id. Raises BrokerUnavailable: the log does not answer."""
        await self._blocking(self._fence)

    async def close(self) -> None:
        """Let go; requests that still wait are answered as unavailable."""
        while self._queue:
            self._fail(self._queue.popleft(), LogUnavailable("the gateway is stopping"))
        if self._transaction is not None:
            await self._blocking(self._transaction.close)
        self._thread.shutdown()

    async def run(self) -> None:
        """Commit group after group until cancelled, or until a newer gateway takes over (TakenOver)."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._commit_group(self._take_group())
                if self.fenced:
                    raise self._taken_over()

    def _take_group(self) -> list[_Request]:
        group = [self._queue.popleft()]
        size = group[0].size
        while self._queue and size + self._queue[0].size <= self._group_bytes:
            size += self._queue[0].size
            group.append(self._queue.popleft())
        self._waiting -= size
        return group

    async def _commit_group(self, requests: list[_Request]) -> None:
        before = self.committed
        try:
            answers = await self._blocking(self._commit, [request.records for request in requests])
        except UserError as error:  # a record that its topic does not allow, or a topic that was deleted meanwhile
            await self._commit_each(requests, error)
        except Fenced as error:
            self.fenced = True
            log.warning("collector_taken_over", name=self.name, error=str(error))
            for request in (*requests, *self._queue):
                self._fail(request, self._taken_over())
            self._queue.clear()
        except Undecided as error:
            await self._commit_others(requests, error)
        except (BrokerUnavailable, TransactionFailed) as error:
            log.warning("collector_append_failed", name=self.name, error=str(error))
            for request in requests:
                self._fail(request, LogUnavailable(f"the log did not take it: {error}", hint=error.hint))
        except Exception as error:
            # A bug: those who wait must hear of it, and the next group may go.
            log.exception("collector_append_failed", name=self.name)
            if self._holds_id and self.committed == before:  # nothing was sent: it may be due to one of them
                await self._commit_each(requests, error)
            else:
                for request in requests:
                    self._fail(request, error)
        else:
            for request, places in zip(requests, answers, strict=True):
                if not request.answer.done():
                    request.answer.set_result(places)

    async def _commit_each(self, requests: list[_Request], error: Exception) -> None:
        """One of them spoils the group: each gets a transaction of its own."""
        if len(requests) == 1:
            self._fail(requests[0], error)
            return
        for request in requests:
            if self.fenced:
                self._fail(request, self._taken_over())
            else:
                await self._commit_group([request])

    async def _commit_others(self, requests: list[_Request], error: Undecided) -> None:
        """Those of the topic that cannot be read now are answered so; the other topics are no worse for it."""
        log.warning("collector_window_undecided", topic=error.topic, error=str(error))
        others = []
        for request in requests:
            if any(record.topic == error.topic for record in request.records):
                self._fail(request, LogUnavailable(str(error), hint=error.hint))
            else:
                others.append(request)
        if others:
            await self._commit_group(others)

    def _taken_over(self) -> TakenOver:
        return TakenOver(f"collector {self.name}: a newer gateway took over", hint="send it there")

    def _fail(self, request: _Request, error: Exception) -> None:
        if not request.answer.done():
            request.answer.set_exception(error)

    async def _blocking(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    # -- in its thread

    def _fence(self) -> None:
        """1. take the id, 2. read the books, which nobody else can change any more; the tails are read when needed.

        Only a start takes it from others: an older gateway that went on after an error would fence the newer one.
        """
        self._windows.clear()
        self._partitions.clear()
        if self._transaction is None:
            self._transaction = SharedTransaction(self._connection, source_transactional_id(self.name))
        self._transaction.fence_again()
        self._books = read_source(self._connection, self.name, linearizable=True) or SourceState({})
        self._topic_ids |= self._books.position.get("topics", {})
        self._drop_gone()
        self._holds_id = True

    def _commit(self, requests: list[list[NewRecord]]) -> list[list[Placed]]:
        """Commit a group; where nothing was posted for a week, the log has forgotten who we are: then twice."""
        try:
            return self._commit_once(requests)
        except IdentityLost as error:
            log.info("collector_identity_lost", name=self.name, error=str(error))
            return self._commit_once(requests)

    def _commit_once(self, requests: list[list[NewRecord]]) -> list[list[Placed]]:
        """1. hold the id, or fence  2. forget topics that are gone  3. leave out what is there already
        4. append, commit  5. remember the ids.
        """
        if not self._holds_id:
            self._fence()
        self._forget_others({record.topic for records in requests for record in records})
        if len(self._books.written) > self._many_topics:
            self._drop_gone()
        group = self._arrange(requests)
        done: dict[TopicPartition, Appended] = {}
        if group.lanes:
            try:
                done = self._append(group)
            except BaseException:
                # Whether it is committed may be unknown: only a fence and the topics themselves can tell.
                self._holds_id = False
                raise
        answers = [[place(done) for place in places] for places in group.places]
        for (topic, event_id), (lane, number, content) in group.fresh.items():
            offset, next_offset = _placed(done[lane], number)
            seen = Seen(lane.partition, offset, content, next_offset if offset < 0 else 0)
            self._windows[topic].add(event_id, seen)
        self._shrink()
        return answers

    def _forget_others(self, topics: set[str]) -> None:
        """Of a topic that has another id than before, or none, nothing that is known is true any more.

        Raises:
            UnknownTopic: one is not there. It may be a moment later, and then its books need the id that it has.
        """
        found = topic_ids(self._connection, topics)
        for topic in topics:
            if found.get(topic) != self._topic_ids.get(topic):
                self._windows.pop(topic, None)
                self._partitions.pop(topic, None)
        self._drop({topic for topic, topic_id in found.items() if topic_id != self._topic_ids.get(topic, topic_id)})
        self._topic_ids |= found
        gone = sorted(topics - found.keys())
        if gone:
            raise UnknownTopic(f"topic {gone[0]}: no such topic", hint="`mainstem topic list` shows the topics")

    def _drop_gone(self) -> None:
        """Without the books of topics that are gone; they would grow with every name that was ever posted to."""
        topics, known = set(self._books.written), self._topic_ids
        found = topic_ids(self._connection, topics)
        self._drop({each for each in topics if each not in found or found[each] != known.get(each, found[each])})
        self._many_topics = max(FEW_TOPICS, 2 * len(self._books.written))

    def _drop(self, topics: set[str]) -> None:
        left = {topic: each for topic, each in self._books.written.items() if topic not in topics}
        self._books = msgspec.structs.replace(self._books, written=left)

    def _arrange(self, requests: list[list[NewRecord]]) -> _Group:
        group = _Group()
        for records in requests:
            turn: dict[str, int] = {}
            group.places.append([self._arrange_one(group, record, turn) for record in records])
        return group

    def _arrange_one(
        self, group: _Group, record: NewRecord, turn: dict[str, int]
    ) -> Callable[[dict[TopicPartition, Appended]], Placed]:
        if record.id is not None:
            seen = self._window(record.topic).get(record.id)
            if seen is not None:
                status = _again(seen.content, record)
                known = Placed(status, seen.partition, seen.offset, max(seen.offset + 1, seen.next_offset))
                return lambda _: known
            twin = group.fresh.get((record.topic, record.id))
            if twin is not None:
                return _finder(_again(twin[2], record), twin[0], twin[1])
        lane = TopicPartition(record.topic, self._choose(record, turn))
        lanes = group.lanes.setdefault(lane, [])
        lanes.append(record)
        if record.id is not None:
            group.fresh[record.topic, record.id] = (lane, len(lanes) - 1, record.content)
        return _finder("accepted", lane, len(lanes) - 1)

    def _window(self, topic: str) -> Window:
        window = self._windows.pop(topic, None)
        if window is None:
            window = read_tail(self._connection, topic, self._window_size)
            log.info("collector_window_read", topic=topic, ids=len(window))
        self._windows[topic] = window
        return window

    def _shrink(self) -> None:
        """Let go of windows that were not used for longest: their topics tell them again."""
        ids = sum(map(len, self._windows.values()))
        while ids > MAX_IDS and len(self._windows) > 1:
            ids -= len(self._windows.pop(next(iter(self._windows))))

    def _choose(self, record: NewRecord, turn: dict[str, int]) -> int:
        topic = record.topic
        if topic not in self._partitions:
            self._partitions[topic] = describe(self._connection, topic).partitions
        count = self._partitions[topic]
        if record.key is not None:
            return partition_for(record.key, count)
        if topic not in turn:  # records without key: one partition per request, the next one for the next request
            turn[topic] = self._turns[topic] = (self._turns.get(topic, -1) + 1) % count
        return turn[topic]

    def _append(self, group: _Group) -> dict[TopicPartition, Appended]:
        assert self._transaction is not None
        try:
            ticket = self._transaction.begin()
            with self._transaction.writer(ticket) as writer:
                now_ms = self._clock.now_ms()
                for lane, records in group.lanes.items():
                    keys, values = (record.key for record in records), (record.value for record in records)
                    writer.append(lane, keys, values, (record.headers for record in records), now_ms)
                books = self._written(group)
                writer.append(BOOKS, [self.name.encode()], [msgspec.json.encode(books)], None, now_ms)
                done = writer.finish()
            self._transaction.commit({partition: appended.count for partition, appended in done.items()})
        except BaseException:
            self._transaction.abort()
            raise
        self._books = books
        self.committed += 1
        return done

    def _written(self, group: _Group) -> SourceState:
        batch: dict[str, dict[int, Written]] = {}
        for lane, records in group.lanes.items():
            if lane.topic.startswith(INTERNAL):  # heartbeats are no data of a user
                continue
            total = sum(fingerprint(record.key, record.value) for record in records)
            batch.setdefault(lane.topic, {})[lane.partition] = Written(len(records), total % MODULUS)
        written = add_written(self._books.written, batch)
        ids = {topic: self._topic_ids[topic] for topic in written if topic in self._topic_ids}
        return SourceState({"topics": ids}, written)


def _size(record: NewRecord) -> int:
    """About what it takes in memory, in bytes."""
    headers = sum(len(name) + len(value or b"") + 64 for name, value in record.headers)
    return len(record.value) + len(record.key or b"") + headers + 64


def _again(content: int, record: NewRecord) -> Literal["duplicate", "reused"]:
    return "duplicate" if content == record.content else "reused"


def _placed(appended: Appended, number: int) -> tuple[int, int]:
    """The offset of the number-th record of a lane, and the next one; -1 where somebody else's records lie in between,
    and then the one after the lane's last record.
    """
    if appended.last - appended.base + 1 != appended.count:
        return -1, appended.last + 1
    return appended.base + number, appended.base + number + 1


def _finder(
    status: Literal["accepted", "duplicate", "reused"], lane: TopicPartition, number: int
) -> Callable[[dict[TopicPartition, Appended]], Placed]:
    return lambda done: Placed(status, lane.partition, *_placed(done[lane], number))
