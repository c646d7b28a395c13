"""A log that serves what is not finished too (`broker.handlers.unfinished`).

The fixture `mainstem_log` of a module that imports it, in the place of the session's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import mainstem
from mainstem.broker import handlers
from mainstem.embedded_log import EmbeddedLog


@contextmanager
def all_served() -> Iterator[None]:
    """Brokers that are started meanwhile serve every handler."""
    before = set(handlers.unfinished)
    handlers.unfinished.clear()
    yield
    handlers.unfinished |= before


@pytest.fixture(scope="module")
def mainstem_log() -> Iterator[EmbeddedLog]:
    with all_served(), mainstem.embedded() as log:
        yield log
