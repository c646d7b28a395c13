"""Who has no rights learns nothing and changes nothing, on our log as on Apache Kafka with its StandardAuthorizer.

Every API that the log serves is asked about things of somebody else's; an API without a request here fails the test.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

import mainstem
from mainstem.broker.config import BrokerConfig, ListenerConfig
from mainstem.broker.handlers import load_handlers
from mainstem.wire.errors import Code
from tests.support.kafka_cluster import KafkaCluster
from tests.support.ports import free_port
from tests.support.raw import RawClient, codes_of
from tests.support.rights import REQUESTS, WITHOUT_RIGHTS, Secrets, make_secrets, state
from tests.support.streams_groups import DESCRIBE, HEARTBEAT, a_part, a_topic, a_topology, joins


class Secured(msgspec.Struct, frozen=True):
    """A log with an authorizer: the address of those who may do everything, and that of users."""

    name: str
    admin: str
    users: str

    def as_user(self, user: str) -> RawClient:
        client = RawClient(self.users)
        client.call(17, 1, mechanism="PLAIN")
        assert client.call(36, 1, auth_bytes=f"\0{user}\0{user}-secret".encode()).error_code == 0
        return client


@pytest.fixture(scope="module", params=["mainstem", pytest.param("kafka", marks=pytest.mark.kafka)])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_log(request.param, tmp_path_factory) as found:
        yield found


def secured_log(name: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _kafka(tmp_path_factory) if name == "kafka" else _ours()


@contextmanager
def _ours() -> Iterator[Secured]:
    port = free_port()
    users = {user: f"{user}-secret" for user in ("mallory", "alice")}
    config = BrokerConfig(
        port=0,
        listeners={"users": ListenerConfig(port=port, protocol="SASL_PLAINTEXT", sasl_enabled_mechanisms=("PLAIN",))},
        users=users,
        authorizer_enable=True,
        super_users=("User:ANONYMOUS",),
    )
    with mainstem.embedded(broker=config) as log:
        yield Secured("mainstem", log.bootstrap, f"127.0.0.1:{port}")


@contextmanager
def _kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    port = free_port()
    cluster = KafkaCluster(1, tmp_path_factory.mktemp("rights"), heap_mb=320)
    (plain,) = cluster.ports.values()
    (controller,) = cluster._controller_ports.values()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    cluster.overrides |= {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},USERS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},USERS://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": f'{module} required user_mallory="mallory-secret" '
        'user_alice="alice-secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with cluster:
        yield Secured("kafka", cluster.bootstrap, f"127.0.0.1:{port}")


@pytest.fixture(scope="module")
def secrets(secured: Secured) -> Secrets:
    with RawClient(secured.admin) as admin:
        return make_secrets(admin)


# What one without rights is told: codes, where the answer is not just empty. Kafka's, and ours.
NOTHING: frozenset[str] = frozenset()
TOPIC = frozenset({"topic_authorization_failed"})
GROUP = frozenset({"group_authorization_failed"})
GROUP_CODES = frozenset({Code.group_authorization_failed})
CLUSTER = frozenset({"cluster_authorization_failed"})
NO_TOKENS = frozenset({"delegation_token_auth_disabled"})
TRANSACTION = frozenset({"transactional_id_authorization_failed"})
TOLD = {
    (0, "a transaction"): TRANSACTION,
    (3, "all"): NOTHING,
    (3, "the cluster"): NOTHING,
    (0, "no batch of the transaction"): TOPIC,
    (10, "transaction"): TRANSACTION,
    (16, ""): NOTHING,
    (22, "transaction"): TRANSACTION,
    (32, "broker"): CLUSTER,
    (32, "group"): GROUP,
    (33, "broker"): CLUSTER,
    (44, "broker"): CLUSTER,
    (60, ""): NOTHING,
    (66, ""): NOTHING,
    (75, "all"): NOTHING,
}
TOLD_BY_API = (
    dict.fromkeys((0, 1, 2, 3, 19, 20, 21, 23, 32, 33, 37, 44, 61, 75), TOPIC)
    | dict.fromkeys((8, 9, 10, 11, 12, 13, 14, 15, 42, 47, 68, 69, 76, 77, 78, 79, 88, 89, 90, 91, 92), GROUP)
    | dict.fromkeys((22, 27, 29, 30, 31, 34, 35, 43, 45, 46, 48, 49, 50, 51, 55, 57, 64, 74), CLUSTER)
    | dict.fromkeys((38, 39, 40, 41), NO_TOKENS)
    | dict.fromkeys((24, 25, 26, 28, 65), TRANSACTION)
)


def names(codes: set[Any]) -> frozenset[str]:
    return frozenset(each.name for each in codes)


@pytest.mark.parametrize("request_of", REQUESTS, ids=lambda each: f"{each[0]}-{each[1]} {each[2]}")
def test_one_without_rights_is_told_nothing_and_does_nothing(
    secured: Secured, secrets: Secrets, request_of: Any
) -> None:
    api_key, version, about, fields = request_of
    with RawClient(secured.admin) as admin, secured.as_user("mallory") as mallory:
        before = state(admin, secrets)
        asked = fields(secrets)
        answer = mallory.call(api_key, version, **asked)
        assert names(codes_of(answer)) == TOLD.get((api_key, about), TOLD_BY_API.get(api_key))
        told, said = str(answer), str(asked)
        for hidden in (secrets.topic, secrets.group, secrets.transaction, str(secrets.topic_id), "hidden value"):
            assert hidden in said or hidden not in told
        if about in ("the cluster", "") and api_key in (3, 60):
            assert answer.cluster_authorized_operations == 0
        assert state(admin, secrets) == before


@pytest.mark.kafka
def test_the_answers_are_kafkas_field_by_field(tmp_path_factory: pytest.TempPathFactory) -> None:
    answers: list[dict[Any, str]] = []
    for name in ("mainstem", "kafka"):
        with secured_log(name, tmp_path_factory) as log, RawClient(log.admin) as admin:
            secrets = make_secrets(admin)
            answers.append({})
            for api_key, version, about, fields in REQUESTS:
                with log.as_user("mallory") as mallory:
                    answer = str(mallory.call(api_key, version, **fields(secrets)))
                for field in msgspec.structs.fields(Secrets):
                    answer = answer.replace(str(getattr(secrets, field.name)), field.name.upper())
                answers[-1][api_key, version, about] = _without_own(answer)
    differences = [
        f"{key}\n  ours   {answers[0][key]}\n  Kafka  {answers[1][key]}"
        for key in answers[0]
        if answers[0][key] != answers[1][key]
    ]
    assert not differences, "\n".join(differences)


def _without_own(answer: str) -> str:
    """Without what each log says in its own words, or has for itself: messages, its address and id, and empty lists,
    which are none to every client.
    """
    answer = re.sub("(aborted_transactions|entries)=None", r"\1=()", answer)
    answer = re.sub(r"error_message=(None|'[^']*'|\"[^\"]*\")", "error_message", answer)
    return re.sub(r"(port|cluster_id|node_id|broker_id|controller_id)=[^,)]*", r"\1", answer)


def test_a_share_group_is_hidden_with_its_topics(secured: Secured, secrets: Secrets) -> None:
    """One who may do everything to a group, and nothing to the topics that it reads."""
    group, topic = f"{secrets.group}-shared", secrets.topic
    join = {"group_id": group, "member_epoch": 0, "subscribed_topic_names": [topic]}
    partitions = [{"partition_index": 0, "start_offset": 1}]
    set_offsets = {"group_id": group, "topics": [{"topic_name": topic, "partitions": partitions}]}
    acl = {"principal": "User:alice", "host": "*", "operation": 2, "permission_type": 3}
    resource = {"resource_type": 3, "resource_name": group, "resource_pattern_type": 3}
    with RawClient(secured.admin) as admin, secured.as_user("alice") as alice:
        admin.call(30, 2, creations=[resource | acl])
        admin.find_coordinators(group)
        asked = {"group_ids": [group]}
        until = time.monotonic() + 30
        while codes_of(alice.call(77, 1, **asked)) & GROUP_CODES and time.monotonic() < until:
            time.sleep(0.05)  # until Kafka has heard of the right
        assert names(codes_of(alice.settled(76, 1, **join, member_id="a"))) == TOPIC
        answer = alice.call(91, 0, **set_offsets)
        assert (names(codes_of(answer)), answer.error_code) == (TOPIC, 0)
        if secured.name == "mainstem":  # Kafka tells the topic's id
            assert answer.responses[0].topic_id is None
        assert codes_of(admin.settled(91, 0, **set_offsets)) == set()
        (found,) = alice.call(90, 1, groups=[{"group_id": group, "topics": None}]).groups
        assert (found.error_code, found.topics) == (0, ())
        named = [{"topic_name": topic, "partitions": [0]}]
        (found,) = alice.call(90, 1, groups=[{"group_id": group, "topics": named}]).groups
        assert names(codes_of(found)) == TOPIC
        (partition,) = found.topics[0].partitions
        assert (found.error_code, found.topics[0].topic_id, partition.start_offset) == (0, None, -1)
        answer = alice.call(92, 0, group_id=group, topics=[{"topic_name": topic}])
        assert (names(codes_of(answer)), answer.error_code, answer.responses[0].topic_id) == (TOPIC, 0, None)
        admin.settled(76, 1, **join, member_id="a")
        (found,) = alice.call(77, 1, **asked).groups
        assert (names({found.error_code}), found.members) == (TOPIC, ())
        assert topic not in str(found)


def test_who_may_delete_in_the_cluster_may_delete_any_topic(secured: Secured, name: str) -> None:
    """An operator with all rights of the cluster was refused."""
    resource = {"resource_type": 4, "resource_name": "kafka-cluster", "resource_pattern_type": 3}
    acl = {"principal": "User:alice", "host": "*", "operation": 6, "permission_type": 3}
    topics = [name, f"{name}-by-id"]
    with RawClient(secured.admin) as admin, secured.as_user("alice") as alice:
        made = [{"name": topic, "num_partitions": 1, "replication_factor": 1} for topic in topics]
        ids = [each.topic_id for each in admin.call(19, 7, topics=made, timeout=30_000).topics]
        asked = [{"name": topics[0], "topic_id": None}, {"name": None, "topic_id": ids[1]}]
        refused = {Code.topic_authorization_failed, Code.unknown_topic_id}
        assert {each.error_code for each in alice.call(20, 6, topics=asked, timeout=30_000).responses} <= refused
        admin.call(30, 2, creations=[resource | acl])
        until = time.monotonic() + 30
        while codes_of(answer := alice.call(20, 6, topics=asked, timeout=30_000)) & {Code.topic_authorization_failed}:
            assert time.monotonic() < until, answer
            time.sleep(0.05)  # until Kafka has heard of the right
        assert [each.error_code for each in answer.responses] == [Code.none, Code.none]
        given = {"resource_type_filter": 4, "resource_name_filter": "kafka-cluster", "pattern_type_filter": 3}
        to_whom = {"principal_filter": "User:alice", "host_filter": "*", "operation": 6, "permission_type": 3}
        assert len(admin.call(31, 2, filters=[given | to_whom]).filter_results[0].matching_acls) == 1
        named = [{"topic_id": None, "name": topic} for topic in topics]
        known = admin.call(3, 12, topics=named, allow_auto_topic_creation=False)
        assert {each.error_code for each in known.topics} == {Code.unknown_topic_or_partition}


def test_a_streams_group_is_hidden_with_its_topics(secured: Secured, secrets: Secrets) -> None:
    """One who may do everything to a group, and nothing to the topics that it reads; then one who may make none."""
    group, topology = f"{secrets.group}-streams", a_topology(a_part("0", secrets.topic))
    acl = {"principal": "User:alice", "host": "*", "operation": 2, "permission_type": 3}
    resource = {"resource_type": 3, "resource_name": group, "resource_pattern_type": 3}
    with RawClient(secured.admin) as admin, secured.as_user("alice") as alice:
        admin.call(30, 2, creations=[resource | acl])
        admin.find_coordinators(group)
        asked = {"group_ids": [group]}
        until = time.monotonic() + 30
        while codes_of(alice.call(DESCRIBE, 0, **asked)) & GROUP_CODES and time.monotonic() < until:
            time.sleep(0.05)  # until Kafka has heard of the right
        assert names(codes_of(alice.settled(HEARTBEAT, 0, **joins(group, "a", topology)))) == TOPIC
        admin.settled(HEARTBEAT, 0, **joins(group, "a", topology))
        (found,) = alice.call(DESCRIBE, 0, **asked).groups
        assert (names({found.error_code}), found.members, found.topology) == (TOPIC, (), None)
        assert secrets.topic not in str(found)


def test_who_may_not_make_a_topic_has_none_made_by_a_streams_group(secured: Secured, secrets: Secrets) -> None:
    group, changelog = f"{secrets.group}-makes", f"{secrets.new}-changelog"
    topology = a_topology(a_part("0", secrets.topic, state_changelog_topics=[a_topic(changelog)]))
    rights = [(3, group, 2), (2, secrets.topic, 8), (2, changelog, 8)]  # all of the group; to describe topics
    with RawClient(secured.admin) as admin, secured.as_user("alice") as alice:
        admin.call(
            30,
            2,
            creations=[
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "resource_pattern_type": 3,
                    "principal": "User:alice",
                    "host": "*",
                    "operation": operation,
                    "permission_type": 3,
                }
                for kind, name, operation in rights
            ],
        )
        admin.find_coordinators(group)
        until = time.monotonic() + 30
        while codes_of(answer := alice.call(HEARTBEAT, 0, **joins(group, "a", topology))):
            assert time.monotonic() < until, answer
            time.sleep(0.05)
        assert [(each.status_code, each.status_detail) for each in answer.status if each.status_code == 3] == [
            (3, f"Internal topics are missing: {changelog}; Unauthorized to CREATE on topics {changelog}.")
        ]
        asked = {"topics": [{"topic_id": None, "name": changelog}], "allow_auto_topic_creation": False}
        assert admin.call(3, 12, **asked).topics[0].error_code == Code.unknown_topic_or_partition


def test_every_api_that_is_served_is_asked() -> None:
    """An API that is new here: say in `tests/support/rights.py` what asks it about somebody else's things."""
    assert set(load_handlers()) - {each[0] for each in REQUESTS} == set(WITHOUT_RIGHTS)
