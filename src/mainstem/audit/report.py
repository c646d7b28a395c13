"""Collect the books of a whole log: what writers and readers say in Mainstem's own topics, and what the log holds."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from mainstem.audit.books import Count, Line, WriterStatement, balance
from mainstem.audit.scan import scan
from mainstem.client import topics
from mainstem.client.catalog import VIEW, entries, read_catalog, retired_readers, sinks_of, view_reads
from mainstem.client.compacted import read_state
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG, COMMITS, SOURCES, job_key
from mainstem.client.progress import Marker, Written
from mainstem.client.reports import read_reports
from mainstem.client.writer import SourceState
from mainstem.core import TopicPartition, UserError


def audit(connection: Connection, only: Collection[str] = ()) -> list[Line]:
    """Balance the books of every topic whose name does not begin with _, or of `only`.

    1. Read what writers and readers say, 2. count what the log holds, 3. read the writers again: what they wrote
    meanwhile explains a difference.

    Raises:
        UserError: a topic of `only` does not exist.
    """
    existing = topics.list_topics(connection)
    unknown = sorted(set(only) - existing.keys())
    if unknown:
        raise UserError(f"topic {unknown[0]}: no such topic", hint="`mainstem topic list` shows the topics")
    wanted = {
        TopicPartition(name, number): set[int]()
        for name, each in existing.items()
        if (name in only if only else not name.startswith("_"))
        for number in range(each.partitions)
    }
    before = list(_writers(connection, existing))
    catalog = read_catalog(connection) if CATALOG in existing else {}
    views = view_reads(catalog)
    retired = retired_readers(catalog)  # of a reader that reads no more, nothing is expected
    readers = [
        report
        for report in read_reports(connection, existing)
        if TopicPartition(report.topic, report.partition) in wanted
        and report.reader not in retired
        and (not report.reader.startswith(VIEW) or report.topic in views.get(report.reader, ()))
    ]
    for report in readers:
        wanted[TopicPartition(report.topic, report.partition)].add(report.end)
    known = known_readers(catalog, wanted)
    books = scan(connection, wanted)
    return balance(books, before, list(_writers(connection, existing)), readers, known)


def known_readers(
    catalog: Mapping[str, dict[str, Any]], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, set[str]]:
    """Who reads each partition, by the catalog: every version of a job its inputs, a sink what its entry names, a view
    what its node says.

    A sink's entry holds `topics`, a list, or `pattern`, a regular expression; and `reader`, where the name under which
    it speaks to the audit is not the sink's own.
    """
    by_topic: dict[str, set[TopicPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, set()).add(partition)
    readers: list[tuple[str, set[str]]] = []
    for name, job in entries(catalog, "job").items():
        for version, about in job.get("versions", {}).items():
            readers.append((job_key(name, version), set(about["inputs"].values())))
    for name, sink in sinks_of(catalog).items():
        pattern = sink.get("pattern")
        matched = {topic for topic in by_topic if pattern is not None and re.fullmatch(pattern, topic)}
        readers.append((sink.get("reader", name), matched | set(sink.get("topics", ()))))
    readers += view_reads(catalog).items()
    known: dict[TopicPartition, set[str]] = {}
    for reader, read in readers:
        for topic in read:
            for partition in by_topic.get(topic, ()):
                known.setdefault(partition, set()).add(reader)
    return known


def _writers(connection: Connection, existing: Collection[str]) -> Iterator[WriterStatement]:
    if SOURCES in existing:
        for source, state in read_state(connection, SOURCES, SourceState).items():
            yield from _written(f"source {source}", state.written)
    if COMMITS in existing:
        for job, marker in read_state(connection, COMMITS, Marker).items():
            yield from _written(f"job {job}", marker.written)


def _written(writer: str, written: dict[str, dict[int, Written]]) -> Iterator[WriterStatement]:
    for topic, partitions in written.items():
        for partition, total in partitions.items():
            yield WriterStatement(writer, TopicPartition(topic, partition), Count(total.count, total.hash))
