"""What only makes sense with several nodes is answered as Apache Kafka answers it where there is one."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.test_rights import Secured, secured_log
from tests.support.raw import RawClient, codes_of


@pytest.fixture(scope="module", params=["mainstem", pytest.param("kafka", marks=pytest.mark.kafka)])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_log(request.param, tmp_path_factory) as found:
        with RawClient(found.admin) as admin:
            admin.create_topic("t")
        yield found


def elect(*partitions: int, topic: str = "t", kind: int = 0) -> dict[str, Any]:
    return {
        "election_type": kind,
        "topic_partitions": [{"topic": topic, "partitions": list(partitions)}],
        "timeout": 9_000,
    }


def reassign(replicas: list[int] | None, *, topic: str = "t", partition: int = 0) -> dict[str, Any]:
    partitions = [{"partition_index": partition, "replicas": replicas}]
    return {"timeout": 9_000, "topics": [{"name": topic, "partitions": partitions}]}


def move(path: str, topic: str = "t", partition: int = 0) -> dict[str, Any]:
    return {"dirs": [{"path": path, "topics": [{"name": topic, "partitions": [partition]}]}]}


def quorum(topic: str, partition: int = 0) -> dict[str, Any]:
    return {"topics": [{"topic_name": topic, "partitions": [{"partition_index": partition}]}]}


def feature(name: str, level: int, kind: int = 1) -> dict[str, Any]:
    update = {"feature": name, "max_version_level": level, "upgrade_type": kind}
    return {"timeout": 9_000, "feature_updates": [update], "validate_only": True}


UNKNOWN = {"unknown_topic_or_partition"}
BAD = {"invalid_replica_assignment"}
CASES: list[tuple[int, int, dict[str, Any], set[str]]] = [
    (43, 2, elect(0), {"election_not_needed"}),
    (43, 2, elect(0, kind=1), {"election_not_needed"}),
    (43, 0, elect(0) | {"election_type": 0}, {"election_not_needed"}),
    (43, 2, elect(9), UNKNOWN),
    (43, 2, elect(0, topic="no"), UNKNOWN),
    (43, 2, {"election_type": 0, "topic_partitions": None, "timeout": 9_000}, set()),
    (43, 2, {"election_type": 7, "topic_partitions": None, "timeout": 9_000}, {"invalid_request"}),
    (45, 0, reassign([1]), set()),
    (45, 0, reassign([1], partition=9), UNKNOWN),
    (45, 0, reassign([1], topic="no"), UNKNOWN),
    (45, 0, reassign([2]), BAD),
    (45, 1, reassign([1, 2]), BAD),
    (45, 0, reassign([1, 1]), BAD),
    (45, 0, reassign([]), BAD),
    (45, 0, reassign(None), {"no_reassignment_in_progress"}),
    (46, 0, {"timeout": 9_000, "topics": [{"name": "no", "partition_indexes": [0]}]}, set()),
    (34, 2, move("/nowhere"), {"log_dir_not_found"}),
    (34, 1, move("/nowhere", "no"), {"log_dir_not_found"}),
    (55, 2, quorum("__cluster_metadata"), set()),
    (55, 0, quorum("__cluster_metadata"), set()),
    (55, 2, quorum("__cluster_metadata", 1), UNKNOWN),
    (55, 2, quorum("t"), UNKNOWN),
    (57, 2, feature("transaction.version", 2), set()),
    (57, 2, feature("transaction.version", 9), {"invalid_update_version"}),
    (57, 2, feature("transaction.version", 1), {"invalid_update_version"}),
    (57, 1, feature("no.version", 1), {"invalid_update_version"}),
    (57, 2, feature("transaction.version", 2, 9), {"invalid_update_version"}),
    (64, 0, {"broker_id": 77}, {"broker_id_not_registered"}),
    (74, 0, {}, set()),
    (74, 1, {"resource_types": [2, 4]}, set()),
    (74, 1, {"resource_types": [99]}, {"unsupported_version"}),
    (38, 3, {"renewers": [], "max_lifetime": -1}, {"delegation_token_request_not_allowed"}),
    (39, 2, {"hmac": b"x", "renew_period": 1}, {"delegation_token_request_not_allowed"}),
    (40, 2, {"hmac": b"x", "expiry_time_period": 1}, {"delegation_token_request_not_allowed"}),
    (41, 3, {"owners": None}, {"delegation_token_request_not_allowed"}),
]


@pytest.mark.parametrize(("api_key", "version", "fields", "codes"), CASES)
def test_one_node_answers_truthfully(
    node: Secured, api_key: int, version: int, fields: dict[str, Any], codes: set[str]
) -> None:
    with RawClient(node.admin) as admin:
        assert {each.name for each in codes_of(admin.call(api_key, version, **fields))} == codes


def test_the_directory_there_is_takes_what_it_has(node: Secured) -> None:
    with RawClient(node.admin) as admin:
        path = admin.call(35, 4, topics=None).results[0].log_dir
        for topic, partition, codes in (("t", 0, set()), ("t", 9, UNKNOWN), ("no", 0, UNKNOWN)):
            assert {each.name for each in codes_of(admin.call(34, 2, **move(path, topic, partition)))} == codes


def test_the_node_is_its_own_quorum(node: Secured) -> None:
    with RawClient(node.admin) as admin:
        answer = admin.call(55, 2, **quorum("__cluster_metadata"))
        partition = answer.topics[0].partitions[0]
        assert [each.replica_id for each in partition.current_voters] == [partition.leader_id] == [1]
        assert [each.node_id for each in answer.nodes] == [1]
        resources = admin.call(74, 1, resource_types=[]).config_resources
        assert {("t", 2), ("1", 4), ("1", 8)} <= {(each.resource_name, each.resource_type) for each in resources}
