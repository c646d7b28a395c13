"""What a client leaves behind when it goes: nothing that waits for the collector of garbage."""

import asyncio
import gc
import socket
import ssl
import struct
import weakref

import pytest
import uvloop

from mainstem.broker.config import BrokerConfig, ListenerConfig
from mainstem.core import SystemClock
from tests.support.broker import running, until
from tests.support.certificates import Authority

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def come_and_go(port, context):
    with socket.create_connection(("127.0.0.1", port)) as plain:
        client = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        client.sendall(API_VERSIONS)
        (size,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL if context is None else 0))
        while size > 0:
            size -= len(client.recv(size))
        client.close()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_client_that_has_gone_is_no_garbage(tmp_path, protocol):
    """A transport of TLS and its connection referred to each other: half a megabyte for each client that had gone."""
    Authority(tmp_path).issue("log")
    files = {"certificate_file": str(tmp_path / "log.pem"), "key_file": str(tmp_path / "log.key")}
    out = ListenerConfig(port=0, protocol=protocol, **(files if protocol.endswith("SSL") else {}))
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem")) if protocol.endswith("SSL") else None

    async def check() -> None:
        users = {"alice": "secret"} if protocol.startswith("SASL") else {}
        config = BrokerConfig(port=0, users=users, listeners={"out": out})
        async with running(tmp_path / "data", SystemClock(), config) as broker:
            port = broker.listeners[1].port
            made = []

            class Connections(set):
                def add(self, connection):
                    made.append(weakref.ref(connection))
                    super().add(connection)

            broker.connections = Connections()
            await asyncio.to_thread(come_and_go, port, context)  # what is imported and made once
            gc.collect()
            gc.disable()
            try:
                made.clear()
                for _ in range(3):
                    await asyncio.to_thread(come_and_go, port, context)
                await until(lambda: not broker.connections, "all have gone")
                await until(lambda: [each() for each in made] == [None] * 3, "nothing is left of them")
            finally:
                gc.enable()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())
