"""When is a job's input idle or finished, and what follows from it: the rules, without Kafka or Spark.

A writer states of its topic: after these positions nothing older than this event time follows, or nothing at all. Once
a job has processed up to those positions, it passes the news on:

    a job without state     states the same of its output
    a job with windows      1. injects a row with that event time into its own query: the watermark moves; a query that
                               has just been started gets one in any case, since it runs no batch without a row, even
                               if the last one of the run before has left windows to be closed
                            2. if nothing at all follows: goes on until no window is open, at most beyond the year 9999:
                               what is kept even then (by a join of two streams without a bound) is kept for ever
                            3. then states of its output that nothing follows

An end after which more came says nothing any more: a version that is built then would close windows until none is open,
and the rows that came would be too late for it.

A window that is still open may yet give a row that is older than the input's event time. So of the output of a windowed
job nothing is said before its input has ended.
"""

import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

import msgspec
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.client.heartbeats import Statement, decode
from mainstem.client.internal import HEARTBEATS
from mainstem.client.reader import RangeReader, committed_consumer, is_record
from mainstem.client.topics import topic_ids
from mainstem.core import CorruptData
from mainstem.core.logging import get_logger

log = get_logger()

_NAME = "mainstem.heartbeats"
_GROWTH = 4
_LAST_MS = 253_402_300_799_999  # the end of the year 9999: no event is later


class Inputs(msgspec.Struct, frozen=True):
    """What is known of all inputs of a job together."""

    event_time: int
    end: bool


def inputs_covered(
    statements: Mapping[str, Statement | None], processed: Mapping[str, Mapping[int, int]]
) -> Inputs | None:
    """The statement that holds for all input topics at once, if the job has processed all that they speak of."""
    known = [statement for statement in statements.values() if statement is not None]
    if not known or len(known) < len(statements):
        return None
    for statement in known:
        done = processed.get(statement.topic, {})
        if any(done.get(partition, 0) < position for partition, position in statement.positions.items()):
            return None
    return Inputs(min(each.event_time for each in known), all(each.end for each in known))


class Inject(msgspec.Struct, frozen=True):
    """Write an injection with this event time."""

    event_time: int


class State(msgspec.Struct, frozen=True):
    """State of the output: nothing older than `event_time` follows, or nothing at all."""

    event_time: int
    end: bool


class StatelessRules:
    """A job whose output has a row for each input row: the news is passed on as it is."""

    def __init__(self) -> None:
        self._passed_on: tuple[Inputs, Any] | None = None

    def is_done(self, inputs: Inputs | None, positions: Any) -> bool:
        """Whether there is nothing to do about this news any more."""
        return inputs is None or self._passed_on == (inputs, positions)

    def next_step(self, inputs: Inputs | None, positions: Any) -> State | None:
        """What to do now; `positions` are those that the inputs' statements speak of."""
        if inputs is None or self.is_done(inputs, positions):
            return None
        self._passed_on = (inputs, positions)
        return State(inputs.event_time, inputs.end)


