"""Mainstem: one durable log, everything else subscribes to it."""

from typing import TYPE_CHECKING, Literal, overload

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mainstem.broker.config import BrokerConfig
    from mainstem.embedded_log import ChildLog, EmbeddedLog
    from mainstem.log import LogConfig

__all__ = ["embedded"]


@overload
def embedded(
    data: "Path | None" = None,
    *,
    child: Literal[False] = False,
    broker: "BrokerConfig | None" = None,
    log: "LogConfig | None" = None,
) -> "AbstractContextManager[EmbeddedLog]": ...


@overload
def embedded(
    data: "Path | None" = None,
    *,
    child: Literal[True],
    broker: "BrokerConfig | None" = None,
    log: "LogConfig | None" = None,
) -> "AbstractContextManager[ChildLog]": ...


def embedded(
    data: "Path | None" = None,
    *,
    child: bool = False,
    broker: "BrokerConfig | None" = None,
    log: "LogConfig | None" = None,
) -> "AbstractContextManager[EmbeddedLog]":
    """A log inside this process: `with mainstem.embedded() as log:`, and any Kafka client connects to `log.bootstrap`.

    With `child` it is a process of its own, which a test may `log.kill()` and `log.start()` again. See
    `mainstem.embedded_log.embedded`, which is imported when it is called: most programs never need a broker.
    """
    from mainstem.embedded_log import embedded as run

    return run(data, child=True, broker=broker, log=log) if child else run(data, broker=broker, log=log)
