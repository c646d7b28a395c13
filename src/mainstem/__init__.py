"""Mainstem: one durable log, everything else subscribes to it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mainstem.broker.config import BrokerConfig
    from mainstem.embedded_log import EmbeddedLog
    from mainstem.log import LogConfig

__all__ = ["embedded"]


def embedded(
    data: "Path | None" = None, *, broker: "BrokerConfig | None" = None, log: "LogConfig | None" = None
) -> "AbstractContextManager[EmbeddedLog]":
    """A log inside this process: `with mainstem.embedded() as log:`, and any Kafka client connects to `log.bootstrap`.

    See `mainstem.embedded_log.embedded`, which is imported when it is called: most programs never need a broker.
    """
    from mainstem.embedded_log import embedded as run

    return run(data, broker=broker, log=log)