class StatefulRules:
    """A job with windows.

    Args:
        delay: of its watermark, in ms.
        horizon: how far beyond the last event time a window may reach, as a first guess, in ms.
    """

    def __init__(self, delay: int, horizon: int) -> None:
        self._delay = delay
        self._first_horizon = max(horizon, 1)
        self._horizon = self._first_horizon
        self._injected = 0
        self._woken = False
        self._passed_on: tuple[Inputs, Any] | None = None

    def restart(self) -> None:
        """A new run of the query begins: whether it has read what was injected before, or closed its windows,
        is unknown.
        """
        self._injected = 0
        self._woken = False
        self._passed_on = None

    def is_done(self, inputs: Inputs | None, positions: Any) -> bool:
        """Whether there is nothing to do about this news any more."""
        return inputs is None or self._passed_on == (inputs, positions)

    def next_step(
        self, inputs: Inputs | None, positions: Any, watermark: int | None, open_windows: int
    ) -> Inject | State | None:
        """What to do now, given the watermark of the last finished batch (None: there was none in this run of the
        query) and the windows that it left open.
        """
        if inputs is None or self._passed_on == (inputs, positions):
            return None
        if watermark is None:
            return self._wake(inputs)
        if not inputs.end:
            target = inputs.event_time + self._delay
            self._passed_on = (inputs, positions)
            return self._inject(target)
        if watermark < inputs.event_time + self._first_horizon:
            return self._inject(inputs.event_time + self._delay + self._first_horizon)
        last = max(inputs.event_time, _LAST_MS) + self._first_horizon
        if open_windows and watermark < last:
            if watermark >= inputs.event_time + self._horizon:
                self._horizon *= _GROWTH
            return self._inject(min(inputs.event_time + self._horizon, last) + self._delay)
        self._passed_on = (inputs, positions)
        self._horizon = self._first_horizon
        return State(inputs.event_time, end=True)

    def _wake(self, inputs: Inputs) -> Inject | None:
        if self._woken:
            return None
        self._woken = True
        return self._inject(inputs.event_time + self._delay + (self._first_horizon if inputs.end else 0))

    def _inject(self, target: int) -> Inject | None:
        if target <= self._injected:
            return None  # on its way already
        self._injected = target
        return Inject(target)


class Follower:
    """Follows `__mainstem.heartbeats` in a thread: the last statement per topic."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._statements: dict[str, Statement] = {}
        self._broken: dict[str, Statement] = {}  # ends after which more came
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mainstem-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def statement(self, topic: str) -> Statement | None:
        with self._lock:
            return self._statements.get(topic)

    def apply(self, value: bytes) -> None:
        """Take in one record."""
        try:
            statement = decode(value)
        except CorruptData as error:
            log.warning("heartbeat_ignored", reason=str(error))
            return
        with self._lock:
            self._statements[statement.topic] = statement

    def still_speak(self, statements: Iterable[Statement]) -> bool:
        """Whether all of them speak of the topics that have their names now, none of which was deleted and made anew
        since, and nothing has followed where they say that nothing will: then they say nothing of what is there now.
        """
        given = list(statements)
        if any(self._broken.get(each.topic) == each for each in given):
            return False
        named = {each.topic: each.topic_id for each in given if each.topic_id}
        return topic_ids(self._connection, named) == named and not any(map(self._is_broken, given))

    def _is_broken(self, statement: Statement) -> bool:
        """Whether there are records after the end that was stated; more than the markers of transactions."""
        if not statement.end:
            return False
        with closing(RangeReader(self._connection, statement.topic, deleted="earliest", name=_NAME)) as reader:
            try:
                ends = reader.ends()
            except UnknownTopic:
                return True
            start = {partition: statement.positions.get(partition, 0) for partition in ends}
            followed = any(True for _ in reader.read(start, ends))
        if followed:
            log.info("end_not_kept", topic=statement.topic, positions=statement.positions, ends=ends)
            self._broken[statement.topic] = statement
        return followed

    def _run(self) -> None:
        # Not a `CommittedReader`: nobody waits for the topic to answer, and idle polling is not free.
        consumer: Consumer | None = None
        while not self._stop.is_set():
            try:
                if consumer is None:
                    consumer = committed_consumer(self._connection, _NAME, deleted="earliest")
                    consumer.assign([ConfluentPartition(HEARTBEATS, 0, 0)])
                message = consumer.poll(0.2)
                if message is not None and is_record(message, HEARTBEATS):
                    self.apply(message.value() or b"")
            except Exception as error:  # whatever it is: windows of finished inputs would stay open for ever
                log.warning("heartbeats_unreadable", reason=f"{type(error).__name__}: {error}")
                self._stop.wait(0.5)
        if consumer is not None:
            consumer.close()
