"""What a node knows of everything but rows: the catalog, and how far jobs are; followed in a thread of its own.

The catalog is read from its beginning, the progress of jobs from its last records on: what was before is in the last
commit of each version. Progress is told once the catalog is, and `caught_up` once both are as new as what was decided
at the start.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.catalog import CURRENT
from mainstem.client.compacted import decode_state, read_compacted
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG, COMMITS, PROGRESS
from mainstem.client.progress import Marker, Progress, with_ends
from mainstem.client.reader import arrived, committed_consumer, is_record
from mainstem.client.topics import end_offsets, start_offsets
from mainstem.core import CorruptData, MainstemError
from mainstem.core.logging import get_logger

log = get_logger()

_PROGRESS_RECORDS = 20_000
"""Read at the start, so that tokens of some minutes ago are known exactly."""
_AGAIN_SECONDS = 1.0


class Learned(msgspec.Struct, frozen=True):
    """What was read, in its order; `catalog` has None for an entry that was removed."""

    catalog: dict[str, dict[str, Any] | None]
    progress: list[Progress]
    markers: list[Marker]  # of each version, once: its last commit
    position: int  # of the catalog: everything below is told
    caught_up: bool
    moves: list[int] = []  # offsets in the catalog of records that say which versions are current
    progress_position: int = 0  # likewise of what jobs say; 0 before all is told that was there at the start


def follow(connection: Connection, tell: Callable[[Learned], None], stop: threading.Event) -> None:
    """Tell what is read until `stop`; after an error, all of it again."""
    while not stop.is_set():
        try:
            _follow(connection, tell, stop)
        except MainstemError as error:
            log.warning("catalog_unread", error=str(error), hint=error.hint)
            stop.wait(_AGAIN_SECONDS)
        except Exception as error:  # a bug, or the client's own: without this thread the node learns of nothing more
            log.exception("catalog_unread", error=f"{type(error).__name__}: {error}", hint="")
            stop.wait(_AGAIN_SECONDS)


def _follow(connection: Connection, tell: Callable[[Learned], None], stop: threading.Event) -> None:
    """1. the ends of what is decided  2. the last commits  3. both topics, for ever.

    An open transaction is not waited for: whoever has it may take minutes, and what it holds back is told after it, as
    what comes later is.
    """
    missing = {topic: end_offsets(connection, topic, committed=True)[0] for topic in (CATALOG, PROGRESS)}
    starts = {topic: start_offsets(connection, topic)[0] for topic in (CATALOG, PROGRESS)}
    starts[PROGRESS] = max(starts[PROGRESS], missing[PROGRESS] - _PROGRESS_RECORDS)
    markers = [with_ends(connection, marker) for marker in _markers(connection)]
    positions = dict(starts)
    progress: list[Progress] = []
    consumer = committed_consumer(connection, "mainstem.control", deleted="earliest", wait_ms=50)
    try:
        consumer.assign([ConfluentPartition(topic, 0, start) for topic, start in starts.items()])
        while not stop.is_set():
            catalog: dict[str, dict[str, Any] | None] = {}
            moves: list[int] = []
            for message in arrived(consumer, 0.2, 10_000):
                topic, end = message.topic(), message.offset()
                if is_record(message, topic):
                    _take(message, catalog, progress)
                    moves += [end] * (topic == CATALOG and message.key() == CURRENT.encode())
                    end += 1
                elif end >= missing.get(topic, 0):
                    missing.pop(topic, None)
                positions[topic] = end
            known = 0 if missing else positions[PROGRESS]
            # Not before the jobs are known: of others a lineage keeps the last batches only.
            batches, progress = ([], progress) if CATALOG in missing else (progress, [])
            tell(Learned(catalog, batches, [] if missing else markers, positions[CATALOG], not missing, moves, known))
            markers = markers if missing else []
    finally:
        consumer.close()


def _markers(connection: Connection) -> Iterator[Marker]:
    for key, value in read_compacted(connection, COMMITS, decided=True).items():
        try:
            yield decode_state(COMMITS, key, value, Marker)
        except CorruptData as error:  # anybody may have written it
            log.warning("internal_record_unreadable", error=str(error), hint=error.hint)


def _take(message: Any, catalog: dict[str, dict[str, Any] | None], progress: list[Progress]) -> None:
    key, value, topic = message.key() or b"", message.value(), message.topic()
    try:
        if topic == CATALOG:
            name = key.decode(errors="backslashreplace")
            catalog[name] = None if value is None else decode_state(topic, key, value, dict[str, Any])
        elif value is not None:
            progress.append(decode_state(topic, key, value, Progress))
    except CorruptData as error:  # anybody may have written it
        log.warning("internal_record_unreadable", error=str(error), offset=message.offset())
