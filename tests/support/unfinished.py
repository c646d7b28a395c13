"""A log that serves what is not finished too (`broker.handlers.unfinished`).

The fixture `mainstem_log` of a module that imports it, in the place of the session's.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import mainstem
from mainstem.broker import handlers
from mainstem.broker.config import BrokerConfig
from mainstem.embedded_log import EmbeddedLog


@contextmanager
def serving_all(data: Path | None = None, broker: BrokerConfig | None = None) -> Iterator[EmbeddedLog]:
    """An embedded log that serves every handler there is."""
    with ExitStack() as stack:
        before = set(handlers.unfinished)
        handlers.unfinished.clear()
        try:
            log = stack.enter_context(mainstem.embedded(data, broker=broker))
        finally:
            handlers.unfinished |= before
        yield log


@pytest.fixture(scope="module")
def mainstem_log() -> Iterator[EmbeddedLog]:
    with serving_all() as log:
        yield log
