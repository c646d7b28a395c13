"""Every test of the client runs against the embedded log and, with `--kafka`, against a real Kafka."""

import uuid

import pytest

from mainstem.client import Connection
from mainstem.client.topics import ensure_internal_topics, ensure_topic


@pytest.fixture(scope="session", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def connection(request: pytest.FixtureRequest) -> Connection:
    log = request.getfixturevalue("mainstem_log" if request.param == "embedded" else "kafka_broker")
    connection = Connection(log.bootstrap)
    ensure_internal_topics(connection)
    return connection


@pytest.fixture
def name() -> str:
    """A name that no other test uses: for a topic, a source, a job."""
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(connection: Connection, name: str) -> str:
    """A topic of three partitions."""
    ensure_topic(connection, name, 3)
    return name
