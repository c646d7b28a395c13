"""What could not be taken in is kept: the bytes as they came, and why.

The topic `<topic>.quarantine` holds one record per refused input, in Confluent's wire format; its key is the input's
key. Whoever mends it sends it again through the door it came from.
"""

import json

import msgspec

from mainstem.client.catalog import TopicEntry, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_topic
from mainstem.registry.client import Registry

SUFFIX = ".quarantine"
REJECTED_PARTITION, UNREAD_PARTITION = 0, 1
"""Of the quarantine of a job, which a batch writes at two times: rows that its function rejects; records that never
reached it, as they do not decode or came too late for its windows.
"""

# Fields may be added with a default; the meaning of one that is there does not change.
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Quarantined",
        "namespace": "mainstem",
        "fields": [
            {"name": "topic", "type": "string", "doc": "where it should have gone"},
            {
                "name": "partition",
                "type": "int",
                "default": -1,
                "doc": "where it came from in that topic; -1: nowhere yet",
            },
            {"name": "offset", "type": "long", "default": -1},
            {"name": "stage", "type": "string", "doc": "who refused it: http, file, lakehouse, ..."},
            {"name": "error", "type": "string", "doc": "a code for programs: not_json, unfit, ..."},
            {"name": "reason", "type": "string", "doc": "one line for people, with the place"},
            {"name": "key", "type": ["null", "bytes"], "default": None},
            {"name": "value", "type": ["null", "bytes"], "default": None, "doc": "the bytes as they came"},
            {"name": "schema_id", "type": ["null", "int"], "default": None, "doc": "the schema it was held against"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }
)


class Quarantined(msgspec.Struct, frozen=True):
    """One refused input."""

    topic: str
    stage: str
    error: str
    reason: str
    value: bytes | None
    at_ms: int
    key: bytes | None = None
    partition: int = -1
    offset: int = -1
    schema_id: int | None = None


def quarantine_topic(topic: str) -> str:
    """Where the refused inputs of `topic` go."""
    return topic + SUFFIX


def encode(schema_id: int, refused: Quarantined) -> bytes:
    """The value of its record; `schema_id` is that of `SCHEMA`."""
    from mainstem.registry import avro  # `mainstem status` asks for names only, and needs no extra

    row = msgspec.structs.asdict(refused)
    row["at"] = row.pop("at_ms") * 1000
    return avro.encode(schema_id, SCHEMA, row)


def ensure_quarantine(connection: Connection, registry: Registry, topic: str, *, partitions: int = 1) -> int:
    """Make the quarantine of `topic`, kept for ever, and its entry in the catalog; returns the schema's id."""
    name = quarantine_topic(topic)
    create_quarantine(connection, topic, partitions=partitions)
    return registry.register(f"{name}-value", SCHEMA)


def create_quarantine(connection: Connection, topic: str, *, partitions: int = 1) -> None:
    """The topic and its entry in the catalog; the schema is registered by the caller."""
    name = quarantine_topic(topic)
    ensure_topic(connection, name, partitions, {"retention.ms": "-1", "retention.bytes": "-1"})
    write_catalog(connection, {f"topic:{name}": TopicEntry("stream", (), "at", f"{name}-value", "quarantine")})
