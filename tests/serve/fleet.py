"""A table of planes and a stream of flights in a log, and a node with views of them in the test's own process."""

import json
import uuid
from contextlib import contextmanager

import httpx

from mainstem.client.append import append
from mainstem.client.basis import Basis
from mainstem.client.catalog import write_catalog
from mainstem.client.topics import cluster_id, ensure_topic
from mainstem.core.config import convert
from mainstem.registry import avro
from mainstem.serve.app import App
from mainstem.serve.config import ServeConfig
from mainstem.serve.node import Node
from tests.support.serving import served

PLANE = json.dumps(
    {
        "type": "record",
        "name": "Plane",
        "fields": [
            {"name": "tailnum", "type": "string"},
            {"name": "manufacturer", "type": ["null", "string"], "default": None},
            {"name": "seats", "type": "int"},
        ],
    }
)


class Fleet:
    """A table of planes and a stream of flights in the log, and what they should be."""

    def __init__(self, connection, registry, *, unique=None):
        self.connection, self.log = connection, cluster_id(connection)
        after = f"-{uuid.uuid4().hex[:8]}" if unique is None else unique
        self.planes, self.flights = f"planes{after}", f"flights{after}"
        ids = {}
        for topic, kind in ((self.planes, "changelog"), (self.flights, "stream")):
            ensure_topic(connection, topic, 2)
            ids[topic] = registry.register(f"{topic}-value", PLANE)
            entry = {"kind": kind, "key": ["tailnum"], "subject": f"{topic}-value"}
            write_catalog(connection, {f"topic:{topic}": entry})
        self.ids = ids

    def write(self, topic, *rows):
        """Append rows; None for the row of a key deletes it. The basis of the write."""
        records = []
        for tailnum, manufacturer, seats in rows:
            row = {"tailnum": tailnum, "manufacturer": manufacturer, "seats": seats}
            value = None if seats is None else avro.encode(self.ids[topic], PLANE, row)
            records.append((tailnum.encode(), value))
        return Basis(self.log, {topic: append(self.connection, topic, records)})

    def config(self, **views):
        tables = {
            "planes": {"kind": "key-value", "topics": self.planes, "versions": True},
            "names": {"kind": "search", "topics": [self.planes, self.flights]},
            "flights": {"kind": "sql", "topics": [self.flights, self.planes]},
        }
        return convert({"views": views or tables, "snapshot_every_s": 0}, ServeConfig, where="test")

    @contextmanager
    def node(self, directory, **views):
        node = Node("answers", self.config(**views), self.connection, directory)

        app = App(node, "127.0.0.1:0").app

        async def opened(scope, receive, send):
            if scope["type"] == "lifespan":
                await node.open()
            await app(scope, receive, send)

        with served(opened) as url, httpx.Client(base_url=url, timeout=60) as client:
            client.node = node
            yield client


def make_app(node):
    return App(node, "127.0.0.1:0").app


def header(basis):
    return {"Mainstem-Basis": basis.token}
