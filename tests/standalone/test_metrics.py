import os
import re
import signal
import time

import httpx
import msgspec
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from mainstem import embedded
from mainstem.client.append import append
from mainstem.client.catalog import write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import COMMITS
from mainstem.client.progress import Marker, Read, Written
from mainstem.client.reports import Report, write_reports
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.client.writer import TransactionalWriter
from mainstem.connect.gateway import Gateway
from mainstem.connect.gateway_config import GatewayConfig
from mainstem.core.locks import DirectoryLock
from mainstem.core.task import TaskState
from mainstem.standalone import metrics as module
from mainstem.standalone.disks import disk_of
from mainstem.standalone.metrics import Metrics, families
from mainstem.standalone.overview import Overview, overview
from mainstem.standalone.state import UpState, save
from mainstem.standalone.supervisor import ChildState
from mainstem.standalone.tasks import TasksWriter
from tests.support.repository import ROOT
from tests.support.serving import served

PAGE = ROOT / "docs" / "metrics.md"
SCRAPE_SECONDS = 10  # after which Prometheus gives up


@pytest.fixture(scope="module")
def log():
    with embedded(child=True) as log:
        yield log


@pytest.fixture(scope="module")
def connection(log):
    connection = Connection(log.bootstrap)
    ensure_internal_topics(connection)
    ensure_topic(connection, "orders", 1)
    writer = TransactionalWriter(connection, "shop")
    writer.open()
    writer.begin()
    for n in range(10):
        writer.send("orders", None, b"%d" % n, b"v")
    writer.commit({"row": 10})
    writer.close()
    about = {"code": "c0de", "output": "totals", "inputs": {"orders": "orders"}, "determinism": "exact", "reason": ""}
    write_catalog(connection, {"job:totals": {"versions": {"1": about}, "current": "1"}})
    marker = Marker(
        "totals", "1", "uuid", 4, {"orders": {"orders": {0: 6}}}, {},
        {"totals": {0: Written(3, 1)}, "totals.quarantine": {0: Written(2, 1)}},
        {"orders": {"orders": {0: Read(end=6, rows=3, late=2, quarantined=1)}}},
    )  # fmt: skip
    append(connection, COMMITS, [(b"totals@1", msgspec.json.encode(marker))])
    write_reports(connection, [Report(reader='la"ke', topic="orders", partition=0, end=8, rows=8)])
    return connection


@pytest.fixture
def data(tmp_path, connection):
    """A data directory of which `mainstem up` says that a job runs and a source fails."""
    with DirectoryLock(tmp_path):
        children = [ChildState("connect", "running", 4710, 2), ChildState("spark-c0de", "running", 4711)]
        save(tmp_path, UpState(1, str(tmp_path), connection.bootstrap, "http://127.0.0.1:1", 0.0, children))
        figures = {"batch_ms": 340, "planning_ms": 60, "rows_ms": 210, "commit_ms": 20, "checkpoint_ms": 50}
        figures |= {"state_rows": 7, "state_memory_bytes": 1024, "state_disk_bytes": 99, "running_ms": 1500}
        TasksWriter(tmp_path, 4711, "spark-c0de").save([TaskState("job totals@1", figures=figures)])
        TasksWriter(tmp_path, 4710).save([TaskState("source shop", "waiting", failures=3, error="no database")])
        yield tmp_path


def gateway(connection, data):
    doors = [Metrics(data, connection)]
    return Gateway(connection, GatewayConfig(), on_taken_over=lambda: None, doors=doors)


def samples(text):
    """By name and labels, as Prometheus's own parser reads them."""
    found = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            key = name.removeprefix("mainstem_"), *sorted(labels.items())
            assert key not in found
            found[key] = value
    return found


