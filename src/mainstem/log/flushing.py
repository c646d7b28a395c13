"""When segments are synced whose batches are in no journal: by number, by time, or once their topic promises more."""

import asyncio
from collections.abc import Callable, Iterable

from mainstem.log.config import FOREVER, TopicConfig
from mainstem.log.round import Write
from mainstem.log.segment import Segment

_AGAIN_SECONDS = 1.0


class Flushing:
    """What one partition has written since the last sync of its segments (`flush.messages`, `flush.ms`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        self._loop = loop
        self._schedule = schedule
        self._unsynced: dict[Segment, None] = {}  # hold batches that are in no journal
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self.records = 0
        """Appended since the last sync."""
        self.promised = False
        """What is queued ends a transaction: it is journaled, whatever the topic asks for."""

    def journals(self, config: TopicConfig) -> bool:
        """Whether the round makes durable what is queued."""
        return config.syncs_every_append or self.promised

    def take(self, writes: list[Write], config: TopicConfig) -> list[Segment]:
        """The segments to sync in the round that has `writes`."""
        journaled = self.journals(config)
        self.promised = False
        if not journaled:
            self._unsynced.update(dict.fromkeys(write.segment for write in writes))
        due = self._due or self.records >= config.flush_messages
        self._due = False
        if self._unsynced and (journaled or due):
            # Journaled: what comes now is promised, and lies behind bytes that only these syncs bring.
            sync = [segment for segment in self._unsynced if not segment.retired]
            self._unsynced.clear()
            self.records = 0
            self.stop()
            return sync
        if self._unsynced and self._timer is None and config.flush_ms < FOREVER:
            self._timer = self._loop.call_later(config.flush_ms / 1000, self._flush)
        return []

    def follow(self, config: TopicConfig) -> None:
        """What is unsynced is synced as soon as the topic asks for now, where that is sooner."""
        is_due = config.syncs_every_append or self.records >= config.flush_messages
        if not self._unsynced or (config.flush_ms >= FOREVER and not is_due):
            return
        at = self._loop.time() + (0 if is_due else config.flush_ms / 1000)
        if self._timer is None or at < self._timer.when():
            self.stop()
            self._timer = self._loop.call_at(at, self._flush)

    def again(self, segments: Iterable[Segment]) -> None:
        """The round failed before it had synced these: the next one does, and one comes soon.

        What is journaled next may lie behind bytes that only these syncs bring.
        """
        if unsynced := [segment for segment in segments if not segment.retired]:
            self._unsynced.update(dict.fromkeys(unsynced))
            self.stop()
            self._timer = self._loop.call_later(_AGAIN_SECONDS, self._flush)

    def forget(self, segments: Iterable[Segment]) -> None:
        """They have left, or nothing was written to them: there may be no file to sync."""
        for segment in segments:
            self._unsynced.pop(segment, None)

    def stop(self) -> None:
        """No round is asked for; the next one syncs what there is to sync."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._timer, self._due = None, True
        self._schedule()
