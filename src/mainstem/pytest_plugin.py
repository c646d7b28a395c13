"""pytest: `def test_x(mainstem_log): ...` gets an embedded log of its own session; its address is
`mainstem_log.bootstrap`. `mainstem_topic` is the name of a new topic in it, which no other test has.
"""

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mainstem.embedded_log import EmbeddedLog


@pytest.fixture(scope="session")
def mainstem_log() -> "Iterator[EmbeddedLog]":
    """A log that speaks the Kafka protocol, started for this test session and removed after it."""
    from mainstem import embedded

    with embedded() as log:
        yield log


@pytest.fixture
def mainstem_topic(mainstem_log: "EmbeddedLog", request: pytest.FixtureRequest) -> str:
    """A topic with one partition that is this test's own; its name begins with the test's."""
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:200]
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    mainstem_log.create_topic(topic)
    return topic
