"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

    session id 0, epoch -1    no session: the request names every partition, so does the answer
    epoch 0                   a full request that asks for a session; the answer brings its id
    epoch n > 0               the n-th request of a session: partitions that changed, and those to forget;
                              the answer holds partitions with records, an error or a moved watermark only

Pure state; the clock is passed in. A session may be used over any connection. When the cache is full, by sessions or by
the partitions of all of them, those that were not used for two minutes give way; if there are none, the client is
served without a session.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

import msgspec

from mainstem.core import LONGEST_TOPIC_NAME, Clock
from mainstem.wire.errors import Code, RequestError

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
EVICT_AFTER_SECONDS: Final = 120.0
PARTITIONS_PER_SLOT: Final = 200
"""On average: 1,000 slots are 80 MB at most. One session may have more, as long as all together do not."""
_INT32_MAX: Final = 2**31 - 1

PartitionKey = tuple[str | UUID | None, int]


class FetchPartition(msgspec.Struct):
    """What is wanted of one partition, and what the session's last answer said about it."""

    topic: str | UUID | None
    index: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    answered_high_watermark: int = -1
    answered_log_start_offset: int = -1

    @property
    def key(self) -> PartitionKey:
        return (self.topic, self.index)


class FetchSession:
    """The partitions of one session, in the order in which they are read: those that had records go to the end."""

    def __init__(self, session_id: int, partitions: Iterable[FetchPartition], *, by_id: bool, now: float) -> None:
        self.session_id = session_id
        self.epoch = 1
        self.by_id = by_id
        self.used_at = now
        self.partitions: OrderedDict[PartitionKey, FetchPartition] = OrderedDict((p.key, p) for p in partitions)

    def update(self, changed: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]) -> None:
        for partition in changed:
            known = self.partitions.get(partition.key)
            if known is not None:
                partition.answered_high_watermark = known.answered_high_watermark
                partition.answered_log_start_offset = known.answered_log_start_offset
            self.partitions[partition.key] = partition
        for key in forgotten:
            self.partitions.pop(key, None)

    def answered(self, partition: FetchPartition, *, had_records: bool) -> None:
        """The answer holds this partition; if it had records, others come first next time."""
        if had_records and partition.key in self.partitions:
            self.partitions.move_to_end(partition.key)


class FetchSessions:
    """All sessions of the broker, the least recently used first."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots = slots
        self._most_partitions = slots * PARTITIONS_PER_SLOT
        self._partitions = 0  # of all sessions
        self._clock = clock
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, partitions: Sequence[FetchPartition], *, by_id: bool) -> FetchSession | None:
        """A new session, or None if there is no room for it."""
        now = self._clock.monotonic()
        if len(partitions) > self._most_partitions or not _are_names(partitions):
            return None
        while len(self._sessions) >= self._slots or self._partitions + len(partitions) > self._most_partitions:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.used_at < EVICT_AFTER_SECONDS:
                return None
            self.close(oldest.session_id)
        # At random, as in Kafka: who still has one of before a start, or guesses, is not to move on another's.
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = int.from_bytes(os.urandom(4)) & _INT32_MAX
        session = FetchSession(session_id, partitions, by_id=by_id, now=now)
        self._sessions[session.session_id] = session
        self._partitions += len(session.partitions)
        return session

    def close(self, session_id: int) -> None:
        """Forget a session, if it is known."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)

    def proceed(
        self,
        session_id: int,
        epoch: int,
        changed: Sequence[FetchPartition],
        forgotten: Iterable[PartitionKey],
        *,
        by_id: bool,
    ) -> FetchSession:
        """The session, with the changes of its request number `epoch`.

        Raises:
            RequestError: no such session, another epoch, or partitions named the other way; there is no room for more
                partitions: the session is closed, and the client asks for all of them anew.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise RequestError(Code.fetch_session_id_not_found, f"there is no fetch session {session_id}")
        if session.by_id is not by_id:
            raise RequestError(Code.fetch_session_topic_id_error, f"fetch session {session_id} names topics otherwise")
        if session.epoch != epoch:
            raise RequestError(
                Code.invalid_fetch_session_epoch, f"fetch session {session_id}: epoch {epoch}, expected {session.epoch}"
            )
        session.epoch = epoch % _INT32_MAX + 1
        session.used_at = self._clock.monotonic()
        self._sessions.move_to_end(session_id)
        before = len(session.partitions)
        session.update(changed, forgotten)
        added = len(session.partitions) - before
        self._partitions += added
        if not _are_names(changed) or (added > 0 and self._partitions > self._most_partitions):
            self.close(session_id)
            room = f"{self._most_partitions} partitions, and names of {LONGEST_TOPIC_NAME} characters"
            raise RequestError(
                Code.fetch_session_id_not_found,
                f"fetch sessions have room for {room}: session {session_id} is closed",
            )
        return session


def _are_names(partitions: Iterable[FetchPartition]) -> bool:
    """Whether they may be topics' names: what a session keeps is to be small, also of topics that are not there."""
    return all(not isinstance(each.topic, str) or len(each.topic) <= LONGEST_TOPIC_NAME for each in partitions)
