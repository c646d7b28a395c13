"""What destinations state of what they have read: `__mainstem.audit`.

It is compacted, with one record for each reader and partition. A statement speaks of everything since the reader's
first record, so the last one is all that is needed. A job states the same in the marker of each batch (`progress`), in
the batch's own transaction.
"""

from collections.abc import Iterable, Sequence

import msgspec

from mainstem.client.append import append
from mainstem.client.compacted import read_state
from mainstem.client.connection import Connection
from mainstem.client.internal import AUDIT, COMMITS
from mainstem.client.progress import Marker, Read


class Report(Read, frozen=True, kw_only=True, omit_defaults=False):
    """All that `reader` has done with the records of a partition."""

    reader: str
    topic: str
    partition: int


def write_reports(connection: Connection, reports: Sequence[Report]) -> None:
    """Durable on return.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    if reports:
        append(connection, AUDIT, [(_key(report), msgspec.json.encode(report)) for report in reports])


def read_reports(connection: Connection, existing: Iterable[str]) -> list[Report]:
    """The last statement of every reader of every partition, jobs included.

    Args:
        connection: the log.
        existing: the topics that there are.
    """
    return [*_destinations(connection, existing), *_jobs(connection, existing)]


def _destinations(connection: Connection, existing: Iterable[str]) -> list[Report]:
    if AUDIT not in existing:
        return []
    return list(read_state(connection, AUDIT, Report).values())


def _jobs(connection: Connection, existing: Iterable[str]) -> list[Report]:
    if COMMITS not in existing:
        return []
    return [
        Report(reader=job, topic=topic, partition=partition, **msgspec.structs.asdict(read))
        for job, marker in read_state(connection, COMMITS, Marker).items()
        for topics in marker.read.values()
        for topic, partitions in topics.items()
        for partition, read in partitions.items()
    ]


def _key(report: Report) -> bytes:
    return f"{report.reader} {report.topic}-{report.partition}".encode()
