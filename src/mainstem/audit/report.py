"""Collect the books of a whole log: what writers and readers say in Mainstem's own topics, and what the log holds."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mainstem.audit.books import Count, Line, WriterStatement, balance
from mainstem.audit.scan import scan
from mainstem.audit.splices import SpliceBooks, splice_lines
from mainstem.client import topics
from mainstem.client.catalog import (
    VIEW,
    current_versions,
    entries,
    read_catalog,
    retired_readers,
    sinks_of,
    spliced_jobs,
    view_reads,
)
from mainstem.client.compacted import read_state
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG, COMMITS, SOURCES, job_key
from mainstem.client.progress import Marker, Written
from mainstem.client.reports import read_reports
from mainstem.client.splices import At, source_name
from mainstem.client.writer import SourceState
from mainstem.core import TopicPartition, UserError
from mainstem.core.prepared import prepared


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
    # Of a reader that reads no more nothing is expected; nor of slices, each of which has read what it was asked for.
    not_expected = retired_readers(catalog) | _sliced(catalog)
    readers = [
        report
        for report in read_reports(connection, existing)
        if TopicPartition(report.topic, report.partition) in wanted
        and report.reader not in not_expected
        and (not report.reader.startswith(VIEW) or report.topic in views.get(report.reader, ()))
    ]
    for report in readers:
        wanted[TopicPartition(report.topic, report.partition)].add(report.end)
    splices = list(_splices(connection, existing, catalog))
    for splice in splices:
        for partition, offset in splice.positions():
            if partition in wanted:
                wanted[partition].add(offset)
    known = known_readers(catalog, wanted, begun={splice.name for splice in splices})
    books = scan(connection, wanted)
    lines = balance(books, before, list(_writers(connection, existing)), readers, known)
    return sorted([*lines, *splice_lines(books, splices)], key=lambda line: line.partition)


def known_readers(
    catalog: Mapping[str, dict[str, Any]], partitions: Iterable[TopicPartition], begun: Collection[str] = ()
) -> dict[TopicPartition, set[str]]:
    """Who reads each partition, by the catalog: every version of a job its inputs, a sink what its entry names, a view
    what its node says, a splice that has not `begun` the output of the current version.

    A sink's entry holds `topics`, a list, or `pattern`, a regular expression; and `reader`, where the name under which
    it speaks to the audit is not the sink's own.
    """
    by_topic: dict[str, set[TopicPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, set()).add(partition)
    readers: list[tuple[str, set[str]]] = []
    for name, job in entries(catalog, "job").items():
        for version, about in job.get("versions", {}).items():
            if not about.get("sliced"):
                readers.append((job_key(name, version), set(about.get("inputs", {}).values())))
    for name, sink in sinks_of(catalog).items():
        pattern = sink.get("pattern")
        matched = {topic for topic in by_topic if pattern is not None and re.fullmatch(pattern, topic)}
        readers.append((sink.get("reader", name), matched | set(sink.get("topics", ()))))
    readers += view_reads(catalog).items()
    jobs, current = entries(catalog, "job"), current_versions(catalog)
    for name, of in spliced_jobs(catalog).items():
        about = jobs.get(of, {}).get("versions", {}).get(current.get(of, ""), {})
        if name not in begun and "output" in about:
            readers.append((f"splice {name}", {about["output"]}))
    known: dict[TopicPartition, set[str]] = {}
    for reader, read in readers:
        for topic in read:
            for partition in by_topic.get(topic, ()):
                known.setdefault(partition, set()).add(reader)
    return known


def _sliced(catalog: Mapping[str, dict[str, Any]]) -> set[str]:
    """The versions of jobs that are run slice by slice."""
    return {
        job_key(name, version)
        for name, job in entries(catalog, "job").items()
        for version, about in job.get("versions", {}).items()
        if about.get("sliced")
    }


def _splices(
    connection: Connection, existing: Collection[str], catalog: Mapping[str, dict[str, Any]]
) -> Iterator[SpliceBooks]:
    """Those that projects on this log have, and that have begun."""
    jobs, current = spliced_jobs(catalog), current_versions(catalog)
    states = read_state(connection, SOURCES, SourceState) if SOURCES in existing else {}
    for name, job in sorted(jobs.items()):
        state = states.get(source_name(name))
        if state is not None:
            at = msgspec.convert(state.position, prepared(At), strict=False)
            written = sum(state.written.get(name, {}).values(), Written())
            yield SpliceBooks(name, at.with_books(written), written, current.get(job, ""))


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
