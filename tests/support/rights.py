"""A request of every API about things that somebody else has: what one without rights may learn and do."""

import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from mainstem.records import Record, build_batch
from tests.support.raw import RawClient
from tests.support.streams_groups import a_part, a_topology, joins


class Secrets(msgspec.Struct, frozen=True):
    """What is there and must stay hidden."""

    topic: str
    topic_id: uuid.UUID
    group: str
    transaction: str
    new: str  # a topic that is not there


def make_secrets(admin: RawClient) -> Secrets:
    """A topic with a record, a group with an offset, and a transactional id, made by somebody who may."""
    mark = uuid.uuid4().hex[:8]
    topic, group, transaction = f"secret-{mark}-t", f"secret-{mark}-g", f"secret-{mark}-x"
    admin.create_topic(topic)
    admin.find_coordinators(group, transaction)
    admin.produce(topic, b"hidden value")
    admin.settled(
        8,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    )
    admin.init(transaction)
    found = admin.call(3, 12, topics=[{"topic_id": None, "name": topic}], allow_auto_topic_creation=False)
    return Secrets(topic, found.topics[0].topic_id, group, transaction, f"secret-{mark}-new")


BATCH = build_batch([Record(0, 1_700_000_000_000, b"key", b"value")])
TRANSACTIONAL = build_batch(
    [Record(0, 1_700_000_000_000, b"key", b"value")],
    producer_id=4000,
    producer_epoch=0,
    base_sequence=0,
    transactional=True,
)
PRODUCER = {"producer_id": 4000, "producer_epoch": 0}
THE_ACL = {"principal": "User:mallory", "host": "*", "operation": 2, "permission_type": 3}


def _produce(topic: dict[str, Any], records: bytes = BATCH, **fields: Any) -> dict[str, Any]:
    data = [topic | {"partition_data": [{"index": 0, "records": records}]}]
    return {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": data, **fields}


def _fetch(topic: dict[str, Any]) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    return {
        "max_wait": 100,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [topic | {"partitions": [partition]}],
    }


def _partition(**fields: Any) -> list[dict[str, Any]]:
    return [{"partition_index": 0, **fields}]


def _configs(kind: int, name: str) -> dict[str, Any]:
    return {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}


def _alter(kind: int, name: str) -> dict[str, Any]:
    return {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configs": [{"name": "retention.ms", "value": "7"}]}
        ],
        "validate_only": False,
    }


def _share_offsets(secrets: Secrets, partition: Any = 0) -> list[dict[str, Any]]:
    return [{"topic_name": secrets.topic, "partitions": [partition]}]


def _share(secrets: Secrets, **fields: Any) -> dict[str, Any]:
    topics = [{"topic_id": secrets.topic_id, "partitions": _partition(acknowledgement_batches=[])}]
    return {"group_id": secrets.group, "member_id": "m", "topics": topics, **fields}


def _share_fetch(secrets: Secrets, **fields: Any) -> dict[str, Any]:
    limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 10, "batch_size": 10}
    return _share(secrets, forgotten_topics_data=[], **limits, **fields)


