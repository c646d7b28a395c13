"""The room's tests run against the embedded log and, with `--kafka`, against a real Kafka."""

import uuid

import pytest

from mainstem.client import Connection


@pytest.fixture(scope="session", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def connection(request: pytest.FixtureRequest) -> Connection:
    return Connection(
        request.getfixturevalue("mainstem_log" if request.param == "embedded" else "kafka_broker").bootstrap
    )


@pytest.fixture
def topic() -> str:
    return f"replicate-{uuid.uuid4().hex[:8]}"
