"""A log to test against and what runs on it: fixtures for the conftest files of rooms above the broker."""

import os
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from starlette.applications import Starlette

from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_internal_topics
from mainstem.registry.app import routes
from mainstem.registry.client import Registry
from mainstem.registry.store import Store
from tests.support.serving import served


@pytest.fixture(scope="session")
def log_connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """The embedded log; with `--kafka`, a real Apache Kafka; or the cluster that MAINSTEM_TEST_BOOTSTRAP names."""
    if bootstrap := os.environ.get("MAINSTEM_TEST_BOOTSTRAP"):
        connection = Connection(bootstrap)
        ensure_internal_topics(connection)
        yield connection
    elif request.config.getoption("--kafka"):
        connection = Connection(request.getfixturevalue("kafka_broker").bootstrap)
        ensure_internal_topics(connection)
        yield connection
    else:
        import mainstem

        with mainstem.embedded() as log:
            connection = Connection(log.bootstrap)
            ensure_internal_topics(connection)
            yield connection


@contextmanager
def running_registry(connection: Connection) -> Iterator[str]:
    @asynccontextmanager
    async def lifespan(app: Starlette):
        store = Store(connection)
        await store.open()
        app.router.routes.extend(routes(store))
        yield
        await store.close()

    with served(Starlette(lifespan=lifespan)) as url:
        yield url


@pytest.fixture(scope="session")
def registry_url(log_connection: Connection) -> Iterator[str]:
    with running_registry(log_connection) as url:
        yield url


@pytest.fixture(scope="session")
def live_registry(registry_url: str) -> Registry:
    return Registry(registry_url)
