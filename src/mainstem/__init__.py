"""Mainstem: one durable log, everything else subscribes to it."""

from typing import TYPE_CHECKING, Any, Literal, overload

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from mainstem.broker.config import BrokerConfig
    from mainstem.core import MainstemError
    from mainstem.embedded_log import ChildLog, Embedded, EmbeddedLog
    from mainstem.log import LogConfig

__all__ = ["BrokerConfig", "ChildLog", "EmbeddedLog", "LogConfig", "MainstemError", "embedded"]

_WHERE = {
    "BrokerConfig": "mainstem.broker.config",
    "ChildLog": "mainstem.embedded_log",
    "EmbeddedLog": "mainstem.embedded_log",
    "LogConfig": "mainstem.log",
    "MainstemError": "mainstem.core",
}
"""Imported when they are named: most programs never need a broker."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)


@overload
def embedded(
    data: "str | PathLike[str] | None" = None,
    *,
    child: Literal[False] = False,
    broker: "BrokerConfig | Mapping[str, Any] | None" = None,
    log: "LogConfig | Mapping[str, Any] | None" = None,
    client: "Mapping[str, Any] | None" = None,
) -> "Embedded[EmbeddedLog]": ...


@overload
def embedded(
    data: "str | PathLike[str] | None" = None,
    *,
    child: Literal[True],
    broker: "BrokerConfig | Mapping[str, Any] | None" = None,
    log: "LogConfig | Mapping[str, Any] | None" = None,
    client: "Mapping[str, Any] | None" = None,
) -> "Embedded[ChildLog]": ...


def embedded(
    data: "str | PathLike[str] | None" = None,
    *,
    child: bool = False,
    broker: "BrokerConfig | Mapping[str, Any] | None" = None,
    log: "LogConfig | Mapping[str, Any] | None" = None,
    client: "Mapping[str, Any] | None" = None,
) -> "Embedded[Any]":
    """A log inside this process: `with mainstem.embedded() as log:`, and any Kafka client connects to `log.bootstrap`.
    Without a block: `log = mainstem.embedded().open()`, and `log.close()`.

    With `child` it is a process of its own, which a test may `log.kill()` and `log.start()` again. See
    `mainstem.embedded_log.embedded`, which is imported when it is called: most programs never need a broker.
    """
    from mainstem.embedded_log import embedded as run

    if child:
        return run(data, child=True, broker=broker, log=log, client=client)
    return run(data, broker=broker, log=log, client=client)
