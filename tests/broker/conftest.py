"""One embedded log for the broker's tests, and a raw connection to it."""

import uuid
from collections.abc import Iterator

import pytest

from mainstem.core import ManualClock
from mainstem.embedded_log import EmbeddedLog
from mainstem.wire import writing
from tests.support.raw import RawClient


@pytest.fixture(autouse=True, scope="session")
def no_field_is_misspelt() -> Iterator[None]:
    """An answer may hold fields that the asked version does not have, but none that no version has."""
    writing.strict = True
    yield
    writing.strict = False


@pytest.fixture
def raw(mainstem_log: EmbeddedLog) -> Iterator[RawClient]:
    with RawClient(mainstem_log.bootstrap) as client:
        yield client


@pytest.fixture
def clock() -> ManualClock:
    """For a broker of the test's own."""
    return ManualClock()


@pytest.fixture
def topic(raw: RawClient) -> str:
    """A new topic with one partition."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    raw.create_topic(name)
    return name
