"""pytest: `def test_x(mainstem_log): ...` gets an embedded log of its own session; its address is
`mainstem_log.bootstrap`. `mainstem_topic` is the name of a new topic in it, which no other test has.
`mainstem_child_log` is a log of this test's own, in a process that it may kill and start again.

`mainstem_spark` is a Spark of this session, and `mainstem_jobs` gives the jobs of a project on it: `mainstem.testing`.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mainstem.embedded_log import ChildLog, EmbeddedLog
    from mainstem.testing import Jobs


@pytest.fixture(scope="session")
def mainstem_log_settings() -> Mapping[str, Any]:
    """What the logs of this session are started with: arguments of `mainstem.embedded`. Yours, of the same name in
    `conftest.py`, takes its place.
    """
    return {}


@pytest.fixture(scope="session")
def mainstem_log(mainstem_log_settings: Mapping[str, Any]) -> "Iterator[EmbeddedLog]":
    """A log that speaks the Kafka protocol, started for this test session and removed after it."""
    from mainstem import embedded

    with embedded(**mainstem_log_settings) as log:
        yield log


@pytest.fixture
def mainstem_child_log(mainstem_log_settings: Mapping[str, Any]) -> "Iterator[ChildLog]":
    """A log of this test's own, in a new directory and a process of its own: `kill()` it, `start()` it again."""
    from mainstem import embedded

    with embedded(**{**mainstem_log_settings, "data": None, "child": True}) as log:
        yield log


@pytest.fixture(scope="session")
def mainstem_spark() -> "Iterator[SparkSession]":
    """A Spark that is started for this test session, once a test asks for it."""
    from mainstem.core.errors import hints_in_tracebacks
    from mainstem.testing import session

    with hints_in_tracebacks(), session() as spark:
        yield spark


@pytest.fixture
def mainstem_jobs(mainstem_spark: "SparkSession", request: pytest.FixtureRequest) -> "Jobs":
    """The jobs of the project that the test's file lies in: the nearest directory above it with a `mainstem.toml`."""
    from mainstem.core.config import PROJECT_FILE
    from mainstem.core.errors import hints_in_tracebacks
    from mainstem.testing import jobs_of

    place = next((each for each in request.path.parents if (each / PROJECT_FILE).is_file()), None)
    if place is None:
        pytest.fail(f"{request.path}: expected a {PROJECT_FILE} in a directory above it, found none")
    with hints_in_tracebacks():
        return jobs_of(place, mainstem_spark)


@pytest.fixture
def mainstem_topic(mainstem_log: "EmbeddedLog", request: pytest.FixtureRequest) -> str:
    """A topic with one partition that is this test's own; its name begins with the test's."""
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:200]
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    mainstem_log.create_topic(topic)
    return topic
