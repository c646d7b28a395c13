"""The broker: it owns the topics, the coordinators and the listening sockets, and joins the wire to the log.

Its start reads top to bottom: bind (a port in use is found before topics are read), load topics, accept, open the
coordinators. Who connects is told at once what is served, and what topics there are; other requests wait until the
coordinators have read what they keep. Its stop is the reverse: no new connections or requests, those in flight are
answered, the coordinators and the topics are closed. The `LogDirectory` is the caller's to open and close.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from mainstem.broker.admission import Admission
from mainstem.broker.answer_memory import AnswerMemory
from mainstem.broker.arrivals import SCRATCH_BYTES
from mainstem.broker.config import BrokerConfig
from mainstem.broker.connection import Connection
from mainstem.broker.dispatch import Dispatch
from mainstem.broker.dynamic_settings import DynamicSettings
from mainstem.broker.facts import Facts
from mainstem.broker.fetch_sessions import FetchSessions
from mainstem.broker.handlers import load_handlers
from mainstem.broker.handshakes import Handshakes
from mainstem.broker.listeners import Listener
from mainstem.broker.patterns import PatternThreads
from mainstem.broker.recompression import Growth, Places
from mainstem.broker.request_memory import RequestMemory
from mainstem.broker.security.acls import Authorizer
from mainstem.broker.security.quotas import Quotas
from mainstem.broker.strangers import Strangers
from mainstem.broker.topics import Topics
from mainstem.core import Clock, SystemClock, TopicPartition
from mainstem.core.address import format_address
from mainstem.core.forks import keep_from_forks
from mainstem.core.logging import get_logger
from mainstem.log import LogDirectory, PartitionLog
from mainstem.log.limits import connections_limit

if TYPE_CHECKING:
    from mainstem.broker.groups import GroupCoordinator
    from mainstem.broker.security.credentials import Credentials
    from mainstem.broker.security.sasl import Exchange
    from mainstem.broker.transactions import TransactionCoordinator

_FIRST = (3, 17, 18, 36)  # Metadata, SaslHandshake, ApiVersions, SaslAuthenticate: they need no coordinator
_GOOD_BYE_SECONDS = 1.0
_IDLE_CHECK_SECONDS = 10.0
_STRANGERS_SHARE = 8
_FETCHED, _UNASKED = 4, 2  # times the budget of requests

log = get_logger()


class Broker:
    """One node that answers the Kafka protocol over a log directory.

    `groups` and `transactions` are the coordinators, `topics` is the store of topic metadata. Handlers reach all of
    them through their context; a coordinator keeps the broker it was opened with (`await Coordinator.open(broker)`,
    `await coordinator.close()`), takes its partitions from `ensure_internal_topic` and runs its timers by `spawn`.

    Produce asks `transactions.verify_or_add(transactional_id, producer_id, producer_epoch, topic_partition,
    implicit_add=…)` before the first batch of a transaction in a partition (KIP-890): None says the partition belongs
    to the transaction, and the batch is appended in the same turn of the loop, so that no EndTxn comes between; a
    future says that the end of the last transaction is waited for, and Produce asks again when it is done; what it
    raises is the answer.
    """

    topics: Topics
    dynamic: DynamicSettings
    quotas: Quotas
    groups: "GroupCoordinator"
    transactions: "TransactionCoordinator"
    loop: asyncio.AbstractEventLoop
    request_memory: RequestMemory
    strangers_memory: RequestMemory
    """Of clients that have to say who they are, until they have: they do not stand in one queue with those who have."""
    growth: Callable[[str], Growth]
    """For an append of an address, that may be larger than what was sent."""
    fetched_memory: AnswerMemory
    unasked_memory: AnswerMemory
    """Of large answers to other requests than fetches."""
    handshakes: Handshakes

    def __init__(self, config: BrokerConfig, log: LogDirectory, clock: Clock | None = None) -> None:
        self.config = config
        self.log = log
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.connections: set[Connection] = set()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """What every connection reads into; nothing is left in it when the read is dealt with."""
        self.beginning_bytes = 0
        """Of requests that were decoded, and whose coroutines begin in the next turn of the loop."""
        most = min(config.max_connections, connections_limit(log.config.open_files))
        self.admission = Admission(most, config.max_connections_per_ip)
        self.strangers = Strangers()
        self.listeners = [Listener(self, name, each) for name, each in config.all_listeners().items()]
        self.dispatch = Dispatch(self, {})
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, self.clock)
        self._users: dict[str, str] = {}
        self.authorizer: Authorizer | None = None
        self.metering: Quotas | None = None  # where any client has a quota
        self._stack = AsyncExitStack()
        self._tasks: asyncio.TaskGroup
        self._running: set[asyncio.Task[None]] = set()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._started = False
        self.all_is_read: asyncio.Future[None]
        """The coordinators have read what they keep: before that, what is deleted may not be all gone."""
        self.stopping: asyncio.Future[None]  # done once the broker stops, also amid its start
        self.on_stop: set[Callable[[], None]] = set()
        """Called then: long polls answer what they have."""

    @property
    def host(self) -> str:
        """What clients of the first listener are told to connect to."""
        return self.listeners[0].host

    @property
    def port(self) -> int:
        """Its port."""
        return self.listeners[0].port

    def make_room(self, host: str) -> bool:
        """Cut off a client that is not known yet, in favour of one of another address; whether there was one."""
        return self.handshakes.make_room(host) or self.strangers.make_room(host)

    async def start(self) -> str:
        """Start to serve; returns the address clients connect to, as `host:port`: that of the first listener.

        Raises:
            AddressInUse: a listen address is taken or is none of this machine's.
            BadSetting: a certificate's files, or that of the users, cannot be used.
        """
        self.loop = asyncio.get_running_loop()
        self.all_is_read = self.loop.create_future()
        self.stopping = self.loop.create_future()
        memory = partial(
            RequestMemory, clock=self.clock, call_soon=self.loop.call_soon, call_later=self.loop.call_later
        )
        self.request_memory = memory(self.config.queued_max_request_bytes)
        self.growth = partial(Growth, self.request_memory, Places())
        self.strangers_memory = memory(max(self.config.queued_max_request_bytes // _STRANGERS_SHARE, 1))
        answers = partial(
            AnswerMemory, clock=self.clock, call_soon=self.loop.call_soon, call_later=self.loop.call_later
        )
        self.fetched_memory = answers(_FETCHED * self.config.queued_max_request_bytes, is_asked=True)
        self.unasked_memory = answers(_UNASKED * self.config.queued_max_request_bytes, is_asked=False)
        self.handshakes = Handshakes(self.clock, self.loop.call_later)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        keep_from_forks(self)
        try:
            self._users = self._read_users()
            for listener in self.listeners:
                await listener.bind()
            facts = await Facts.load(self.log, self.clock)
            self.dynamic = DynamicSettings(facts, self.config.node_id, self.config.topic_defaults)
            self.topics = await Topics.load(self.log, self.config, self.clock, facts, self.dynamic.defaults)
            self.dynamic.on_change = self.topics.set_defaults
            if any(listener.mechanisms for listener in self.listeners):
                _ = self.mechanisms  # what is wrong with the settings of one is told here
            self.quotas = Quotas(self.topics.facts, self.clock, self._quotas_changed)
            if self.config.authorizer_enable:
                everyone = self.config.allow_everyone_if_no_acl_found
                self.authorizer = Authorizer(
                    self.topics.facts, self.config.super_users, allow_everyone_if_no_acl_found=everyone
                )
            self.dispatch = Dispatch(self, load_handlers(_FIRST))
            for listener in self.listeners:
                listener.accept()
            self._look_for_idle_later()
            handlers = await asyncio.to_thread(
                load_handlers
            )  # half of what a start imports; the loop goes on meanwhile
            await self._open_coordinators()
            self.all_is_read.set_result(None)
            self.dispatch = Dispatch(self, handlers)
            for connection in list(self.connections):
                connection.all_is_served()
        except BaseException:
            await self.stop()
            raise
        address = format_address(self.host, self.port)
        others = {each.name: format_address(each.host, each.port) for each in self.listeners[1:]}
        also: dict[str, Any] = {"listeners": others} if others else {}
        if not self.log.recovered_cleanly:
            also["recovered"] = "the last end was not a clean one"
        self._started = True
        log.info("broker_started", address=address, **also, cluster_id=self.topics.cluster_id, topics=len(self.topics))
        return address

    async def _open_coordinators(self) -> None:
        from mainstem.broker.groups import GroupCoordinator
        from mainstem.broker.transactions import TransactionCoordinator

        self.groups = await GroupCoordinator.open(self)
        self._stack.push_async_callback(self.groups.close)
        self.transactions = await TransactionCoordinator.open(self)
        self._stack.push_async_callback(self.transactions.close)

    async def stop(self) -> None:
        """Stop in order; what was started is answered, for at most `stop_timeout_ms`."""
        if self.stopping.done():
            return
        self.stopping.set_result(None)
        for callback in tuple(self.on_stop):
            callback()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for listener in self.listeners:
            listener.close()
        self.handshakes.close()
        for connection in list(self.connections):
            connection.stop_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.stop_timeout_ms / 1000):
                for connection in list(self.connections):
                    await connection.drained()
        for connection in list(self.connections):
            connection.close()
        await self._are_gone()
        for task in list(self._running):
            task.cancel()
        await self._stack.aclose()
        if self._started:
            log.info("broker_stopped")

    def descriptors(self) -> Iterator[int]:
        """Of its sockets: a fork that kept them would hold up clients whose connection is closed, and the port."""
        for listener in self.listeners:
            yield from listener.descriptors()
        yield from (arrival.descriptor for arrival in self.handshakes if arrival.descriptor >= 0)
        for connection in self.connections:
            yield connection.descriptor

    async def _are_gone(self) -> None:
        """Wait for the last word of TLS and of answers, but not for clients that take none."""
        await asyncio.sleep(0)
        waits = []
        for connection in self.connections:
            gone = self.loop.create_future()
            connection.on_close.add(partial(gone.set_result, None))
            waits.append(gone)
        if waits:
            await asyncio.wait(waits, timeout=_GOOD_BYE_SECONDS)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    def spawn(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
        """Run `coroutine` in the broker's task group; it is cancelled when the broker stops, and an error is logged."""

        async def guarded() -> None:
            try:
                await coroutine
            except Exception:
                log.exception("task_failed", task=name)

        task = self._tasks.create_task(guarded(), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: coroutine.close())  # it was never begun if the task was cancelled before
        return task

    def _read_users(self) -> dict[str, str]:
        if not self.config.users_file:
            return self.config.users
        from mainstem.broker.security.credentials import read_users

        return self.config.users | read_users(self.config.users_file)

    # What most logs never need is imported when it is: a start takes milliseconds less.

    @cached_property
    def credentials(self) -> "Credentials":
        """Of users who say by SASL who they are."""
        from mainstem.broker.security.credentials import Credentials

        return Credentials(self.topics.facts, self._users)

    @cached_property
    def mechanisms(self) -> "Mapping[str, Callable[[], Exchange]]":
        """What makes an exchange of SASL, by the mechanism's name."""
        from mainstem.broker.security.sasl import mechanisms

        return mechanisms(self.credentials, self.config, self.clock)

    @cached_property
    def id_patterns(self) -> PatternThreads:
        """For the regular expressions of clients that list transactions: for one long id it may be seconds."""
        return self._pattern_threads("broker-id-patterns")

    @cached_property
    def topic_patterns(self) -> PatternThreads:
        """For those of consumer groups, whose members wait for nobody else's."""
        return self._pattern_threads("broker-topic-patterns")

    def _pattern_threads(self, name: str) -> PatternThreads:
        threads = PatternThreads(name)
        self._stack.push_async_callback(threads.close)
        return threads

    def _quotas_changed(self, quotas: Quotas) -> None:
        self.metering = quotas if quotas.of_clients else None

    # --- what handlers and coordinators use --------------------------------------------------------------------------

    def partition(self, topic_partition: TopicPartition) -> PartitionLog:
        """The log of a partition.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        return self.topics.partition(topic_partition.topic, topic_partition.partition)

    async def ensure_internal_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> list[PartitionLog]:
        """The partitions of an internal topic, which is created where it is missing; durable on return."""
        topic = self.topics.get(name)
        if topic is None:
            topic = await self.topics.create(name, partitions, dict(config), internal=True)
        return topic.logs

    # --- connections that are not used -------------------------------------------------------------------------------

    def _look_for_idle_later(self) -> None:
        most = self.config.connections_max_idle_ms / 1000 / 2
        interval = min(most, _IDLE_CHECK_SECONDS) if most > 0 else _IDLE_CHECK_SECONDS
        self._idle_timer = self.loop.call_later(interval, self._look_for_idle)

    def _look_for_idle(self) -> None:
        try:
            self.close_idle_connections()
        finally:
            self._look_for_idle_later()

    def close_idle_connections(self) -> None:
        """Close what has asked nothing for `connections_max_idle_ms`; clients connect again when they need to. And
        where nothing goes on, what belongs to clients that have gone.
        """
        now, most = self.clock.monotonic(), self.config.connections_max_idle_ms / 1000
        for connection in list(self.connections):
            seconds = now - connection.idle_since
            if most > 0 and connection.idle and seconds >= most:
                log.debug("connection_idle", client=connection.client_host)
                connection.end()
            elif seconds >= _IDLE_CHECK_SECONDS and connection.has_gone:
                connection.abort()
