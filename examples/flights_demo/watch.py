"""What the demo waits for, told by the log itself:
progress of jobs, positions of sources, books of readers, ends of topics.
"""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from waiting import LONGEST_WAIT_S, Background, Stuck

from mainstem.client.connection import Connection
from mainstem.client.heartbeats import decode
from mainstem.client.internal import AUDIT, HEARTBEATS, PROGRESS, SOURCES
from mainstem.client.topics import end_offsets
from mainstem.registry.reader import TypedReader

Positions = dict[int, int]
TELL_EVERY_S = 5.0


class Watch:
    """Follows Mainstem's own topics in threads; `wait` returns as soon as what is asked for has been said there."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changed = threading.Condition()
        self._moved = time.monotonic()  # when a job, a reader or an end was last heard of; a source tells the time, too
        self.basis: dict[str, dict[str, Positions]] = {}  # job -> topic -> partition -> next offset
        self.processed = 0  # offsets, by all jobs together
        self.sources: dict[str, dict[str, Any]] = {}  # source -> its position
        self.readers: dict[tuple[str, str], Positions] = {}  # (reader, topic) -> partition -> next offset
        self.ended: set[str] = set()  # topics to which nothing follows: their job has closed its last window
        told = {PROGRESS: self._progress, SOURCES: self._source, AUDIT: self._audit, HEARTBEATS: self._end}
        self._threads = [
            Background(lambda topic=topic, take=take: self._follow(topic, take))  # type: ignore[misc]
            for topic, take in told.items()
        ]
        for thread in self._threads:
            thread.start()

    def wait(
        self,
        what: str,
        left: Callable[[], int],
        *,
        unit: str,
        check: Callable[[], None],
        tell: Callable[[str], None] = print,
    ) -> None:
        """Wait until nothing is `left()`, and tell now and then how much it is, in its `unit`.

        `check` is called meanwhile, and raises where there is nothing to wait for any more.

        Raises:
            Stuck: nothing has moved for `LONGEST_WAIT_S`.
        """
        began = told = time.monotonic()
        with self._changed:
            while not self._changed.wait_for(lambda: left() == 0, 2):
                if time.monotonic() - told >= TELL_EVERY_S:
                    told = time.monotonic()
                    tell(f"  {left():,} {unit} left")
                check()
                for thread in self._threads:
                    thread.check()
                still_s = time.monotonic() - max(began, self._moved)
                if still_s > LONGEST_WAIT_S:
                    raise Stuck(f"{what}: nothing has moved for {still_s:.0f} s")

    def ends(self, *topics: str) -> dict[str, Positions]:
        """The last stable offsets of now."""
        return {topic: end_offsets(self._connection, topic, committed=True) for topic in topics}

    def data_ends(self, *topics: str) -> dict[str, Positions]:
        """The offsets after the last record of every partition: what a reader can say that it has.

        The last offsets of a partition are control records and records of aborted transactions; no reader gets them.
        """
        result: dict[str, Positions] = {}
        for topic, ends in self.ends(*topics).items():
            found: Positions = {}
            back = 2
            while len(found) < len(ends):
                start = max(0, max(ends.values()) - back)
                with TypedReader(self._connection, topic, start=str(start)) as reader:
                    for record in reader:
                        found[record.partition] = max(found.get(record.partition, 0), record.offset + 1)
                found |= {p: 0 for p, end in ends.items() if p not in found and (end == 0 or start == 0)}
                back *= 8
            result[topic] = found
        return result

    def unprocessed(self, job: str, targets: dict[str, Positions]) -> int:
        """How many offsets of `targets` the job has not processed yet."""
        basis = self.basis.get(job, {})
        return _missing({topic: basis.get(topic, {}) for topic in targets}, targets)

    def behind(self, source: str, lsn: int) -> int:
        """How many bytes of its database's WAL before `lsn` the source has not read yet."""
        return max(0, lsn - int(self.sources.get(source, {}).get("lsn", 0)))

    def unread(self, reader: str, targets: dict[str, Positions]) -> int:
        """How many offsets of `targets` (see `data_ends`) the reader does not have yet."""
        return _missing({topic: self.readers.get((reader, topic), {}) for topic in targets}, targets)

    def _follow(self, topic: str, take: Callable[[Any], None]) -> None:
        with TypedReader(self._connection, topic, follow=True) as reader:
            for record in reader:
                with self._changed:
                    take(record)
                    self._changed.notify_all()

    def _progress(self, record: Any) -> None:
        said = record.value
        known = self.basis.setdefault(said["job"], {})
        for topic, positions in said["basis"].items():
            known.setdefault(topic, {}).update({int(p): offset for p, offset in positions.items()})
        self.processed = sum(sum(p.values()) for topics in self.basis.values() for p in topics.values())
        self._moved = time.monotonic()

    def _source(self, record: Any) -> None:
        if record.value is not None:
            self.sources[record.key] = record.value["position"]

    def _audit(self, record: Any) -> None:
        said = record.value
        positions = self.readers.setdefault((said["reader"], said["topic"]), {})
        positions[said["partition"]] = max(said["to"], positions.get(said["partition"], 0))
        self._moved = time.monotonic()

    def _end(self, record: Any) -> None:
        said = decode(json.dumps(record.value).encode())
        if said.end and said.topic not in self.ended:
            self.ended.add(said.topic)
            self._moved = time.monotonic()


def _missing(known: dict[str, Positions], targets: dict[str, Positions]) -> int:
    return sum(
        max(0, offset - known[topic].get(partition, 0))
        for topic, positions in targets.items()
        for partition, offset in positions.items()
    )
