"""Access control lists: Kafka's decisions, filters, and entries that are there again after a restart."""

import asyncio

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from hypothesis import given
from hypothesis import strategies as st

import mainstem
from mainstem.broker.config import BrokerConfig
from mainstem.broker.facts import Facts
from mainstem.broker.security.acls import (
    ALL,
    ALLOW,
    ALTER_CONFIGS,
    ANY,
    CLUSTER,
    DENY,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    LITERAL,
    MATCH,
    PREFIXED,
    READ,
    TOPIC,
    WRITE,
    Acl,
    AclFilter,
    Authorizer,
    check_acl,
)
from mainstem.core import ManualClock
from mainstem.log import LogConfig, LogDirectory
from mainstem.wire.errors import Code, RequestError
from tests.support import kafka_tools
from tests.support.raw import RawClient


class InMemory:
    """Facts of no log."""

    @staticmethod
    def below(prefix):
        return iter(())

    async def put(self, changes):
        pass


def authorizer(*entries, everyone=False):
    made = Authorizer(InMemory(), ["User:root"], allow_everyone_if_no_acl_found=everyone)
    asyncio.run(made.add(entries))
    return made


def entry(name="t", *, pattern=LITERAL, who="User:a", host="*", operation=READ, permission=ALLOW, kind=TOPIC):
    return Acl(kind, name, pattern, who, host, operation, permission)


def may(found, name="t", *, who="User:a", host="1.2.3.4", operation=READ, kind=TOPIC):
    return found.allows(who, host, operation, kind, name)


def test_nobody_may_without_an_entry_but_super_users_and_whom_the_setting_lets():
    nobody = authorizer()
    assert not may(nobody)
    assert may(nobody, who="User:root")
    everybody = authorizer(entry("t", who="User:b"), everyone=True)
    assert may(everybody, "u")
    assert not may(everybody, "t")
    assert may(everybody, "t", who="User:b")


def test_an_entry_is_of_its_name_principal_host_operation_and_kind():
    found = authorizer(entry("t", host="1.2.3.4"))
    assert may(found)
    assert not may(found, "tt")
    assert not may(found, who="User:b")
    assert not may(found, host="1.2.3.5")
    assert not may(found, operation=WRITE)
    assert not may(found, kind=GROUP)


def test_names_by_prefix_and_all_names():
    found = authorizer(entry("app-", pattern=PREFIXED), entry("*", operation=DESCRIBE_CONFIGS), entry("x", kind=GROUP))
    assert [name for name in ("app", "app-", "app-1", "other") if may(found, name)] == ["app-", "app-1"]
    assert may(found, "whatever", operation=DESCRIBE_CONFIGS)
    assert may(authorizer(entry(who="User:*")), who="User:anybody")


def test_denials_come_first_also_from_wider_entries():
    found = authorizer(entry("t", operation=ALL), entry("*", who="User:*", operation=WRITE, permission=DENY))
    assert may(found)
    assert not may(found, operation=WRITE)
    assert may(found, operation=DESCRIBE)
    assert not may(authorizer(entry("t"), entry("", pattern=PREFIXED, permission=DENY, operation=ALL)))
    assert may(authorizer(entry("*", who="User:*", operation=ALL, permission=DENY)), who="User:root")


