"""Fixtures that several rooms' tests share."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from mainstem.core.logging import configure
from tests.support.kafka_cluster import KafkaCluster
from tests.support.properties import MUCH, USUAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One profile on every change: the same examples each time, no deadline on a shared machine. `make test-long` draws
# more, and others each time.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=USUAL)
settings.register_profile("long", deadline=None, derandomize=False, max_examples=MUCH)
settings.load_profile("default")


NOT_RUN = pytest.StashKey[Counter[str]]()
"""How many tests were left out, by the option that runs them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run what takes minutes, and more hypothesis examples")
    parser.addoption("--kafka", action="store_true", help="also run what needs a real Apache Kafka")


# A JVM of a test lives for a minute: without its optimising compiler it takes half of the processor's time. The demo as
# users run it is tested without this (tests/e2e).
ONE_COMPILER = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m"  # with one, 48 MB: full after minutes of queries
)


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("JAVA_TOOL_OPTIONS", ONE_COMPILER)
    # A shell has what it runs in the background ignore Ctrl-C, and children inherit that; tests interrupt theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # As every program does: else a test that looks at what is logged leaves structlog printing all of it, on stdout.
    configure("tests", level="warning")
    if config.getoption("--long"):
        settings.load_profile("long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    not_run = config.stash[NOT_RUN] = Counter[str]()
    keep, drop = [], []
    for item in items:
        wanted = [name for name in ("kafka", "long") if item.get_closest_marker(name)]
        lacking = [name for name in wanted if not config.getoption(f"--{name}")]
        (drop if lacking else keep).append(item)
        not_run.update(lacking[:1])
    if drop:
        config.hook.pytest_deselected(items=drop)
        items[:] = keep


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line that says what was left out, and how to run it."""
    not_run = config.stash.get(NOT_RUN, Counter())
    if not_run:
        left_out = ", ".join(f"{count} {name} (make test-{name})" for name, count in sorted(not_run.items()))
        terminalreporter.write_line(f"not run: {left_out}")


@pytest.fixture(scope="module", autouse=True)
def no_clients_of_logs_that_are_gone() -> Iterator[None]:
    """They would ask twice a second at a port that Spark, or anything else of another test, has got since."""
    yield
    if topics := sys.modules.get("mainstem.client.topics"):
        topics.admin.cache_clear()


@pytest.fixture(autouse=True)
def no_imports_of_projects_that_are_gone() -> Iterator[None]:
    """A driver goes on to import from its frozen code; here the next test has a `jobs.py` of its own."""
    yield
    if imports := sys.modules.get("mainstem.process.imports"):
        imports.stop_importing()


@pytest.fixture
def terminal() -> Iterator[None]:
    """That it is closed is told to this process and what it starts, also where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One real Kafka broker for the whole run; use your own topic names, and do not stop it."""
    with KafkaCluster(1, tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture
def kafka_cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Three real Kafka brokers of this test's own, which it may stop and kill."""
    with KafkaCluster(3, tmp_path / "kafka") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """One Spark session for the whole run, as jobs have it; take `spark.newSession()` to change its settings."""
    from mainstem.process.session import SparkConfig, start_session

    session = start_session("tests", SparkConfig(), directory=tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def spark_runs_already(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> "SparkSession":
    """What would start a Spark of its own in this process is given the run's, and what would stop it does not."""
    monkeypatch.setattr("mainstem.process.session.start_session", lambda *_, **__: spark)
    monkeypatch.setattr("mainstem.process.session.stop_session", lambda _: 0)
    return spark
