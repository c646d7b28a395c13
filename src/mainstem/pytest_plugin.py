"""pytest: `def test_x(mainstem_log): ...` gets an embedded log of its own session; its address is
`mainstem_log.bootstrap`.
"""

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
