"""A serving node as a process: its views behind HTTP until it is told to stop."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import uvloop

from mainstem.client.connection import Connection
from mainstem.core.task import TaskState
from mainstem.serve.app import App
from mainstem.serve.config import ServeConfig
from mainstem.serve.node import Node
from mainstem.web.server import WebServer, bound


def run(
    name: str,
    config: ServeConfig,
    address: str,
    connection: Connection,
    directory: Path,
    *,
    on_ready: Callable[[str], None] = lambda _: None,
    on_change: Callable[[list[TaskState]], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM; requests under way are answered first.

    Args:
        name: of the node.
        config: its settings.
        address: HOST:PORT.
        connection: the log.
        directory: of its indexes; no other process may use it.
        on_ready: told the address (`host:port`) once requests are answered; views may still be reading then.
        on_change: called with the states of all views when one has changed, from any thread.

    Raises:
        AddressInUse, BadSetting: the address cannot be bound.
        BrokerUnavailable: the log does not answer.
    """
    option = f"[serve.{name.rpartition('-')[0] or name}] listen"
    listener = bound(address, option, option)
    node = Node(name, config, connection, directory, on_change=on_change)
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(node, address, listener, on_ready))


async def _serve(node: Node, address: str, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
    await node.open()

    def ready(at: str) -> None:
        node.announce(at)
        on_ready(at)

    app = App(node, address)
    await WebServer(app.app, listener, ready, app.leave).run_here()