# (API key, version, what it is about, its fields)
REQUESTS: list[tuple[int, int, str, Callable[[Secrets], dict[str, Any]]]] = [
    (0, 9, "by name", lambda s: _produce({"name": s.topic})),
    (0, 13, "by id", lambda s: _produce({"topic_id": s.topic_id})),
    (0, 9, "a transaction", lambda s: _produce({"name": s.topic}, TRANSACTIONAL, transactional_id=s.transaction)),
    (0, 9, "no batch of the transaction", lambda s: _produce({"name": s.topic}, transactional_id=s.transaction)),
    (1, 12, "by name", lambda s: _fetch({"topic": s.topic})),
    (1, 13, "by id", lambda s: _fetch({"topic_id": s.topic_id})),
    (2, 7, "", lambda s: {"replica_id": -1, "topics": [{"name": s.topic, "partitions": _partition(timestamp=-1)}]}),
    (3, 9, "all", lambda s: {"topics": None}),
    (3, 9, "by name", lambda s: {"topics": [{"name": s.topic}], "include_topic_authorized_operations": True}),
    (3, 9, "the cluster", lambda s: {"topics": [], "include_cluster_authorized_operations": True}),
    (3, 9, "not there", lambda s: {"topics": [{"name": s.new}], "allow_auto_topic_creation": True}),
    (3, 12, "by id", lambda s: {"topics": [{"topic_id": s.topic_id, "name": None}]}),
    (
        8,
        8,
        "",
        lambda s: {
            "group_id": s.group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": s.topic, "partitions": _partition(committed_offset=7)}],
        },
    ),
    (
        9,
        8,
        "named",
        lambda s: {"groups": [{"group_id": s.group, "topics": [{"name": s.topic, "partition_indexes": [0]}]}]},
    ),
    (9, 8, "all", lambda s: {"groups": [{"group_id": s.group, "topics": None}]}),
    (9, 5, "one group", lambda s: {"group_id": s.group, "topics": None}),
    (10, 4, "group", lambda s: {"key_type": 0, "coordinator_keys": [s.group]}),
    (10, 4, "transaction", lambda s: {"key_type": 1, "coordinator_keys": [s.transaction]}),
    (10, 2, "old", lambda s: {"key_type": 0, "key": s.group}),
    (
        11,
        9,
        "",
        lambda s: {
            "group_id": s.group,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    ),
    (12, 4, "", lambda s: {"group_id": s.group, "generation_id": 1, "member_id": "m"}),
    (13, 5, "", lambda s: {"group_id": s.group, "members": [{"member_id": "m"}]}),
    (
        14,
        5,
        "",
        lambda s: {
            "group_id": s.group,
            "generation_id": 1,
            "member_id": "m",
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        },
    ),
    (15, 5, "", lambda s: {"groups": [s.group], "include_authorized_operations": True}),
    (16, 5, "", lambda s: {"states_filter": [], "types_filter": []}),
    (
        19,
        5,
        "",
        lambda s: {"topics": [{"name": s.new, "num_partitions": 1, "replication_factor": 1}], "timeout": 9_000},
    ),
    (20, 6, "by name", lambda s: {"topics": [{"name": s.topic, "topic_id": None}], "timeout": 9_000}),
    (20, 6, "by id", lambda s: {"topics": [{"name": None, "topic_id": s.topic_id}], "timeout": 9_000}),
    (20, 6, "not there", lambda s: {"topics": [{"name": s.new, "topic_id": None}], "timeout": 9_000}),
    (21, 2, "", lambda s: {"topics": [{"name": s.topic, "partitions": _partition(offset=1)}], "timeout": 9_000}),
    (22, 4, "transaction", lambda s: {"transactional_id": s.transaction, "transaction_timeout": 9_000}),
    (22, 4, "no transaction", lambda s: {"transactional_id": None, "transaction_timeout": 9_000}),
    (
        23,
        4,
        "",
        lambda s: {
            "replica_id": -1,
            "topics": [{"topic": s.topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
        },
    ),
    (
        24,
        3,
        "",
        lambda s: {
            "v3_and_below_transactional_id": s.transaction,
            "v3_and_below_producer_id": 4000,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": s.topic, "partitions": [0]}],
        },
    ),
    (25, 3, "", lambda s: {"transactional_id": s.transaction, "group_id": s.group, **PRODUCER}),
    (26, 3, "", lambda s: {"transactional_id": s.transaction, "committed": True, **PRODUCER}),
    (
        27,
        1,
        "",
        lambda s: {
            "markers": [
                PRODUCER
                | {
                    "transaction_result": True,
                    "topics": [{"name": s.topic, "partition_indexes": [0]}],
                    "coordinator_epoch": 0,
                }
            ]
        },
    ),
    (
        28,
        3,
        "",
        lambda s: {
            "transactional_id": s.transaction,
            "group_id": s.group,
            "topics": [{"name": s.topic, "partitions": _partition(committed_offset=7)}],
            **PRODUCER,
        },
    ),
    (
        29,
        2,
        "",
        lambda s: {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "operation": 1,
            "permission_type": 1,
        },
    ),
    (
        30,
        2,
        "",
        lambda s: {"creations": [{"resource_type": 2, "resource_name": "*", "resource_pattern_type": 3, **THE_ACL}]},
    ),
    (
        31,
        2,
        "",
        lambda s: {
            "filters": [
                {
                    "resource_type_filter": 1,
                    "resource_name_filter": None,
                    "pattern_type_filter": 1,
                    "operation": 1,
                    "permission_type": 1,
                }
            ]
        },
    ),
    (32, 4, "topic", lambda s: _configs(2, s.topic)),
    (32, 4, "broker", lambda s: _configs(4, "1")),
    (32, 4, "group", lambda s: _configs(32, s.group)),
    (33, 2, "topic", lambda s: _alter(2, s.topic)),
    (33, 2, "broker", lambda s: _alter(4, "1")),
    (
        34,
        2,
        "",
        lambda s: {"dirs": [{"path": "/nowhere", "topics": [{"name": s.topic, "partitions": [0]}]}]},
    ),
    (35, 4, "", lambda s: {"topics": None}),
    (37, 3, "", lambda s: {"topics": [{"name": s.topic, "count": 3, "assignments": None}], "timeout": 9_000}),
    (42, 2, "", lambda s: {"groups_names": [s.group]}),
    (38, 3, "", lambda s: {"renewers": [], "max_lifetime": -1}),
    (39, 2, "", lambda s: {"hmac": b"x", "renew_period": 1}),
    (40, 2, "", lambda s: {"hmac": b"x", "expiry_time_period": 1}),
    (41, 3, "", lambda s: {"owners": None}),
    (
        43,
        2,
        "",
        lambda s: {
            "election_type": 0,
            "topic_partitions": [{"topic": s.topic, "partitions": [0]}],
            "timeout": 9_000,
        },
    ),
    (44, 1, "topic", lambda s: _alter(2, s.topic)),
    (44, 1, "broker", lambda s: _alter(4, "1")),
    (
        45,
        1,
        "",
        lambda s: {
            "timeout": 9_000,
            "topics": [{"name": s.topic, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
        },
    ),
    (46, 0, "", lambda s: {"topics": None, "timeout": 9_000}),
    (47, 0, "", lambda s: {"group_id": s.group, "topics": [{"name": s.topic, "partitions": _partition()}]}),
    (48, 1, "", lambda s: {"components": [], "strict": False}),
    (
        49,
        1,
        "",
        lambda s: {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "mallory"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e12, "remove": False}],
                }
            ],
            "validate_only": False,
        },
    ),
    (50, 0, "", lambda s: {"users": []}),
    (
        51,
        0,
        "",
        lambda s: {
            "deletions": [],
            "upsertions": [
                {"name": "eve", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"x" * 32}
            ],
        },
    ),
    (
        55,
        2,
        "",
        lambda s: {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    ),
    (
        57,
        2,
        "",
        lambda s: {
            "timeout": 9_000,
            "feature_updates": [{"feature": "transaction.version", "max_version_level": 2, "upgrade_type": 1}],
            "validate_only": True,
        },
    ),
    (60, 0, "", lambda s: {"include_cluster_authorized_operations": True}),
    (61, 0, "", lambda s: {"topics": [{"name": s.topic, "partition_indexes": [0]}]}),
    (64, 0, "", lambda s: {"broker_id": 77}),
    (65, 0, "", lambda s: {"transactional_ids": [s.transaction]}),
    (66, 1, "", lambda s: {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}),
    (
        68,
        1,
        "",
        lambda s: {
            "group_id": s.group,
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": [s.topic],
            "topic_partitions": [],
        },
    ),
    (69, 0, "", lambda s: {"group_ids": [s.group], "include_authorized_operations": True}),
    (74, 1, "", lambda s: {"resource_types": []}),
    (
        76,
        1,
        "",
        lambda s: {"group_id": s.group, "member_id": "m", "member_epoch": 0, "subscribed_topic_names": [s.topic]},
    ),
    (77, 1, "", lambda s: {"group_ids": [s.group], "include_authorized_operations": True}),
    (78, 2, "", lambda s: _share_fetch(s, share_session_epoch=0)),
    (79, 2, "", lambda s: _share(s, share_session_epoch=1)),
    (90, 1, "all", lambda s: {"groups": [{"group_id": s.group, "topics": None}]}),
    (90, 1, "named", lambda s: {"groups": [{"group_id": s.group, "topics": _share_offsets(s)}]}),
    (
        91,
        0,
        "",
        lambda s: {"group_id": s.group, "topics": _share_offsets(s, {"partition_index": 0, "start_offset": 1})},
    ),
    (92, 0, "", lambda s: {"group_id": s.group, "topics": [{"topic_name": s.topic}]}),
    (88, 0, "", lambda s: joins(s.group, "m", a_topology(a_part("0", s.topic)))),
    (89, 0, "", lambda s: {"group_ids": [s.group], "include_authorized_operations": True}),
    (75, 0, "all", lambda s: {"topics": [], "response_partition_limit": 100}),
    (75, 0, "named", lambda s: {"topics": [{"name": s.topic}], "response_partition_limit": 100}),
]

WITHOUT_RIGHTS = (17, 18, 36)
"""APIs that everybody may ask: they are how a client says who it is."""


def state(admin: RawClient, secrets: Secrets) -> tuple[Any, ...]:
    """What must be as it was."""
    topics = admin.call(3, 9, topics=None).topics
    everything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    }
    configs = admin.call(32, 4, **_configs(2, secrets.topic)).results[0].configs
    return (
        sorted((each.name, len(each.partitions)) for each in topics),
        admin.call(2, 7, replica_id=-1, topics=[{"name": secrets.topic, "partitions": _partition(timestamp=-1)}]),
        admin.call(2, 7, replica_id=-1, topics=[{"name": secrets.topic, "partitions": _partition(timestamp=-2)}]),
        admin.committed(secrets.group, secrets.topic),
        {each.name: each.value for each in configs}["retention.ms"],
        admin.call(29, 2, **everything).resources,
        admin.call(50, 0, users=None).results,
        admin.call(48, 1, components=[], strict=False).entries,
        admin.call(65, 0, transactional_ids=[secrets.transaction]).transaction_states,
        admin.call(15, 5, groups=[secrets.group]).groups,
    )