@pytest.mark.parametrize("operation", [3, 4, 6, 7])
def test_who_may_change_may_describe_and_a_denial_implies_nothing(operation):
    assert may(authorizer(entry(operation=operation)), operation=DESCRIBE)
    denied = authorizer(entry(operation=operation, permission=DENY), entry(operation=DESCRIBE))
    assert may(denied, operation=DESCRIBE)
    assert may(authorizer(entry(operation=ALTER_CONFIGS)), operation=DESCRIBE_CONFIGS)
    assert not may(authorizer(entry(operation=ALTER_CONFIGS)), operation=DESCRIBE)


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([], False),
        ([entry("t", operation=WRITE)], True),
        ([entry("t", operation=READ)], False),
        ([entry("t", operation=WRITE), entry("t", operation=WRITE, permission=DENY)], False),
        ([entry("t", operation=WRITE), entry("*", operation=ALL, permission=DENY)], False),
        ([entry("app-", pattern=PREFIXED, operation=WRITE), entry("app-1", operation=WRITE, permission=DENY)], True),
        (
            [
                entry("app-", pattern=PREFIXED, operation=WRITE),
                entry("a", pattern=PREFIXED, operation=WRITE, permission=DENY),
            ],
            False,
        ),
        ([entry("*", operation=WRITE), entry("a", pattern=PREFIXED, operation=WRITE, permission=DENY)], True),
    ],
)
def test_whether_there_is_any_topic_one_may_write_to(entries, allowed):
    """KIP-679: an idempotent producer needs no right to the cluster."""
    found = authorizer(*entries)
    assert found.allows_some("User:a", "1.2.3.4", WRITE, TOPIC) is allowed
    assert found.allows_some("User:root", "1.2.3.4", WRITE, TOPIC)


acls = st.builds(
    Acl,
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from(["*", "a", "ab", "abc", "b"]),
    st.sampled_from([LITERAL, PREFIXED]),
    st.sampled_from(["User:a", "User:b", "User:*"]),
    st.sampled_from(["*", "h"]),
    st.sampled_from([ALL, READ, WRITE, DESCRIBE]),
    st.sampled_from([DENY, ALLOW]),
)


@given(st.lists(acls), acls, st.sampled_from(["a", "ab", "abcd", "b", "c"]))
def test_decisions_are_those_of_the_rule_written_plainly(entries, asked, name):
    found = authorizer(*entries)
    operation = asked.operation if asked.operation != ALL else WRITE
    who, host = asked.principal, asked.host
    of_name = [
        each
        for each in entries
        if each.kind == asked.kind
        and (each.name in (name, "*") if each.pattern == LITERAL else name.startswith(each.name))
    ]
    of_client = [each for each in of_name if each.principal in (who, "User:*") and each.host in (host, "*")]
    implied = {operation, ALL} | ({READ, WRITE} if operation == DESCRIBE else set())
    expected = not any(each.permission == DENY and each.operation in (operation, ALL) for each in of_client) and any(
        each.permission == ALLOW and each.operation in implied for each in of_client
    )
    assert found.allows(who, host, operation, asked.kind, name) is expected


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (AclFilter(ANY, None, ANY, None, None, ANY, ANY), ["*", "app-", "app-1"]),
        (AclFilter(TOPIC, "app-1", LITERAL, None, None, ANY, ANY), ["app-1"]),
        (AclFilter(TOPIC, "app-1", MATCH, None, None, ANY, ANY), ["*", "app-", "app-1"]),
        (AclFilter(TOPIC, "app-", ANY, None, None, ANY, ANY), ["app-"]),
        (AclFilter(GROUP, None, ANY, None, None, ANY, ANY), []),
        (AclFilter(ANY, None, PREFIXED, None, None, ANY, ANY), ["app-"]),
        (AclFilter(ANY, None, ANY, "User:b", None, ANY, ANY), []),
        (AclFilter(ANY, None, ANY, None, "h", ANY, ANY), []),
        (AclFilter(ANY, None, ANY, None, None, READ, ALLOW), ["*", "app-", "app-1"]),
        (AclFilter(ANY, None, ANY, None, None, WRITE, ANY), []),
        (AclFilter(ANY, None, ANY, None, None, ANY, DENY), []),
    ],
)
def test_which_entries_a_filter_means(wanted, names):
    found = authorizer(entry("*"), entry("app-", pattern=PREFIXED), entry("app-1"))
    assert [each.name for each in found if wanted.check().means(each)] == names