def test_what_the_node_and_its_log_know_is_told_in_prometheus_format(connection, data):
    with served(gateway(connection, data).app) as url:
        answer = httpx.get(f"{url}/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        seen = samples(answer.text)
        asked = httpx.get(f"{url}/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert [each.name for each in openmetrics.text_string_to_metric_families(asked.text)]
    assert seen[("log_up",)] == 1
    job = ("job", "totals"), ("version", "1")
    of_job = {key[0]: value for key, value in seen.items() if key[1:] == job}
    assert of_job == {
        "job_current": 1, "job_lag_offsets": 5, "job_batches_total": 5, "job_records_read_total": 6,
        "job_records_undecodable_total": 1, "job_rows_written_total": 3, "job_rows_rejected_total": 2,
        "job_rows_late_total": 2, "job_running_batch_seconds": 1.5, "job_state_rows": 7,
        "job_state_memory_bytes": 1024, "job_state_disk_bytes": 99,
    }  # fmt: skip
    phases = {key[2][1]: value for key, value in seen.items() if key[0] == "job_last_batch_seconds"}
    assert phases == {"batch": 0.34, "planning": 0.06, "rows": 0.21, "commit": 0.02, "checkpoint": 0.05}
    assert seen["reader_lag_offsets", ("reader", 'la"ke'), ("topic", "orders")] == 3
    assert seen["source_records_total", ("source", "shop")] == 10
    assert seen["process_restarts_total", ("process", "connect")] == 2
    assert seen["task_up", ("kind", "job"), ("task", "totals@1")] == 1
    assert seen["task_up", ("kind", "source"), ("task", "shop")] == 0
    assert seen["task_failures", ("kind", "source"), ("task", "shop")] == 3
    assert seen[("disk_free_bytes",)] < seen[("disk_bytes",)]


def test_who_asks_within_a_second_is_told_the_same(connection, data, monkeypatch):
    """However many ask: what is told costs the log some requests."""
    reads = []

    def read(*arguments):
        reads.append(1)
        return overview(*arguments)

    monkeypatch.setattr(module, "overview", read)
    monkeypatch.setattr(module, "FRESH_SECONDS", 600)
    with served(gateway(connection, data).app) as url:
        assert [httpx.get(f"{url}/metrics").status_code for _ in range(5)] == [200] * 5
        assert len(reads) == 1
        monkeypatch.setattr(module, "FRESH_SECONDS", 0)
        httpx.get(f"{url}/metrics")
    assert len(reads) == 2


def test_each_is_on_the_page_and_no_other():
    """With its kind, as a counter's name ends in `_total`."""
    listed = dict(re.findall(r"^\| `mainstem_(\w+)`[^|]*\| (\w+) \|", PAGE.read_text(), re.MULTILINE))
    seen = Overview(up=True, disk=disk_of(ROOT))
    there = {each.name.removeprefix("mainstem_"): each.type for each in families(seen)} | {"log_up": "gauge"}
    assert listed == {f"{name}_total" if kind == "counter" else name: kind for name, kind in there.items()}


def test_an_answer_that_takes_long_is_for_the_next_who_asks(connection, data, monkeypatch):
    """Each came too late, was thrown away, and the log was told to be down for good."""

    def slow(*arguments):
        time.sleep(0 if arguments[1] is None else 0.6)
        return overview(*arguments)

    monkeypatch.setattr(module, "overview", slow)
    monkeypatch.setattr(module, "LOG_SECONDS", 0.3)
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.1)
    with served(gateway(connection, data).app) as url:
        told = []
        for _ in range(4):
            told.append(samples(httpx.get(f"{url}/metrics").text)[("log_up",)])
            time.sleep(0.8)
    assert told == [0, 1, 0, 1]


def test_without_the_log_what_the_node_knows_is_told_before_a_scrape_is_given_up(connection, data, log):
    with served(gateway(connection, data).app) as url:
        assert samples(httpx.get(f"{url}/metrics").text)[("log_up",)] == 1
        os.kill(log.process_id, signal.SIGSTOP)
        try:
            time.sleep(module.FRESH_SECONDS + 0.1)
            began = time.monotonic()
            seen = samples(httpx.get(f"{url}/metrics", timeout=60).text)
            assert time.monotonic() - began < SCRAPE_SECONDS
        finally:
            os.kill(log.process_id, signal.SIGCONT)
    assert seen[("log_up",)] == 0
    assert seen["task_up", ("kind", "job"), ("task", "totals@1")] == 1
