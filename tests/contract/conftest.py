"""One suite, both implementations: our log, and three brokers of Apache Kafka (`make test-kafka`)."""

import uuid
from collections.abc import Iterator

import pytest

import mainstem
from tests.contract.clients import Log
from tests.support.kafka_cluster import KafkaCluster


@pytest.fixture(scope="session")
def contract_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers for the whole suite; whoever stops one starts it again."""
    with KafkaCluster(3, tmp_path_factory.mktemp("contract"), heap_mb=320) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=["mainstem", pytest.param("kafka", marks=pytest.mark.kafka)])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    if request.param == "kafka":
        cluster = request.getfixturevalue("contract_cluster")
        yield Log("kafka", cluster.bootstrap, 3, cluster.data(1))
        return
    with mainstem.embedded() as ours:
        yield Log("mainstem", ours.bootstrap, 1, ours.data)


@pytest.fixture
def name() -> str:
    """A name that no other test has: of a topic, a group, a transactional id."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def topic(log: Log, name: str) -> str:
    """A topic of one partition."""
    return log.create(name)
