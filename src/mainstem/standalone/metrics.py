"""`/metrics` of the gateway: what `mainstem status` and `mainstem job show` say, in Prometheus's format, or in
OpenMetrics' where it is asked for. docs/metrics.md has them all.

Names and units as https://prometheus.io/docs/practices/naming/ has them. What is asked for is read then, by one at a
time: who asks within a second is told the same. What is known without the log is told also while it does not answer.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mainstem.client.connection import Connection
from mainstem.core import MainstemError
from mainstem.core.clock import Clock, SystemClock
from mainstem.core.logging import get_logger
from mainstem.standalone.overview import JobState, Overview, overview

log = get_logger()

FRESH_SECONDS = 1.0
LOG_SECONDS = 5.0  # Prometheus gives a scrape up after 10, unless it is told otherwise

Values: TypeAlias = Iterable[tuple[Sequence[str], float | None]]
"""Each with the values of its labels; None: it is not known, and left out."""

_PHASES = ("batch", "planning", "rows", "commit", "checkpoint")
_WORKS = ("running", "idle", "on demand")


class Metrics:
    """A door of the gateway.

    Args:
        data: the project's data directory.
        connection: the log.
        clock: says how old an answer is.
    """

    def __init__(self, data: Path, connection: Connection, clock: Clock | None = None) -> None:
        self._data, self._connection = data, connection
        self._clock = clock or SystemClock()
        self._thread = ThreadPoolExecutor(1, "metrics")
        self._seen: asyncio.Future[Overview] | None = None
        self._seen_at = 0.0
        self._is_late = False  # what was asked for has been given to nobody: it is for the next one who asks

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/metrics", self._answer)]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def leave(self) -> None:
        """No answer goes on for ever."""

    async def _answer(self, request: Request) -> Response:
        try:
            seen, log_is_up = await asyncio.wait_for(asyncio.shield(self._asked()), LOG_SECONDS), True
            self._is_late = False
        except (MainstemError, TimeoutError) as error:
            self._is_late = isinstance(error, TimeoutError)
            log.warning("metrics_without_the_log", error=str(error) or f"no answer within {LOG_SECONDS:.0f} s")
            seen, log_is_up = await asyncio.to_thread(overview, self._data, None), False
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Seen(seen, log_is_up=log_is_up))
        return Response(encode(registry), headers={"content-type": content_type, "cache-control": "no-store"})

    def _asked(self) -> "asyncio.Future[Overview]":
        """The overview that was asked for last, or the next one where that is too old."""
        is_fresh = self._clock.monotonic() - self._seen_at < FRESH_SECONDS
        if self._seen is None or (self._seen.done() and not (is_fresh or self._is_late)):
            self._seen = asyncio.get_running_loop().run_in_executor(self._thread, self._read)
        return self._seen

    def _read(self) -> Overview:
        try:
            return overview(self._data, self._connection)
        finally:
            self._seen_at = self._clock.monotonic()


class _Seen(Collector):
    def __init__(self, seen: Overview, *, log_is_up: bool) -> None:
        self._seen, self._log_is_up = seen, log_is_up

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("mainstem_log_up", "Whether the log answers.", value=self._log_is_up)
        yield from families(self._seen)


def families(seen: Overview) -> Iterator[Metric]:
    """All metrics of what is seen, those of a kind together; also where there is none of the kind."""
    yield from _processes(seen)
    yield from _sources(seen)
    yield from _jobs(seen.jobs)
    yield from _readers(seen)
    yield from _views(seen)
    if seen.disk is not None:
        yield _gauge("disk_free_bytes", "Free on the data directory's disk.", (), [((), seen.disk.free_bytes)])
        yield _gauge("disk_bytes", "Size of the data directory's disk.", (), [((), seen.disk.bytes)])


def _processes(seen: Overview) -> Iterator[Metric]:
    children = seen.node.children if seen.node else []
    labels = ["process"]
    yield _gauge("process_up", "Whether a process of the project runs.", labels,
                 [([each.name], each.state == "running") for each in children])  # fmt: skip
    yield _count("process_restarts", "How often a process was started again.", labels,
                 [([each.name], each.restarts) for each in children])  # fmt: skip
    named = [(each.name.partition(" ")[::2], each) for each in seen.tasks]
    yield _gauge("task_up", "Whether a source, sink, job, view or splice runs, or waits for input.", ["kind", "task"],
                 [(kind, each.state in _WORKS) for kind, each in named])  # fmt: skip
    yield _gauge("task_failures", "How often it has failed in a row.", ["kind", "task"],
                 [(kind, each.failures) for kind, each in named])  # fmt: skip


def _sources(seen: Overview) -> Iterator[Metric]:
    yield _count("source_records", "Records that a source has written.", ["source"],
                 [([each.source], each.records) for each in seen.sources])  # fmt: skip
    yield _gauge("source_behind_bytes", "Bytes of its file that a source has not read.", ["source"],
                 [([each.source], each.behind_bytes) for each in seen.sources])  # fmt: skip


def _jobs(jobs: Sequence[JobState]) -> Iterator[Metric]:
    labels = ["job", "version"]
    named = [([each.job, each.version], each) for each in jobs]
    yield _gauge("job_current", "Whether readers of the job mean this version.", labels,
                 [(name, job.current) for name, job in named])  # fmt: skip
    yield _gauge("job_lag_offsets", "Offsets that a job has not read, over its inputs.", labels,
                 [(name, job.lag) for name, job in named])  # fmt: skip
    yield _count("job_batches", "Batches that a job has committed.", labels,
                 [(name, None if job.batch is None else job.batch + 1) for name, job in named])  # fmt: skip
    yield _count("job_records_read", "Records of its streams.", labels, [(name, job.read) for name, job in named])
    yield _count("job_records_undecodable", "Records that do not decode.", labels,
                 [(name, job.undecodable) for name, job in named])  # fmt: skip
    yield _count("job_rows_written", "Rows of its outputs.", labels, [(name, job.rows) for name, job in named])
    yield _count("job_rows_rejected", "Rows that its function rejected.", labels,
                 [(name, job.rejected) for name, job in named])  # fmt: skip
    yield _count("job_rows_late", "Rows that were too late for its windows.", labels,
                 [(name, job.late) for name, job in named])  # fmt: skip
    yield _gauge("job_last_batch_seconds", "What the last batch took, as a whole (batch) and by phase.",
                 [*labels, "phase"],
                 [([*name, phase], _seconds(job.figures.get(f"{phase}_ms"))) for name, job in named for phase in _PHASES])  # fmt: skip
    yield _gauge("job_running_batch_seconds", "For how long the batch that runs has run; 0: none does.", labels,
                 [(name, _seconds(job.figures.get("running_ms"))) for name, job in named])  # fmt: skip
    yield _gauge("job_state_rows", "Rows of its state.", labels,
                 [(name, job.figures.get("state_rows")) for name, job in named])  # fmt: skip
    yield _gauge("job_state_memory_bytes", "Memory of its state.", labels,
                 [(name, job.figures.get("state_memory_bytes")) for name, job in named])  # fmt: skip
    yield _gauge("job_state_disk_bytes", "Files of its state.", labels,
                 [(name, job.figures.get("state_disk_bytes")) for name, job in named])  # fmt: skip


def _readers(seen: Overview) -> Iterator[Metric]:
    labels = ["reader", "topic"]
    named = [([each.reader, each.topic], each) for each in seen.readers]
    yield _count("reader_rows", "Rows that a destination has.", labels, [(name, each.rows) for name, each in named])
    yield _count("reader_records_undecodable", "Records that do not decode.", labels,
                 [(name, each.quarantined) for name, each in named])  # fmt: skip
    yield _gauge("reader_lag_offsets", "Offsets that a destination does not have yet.", labels,
                 [(name, each.lag) for name, each in named])  # fmt: skip


def _views(seen: Overview) -> Iterator[Metric]:
    labels = ["view", "node"]
    named = [([each.view, each.node], each) for each in seen.views]
    yield _count("view_rows", "Rows that a view has applied.", labels, [(name, each.rows) for name, each in named])
    yield _gauge("view_lag_offsets", "Offsets that a view has not applied, as it said last.", labels,
                 [(name, each.lag) for name, each in named])  # fmt: skip


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _gauge(name: str, about: str, labels: Sequence[str], values: Values) -> Metric:
    return _with(GaugeMetricFamily(f"mainstem_{name}", about, labels=labels), values)


def _count(name: str, about: str, labels: Sequence[str], values: Values) -> Metric:
    return _with(CounterMetricFamily(f"mainstem_{name}", about, labels=labels), values)


def _with(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for labels, value in values:
        if value is not None:
            family.add_metric(labels, value)
    return family