@pytest.mark.parametrize(
    "wrong",
    [
        entry(kind=CLUSTER),
        entry(""),
        entry(kind=1),
        entry(pattern=MATCH),
        entry(operation=1),
        entry(permission=1),
        entry(who="alice"),
        entry(kind=9),
    ],
)
def test_an_entry_that_means_nothing_is_refused(wrong):
    with pytest.raises(RequestError) as refused:
        check_acl(wrong)
    assert refused.value.code is Code.invalid_request
    with pytest.raises(RequestError):
        AclFilter(0, None, ANY, None, None, ANY, ANY).check()


def test_entries_are_there_again_after_a_restart(tmp_path):
    async def check() -> None:
        for start in range(3):
            directory = await LogDirectory.open(tmp_path, LogConfig(), clock=ManualClock())
            facts = await Facts.load(directory, ManualClock())
            found = Authorizer(facts, ["User:root"], allow_everyone_if_no_acl_found=False)
            if start == 0:
                await found.add([entry("t"), entry('ü,"', pattern=PREFIXED), entry("t")])
            else:
                assert [each.name for each in found] == (["t", 'ü,"'] if start == 1 else ["t"])
                assert may(found)
                await found.remove([entry('ü,"', pattern=PREFIXED)])
            await directory.close()

    asyncio.run(check())


def test_who_may_act_on_the_cluster_may_ask_where_every_topics_epochs_ended(tmp_path):
    config = msgspec.structs.replace(secured(), sasl_enabled_mechanisms=("PLAIN", "SCRAM-SHA-256"))
    with mainstem.embedded(tmp_path, broker=config) as log:
        root = AdminClient(as_user(log.bootstrap, "root"))
        root.create_topics([NewTopic("t", 1)])["t"].result(30)
        with RawClient(log.bootstrap) as alice:
            alice.call(17, 1, mechanism="PLAIN")
            assert alice.call(36, 2, auth_bytes=b"\0alice\0a").error_code is Code.none
            asked = [{"topic": "t", "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}]
            codes = []
            for allowed in (False, True):
                if allowed:
                    cluster = binding(ResourceType.BROKER, "kafka-cluster", AclOperation.CLUSTER_ACTION)
                    root.create_acls([cluster])[cluster].result(30)
                codes.append(alice.call(23, 4, replica_id=-1, topics=asked).topics[0].partitions[0].error_code)
        assert codes == [Code.topic_authorization_failed, Code.none]


# --- real clients -----------------------------------------------------------------------------------------------------


def secured():
    return BrokerConfig(
        port=0,
        protocol="SASL_PLAINTEXT",
        users={"root": "r", "alice": "a"},
        authorizer_enable=True,
        super_users=("User:root",),
        connection_failed_authentication_delay_ms=10,
    )


def as_user(bootstrap, user):
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": user[0],
    }


def binding(kind, name, operation, pattern=ResourcePatternType.LITERAL):
    return AclBinding(kind, name, pattern, "User:alice", "*", operation, AclPermissionType.ALLOW)


@pytest.mark.timeout(120)
def test_confluents_clients_do_what_they_may_and_no_more(tmp_path):
    with mainstem.embedded(tmp_path, broker=secured()) as log:
        root = AdminClient(as_user(log.bootstrap, "root"))
        for each in root.create_topics([NewTopic("app-in", 1), NewTopic("app-out", 1), NewTopic("other", 1)]).values():
            each.result(30)
        bindings = [
            binding(ResourceType.TOPIC, "app-", AclOperation.READ, ResourcePatternType.PREFIXED),
            binding(ResourceType.TOPIC, "app-in", AclOperation.WRITE),
            binding(ResourceType.GROUP, "g", AclOperation.READ),
        ]
        for each in root.create_acls(bindings).values():
            each.result(30)
        alice = as_user(log.bootstrap, "alice")
        admin = AdminClient(alice)
        assert set(admin.list_topics(timeout=30).topics) == {"app-in", "app-out"}
        errors = {}
        producer = Producer(alice | {"enable.idempotence": True})
        for topic in ("app-in", "app-out", "other"):
            producer.produce(topic, b"x", on_delivery=lambda error, message: errors.update({message.topic(): error}))
        producer.flush(30)
        assert errors["app-in"] is None
        assert errors["app-out"].code() == errors["other"].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        consumer = Consumer(alice | {"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["app-in"])
        got = consumer.poll(30)
        assert (got.error(), got.value()) == (None, b"x")
        consumer.close()
        stranger = Consumer(alice | {"group.id": "not-g"})
        stranger.subscribe(["app-in"])
        assert stranger.poll(30).error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        stranger.close()
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            admin.create_topics([NewTopic("mine", 1)])["mine"].result(30)
        with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
            admin.create_acls(bindings)[bindings[0]].result(30)
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        assert set(root.describe_acls(everything).result(30)) == set(bindings)
        (gone,) = root.delete_acls([everything]).values()
        assert set(gone.result(30)) == set(bindings)
        assert admin.list_topics(timeout=30).topics == {}


@pytest.mark.timeout(240)
def test_kafkas_tool_gives_and_takes_rights(tmp_path):
    with mainstem.embedded(tmp_path / "data", broker=secured()) as log:
        for user in ("root", "alice"):
            (tmp_path / user).write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
                "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
                f'username="{user}" password="{user[0]}";\n'
            )
        at = ("--bootstrap-server", log.bootstrap, "--command-config")
        acls = ("kafka-acls", *at, str(tmp_path / "root"))
        kafka_tools.run(*acls, "--add", "--allow-principal", "User:alice", "--producer", "--topic", "t")
        said = kafka_tools.run(*acls, "--list", "--topic", "t").stdout
        assert all(f"operation={each}, permissionType=ALLOW" in said for each in ("WRITE", "DESCRIBE", "CREATE"))
        alice = (*at, str(tmp_path / "alice"), "--topic", "t")
        kafka_tools.run("kafka-console-producer", *alice, stdin="hello\n")
        refused = kafka_tools.run(
            "kafka-console-consumer", *alice, "--group", "g", "--from-beginning", "--timeout-ms", "9000", check=False
        )
        assert "GroupAuthorizationException" in refused.stderr + refused.stdout
        kafka_tools.run(*acls, "--add", "--allow-principal", "User:alice", "--consumer", "--topic", "t", "--group", "g")
        read = ("--group", "g", "--from-beginning", "--max-messages", "1", "--timeout-ms", "60000")
        assert kafka_tools.run("kafka-console-consumer", *alice, *read).stdout.split() == ["hello"]
        kafka_tools.run(*acls, "--remove", "--force", "--topic", "t")
        assert "ALLOW" not in kafka_tools.run(*acls, "--list", "--topic", "t").stdout


@pytest.mark.parametrize("spelling", ["::1", "0:0:0:0:0:0:0:1", "0::0001"])
def test_an_address_of_ipv6_is_meant_in_any_spelling(spelling):
    authorizer = Authorizer(InMemory(), (), allow_everyone_if_no_acl_found=False)
    asyncio.run(
        authorizer.add(
            [
                Acl(TOPIC, "t", LITERAL, "User:*", "*", WRITE, ALLOW),
                Acl(TOPIC, "t", LITERAL, "User:a", spelling, WRITE, DENY),
            ]
        )
    )
    assert not authorizer.allows("User:a", "0:0:0:0:0:0:0:1", WRITE, TOPIC, "t")
    assert authorizer.allows("User:a", "0:0:0:0:0:0:0:2", WRITE, TOPIC, "t")
    assert not authorizer.allows_some("User:a", "0:0:0:0:0:0:0:1", WRITE, TOPIC)


def test_long_names_that_somebody_asks_for_are_not_kept():
    """300 MB of them, by a client without any right."""
    authorizer = Authorizer(InMemory(), (), allow_everyone_if_no_acl_found=False)
    for number in range(10):
        assert not authorizer.allows("User:a", "127.0.0.1", READ, GROUP, "g" * 30_000 + str(number))
        assert not authorizer.allows("User:a", "127.0.0.1", READ, GROUP, f"g{number}")
    assert {len(name) for *_, name in authorizer._decisions} == {2}
