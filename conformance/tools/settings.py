"""Tools that make topics and change settings, quotas, users and rights."""

from conformance.frame import USER
from conformance.tools.kit import Tools, found, wait_until


def topics_are_made_listed_described_grown_and_deleted(tools: Tools) -> None:
    topic = tools.name
    create = ("--create", "--topic", topic)
    said = tools.run("kafka-topics", *create, "--partitions", "2", "--config", "retention.ms=3600000")
    found(f"^Created topic {topic}", said)
    found("already exists", tools.refused("kafka-topics", *create))
    tools.run("kafka-topics", *create, "--if-not-exists")
    found(
        "InvalidReplicationFactor",
        tools.refused("kafka-topics", "--create", "--topic", f"{topic}-r", "--replication-factor", "2"),
    )
    tools.run("kafka-topics", "--create", "--topic", f"{topic}-assigned", "--replica-assignment", "1,1,1")
    found(
        "InvalidReplicaAssignment",
        tools.refused("kafka-topics", "--create", "--topic", f"{topic}-a", "--replica-assignment", "1:2"),
    )
    assert sorted(name for name in tools.run("kafka-topics", "--list").split() if topic in name) == [
        topic,
        f"{topic}-assigned",
    ]
    assert "__consumer_offsets" not in tools.run("kafka-topics", "--list", "--exclude-internal")
    tools.run("kafka-topics", "--alter", "--topic", topic, "--partitions", "4")
    found("InvalidPartitions", tools.refused("kafka-topics", "--alter", "--topic", topic, "--partitions", "3"))

    said = tools.run("kafka-topics", "--describe", "--topic", topic)
    heading, *partitions = said.splitlines()
    found(
        rf"^Topic: {topic}\tTopicId: [\w-]{{22}}\tPartitionCount: 4\tReplicationFactor: 1\t.*retention.ms=3600000",
        heading,
    )
    assert [line.split("\t")[2:6] for line in partitions] == [
        [f"Partition: {number}", "Leader: 1", "Replicas: 1", "Isr: 1"] for number in range(4)
    ], said
    by_id = tools.run("kafka-topics", "--describe", "--topic-id", heading.split("\t")[1].split()[1])
    assert by_id.splitlines()[0] == heading, by_id
    assert topic in tools.run("kafka-topics", "--describe", "--topics-with-overrides", "--exclude-internal")
    for filtered in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        said = tools.run("kafka-topics", "--describe", filtered)
        assert not said.strip(), f"{filtered}: {said}"

    tools.run("kafka-topics", "--delete", "--topic", f"{topic}.*")
    wait_until(lambda: topic not in tools.run("kafka-topics", "--list"), "both are gone")
    found("does not exist", tools.refused("kafka-topics", "--delete", "--topic", topic))
    tools.run("kafka-topics", "--delete", "--topic", topic, "--if-exists")


def settings_of_a_topic_are_set_shown_and_taken_back(tools: Tools) -> None:
    topic = tools.topic()
    configs = ("kafka-configs", "--topic", topic)
    tools.run(
        *configs, "--alter", "--add-config", "segment.bytes=2097152,cleanup.policy=[compact,delete],retention.ms=5000"
    )
    said = tools.run(*configs, "--describe")
    found(
        r"^  segment\.bytes=2097152 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:segment\.bytes=2097152, "
        r"DEFAULT_CONFIG:log\.segment\.bytes=1073741824\}",
        said,
    )
    found(r"^  cleanup\.policy=compact,delete ", said)
    tools.run(*configs, "--alter", "--add-config-file", tools.file("more.properties", "max.message.bytes=5000\n"))
    tools.run(*configs, "--alter", "--delete-config", "segment.bytes,retention.ms")
    said = tools.run(*configs, "--describe")
    assert "segment.bytes" not in said, said
    found(r"^  max\.message\.bytes=5000 ", said)
    everything = tools.run(*configs, "--describe", "--all")
    found(r"^  segment\.bytes=1073741824 ", everything)
    found(r"^  retention\.ms=604800000 ", everything)
    for wrong in ("nosuch=1", "segment.bytes=1", "retention.ms=soon", "cleanup.policy=burn"):
        found("InvalidConfiguration", tools.refused(*configs, "--alter", "--add-config", wrong))
    found("doesn't exist", tools.run("kafka-configs", "--topic", f"{topic}-not", "--describe"))


def settings_of_the_broker_are_set_shown_and_taken_back(tools: Tools) -> None:
    one, every = ("kafka-configs", "--broker", "1"), ("kafka-configs", "--broker-defaults")
    tools.run(*every, "--alter", "--add-config", "log.segment.bytes=3145728")
    tools.run(*one, "--alter", "--add-config", "log.segment.bytes=2097152")
    said = tools.run(*one, "--describe")
    found(
        r"^  log\.segment\.bytes=2097152 .*DYNAMIC_BROKER_CONFIG:log\.segment\.bytes=2097152, "
        r"DYNAMIC_DEFAULT_BROKER_CONFIG:log\.segment\.bytes=3145728, DEFAULT_CONFIG:log\.segment\.bytes=1073741824",
        said,
    )
    found(r"^  log\.segment\.bytes=3145728 ", tools.run(*every, "--describe"))
    tools.topic()
    found(r"^  segment\.bytes=2097152 ", tools.run("kafka-configs", "--topic", tools.name, "--describe", "--all"))
    tools.run(*one, "--alter", "--delete-config", "log.segment.bytes")
    tools.run(*every, "--alter", "--delete-config", "log.segment.bytes")
    assert "log.segment.bytes" not in tools.run(*one, "--describe")
    found(r"^  log\.segment\.bytes=1073741824 ", tools.run(*one, "--describe", "--all"))
    found("InvalidRequest", tools.refused(*one, "--alter", "--add-config", "num.partitions=3"))


def levels_of_the_brokers_loggers_are_shown(tools: Tools) -> None:
    found(r"=INFO ", tools.run("kafka-configs", "--broker-logger", "1", "--describe"))


def settings_of_a_group_are_set_shown_and_taken_back(tools: Tools) -> None:
    group = ("kafka-configs", "--group", tools.name)
    tools.run(*group, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    shown = (
        r"^  consumer\.session\.timeout\.ms=50000 sensitive=false synonyms=\{DYNAMIC_GROUP_CONFIG:"
        r"consumer\.session\.timeout\.ms=50000, DEFAULT_CONFIG:group\.consumer\.session\.timeout\.ms=45000\}"
    )
    found(shown, tools.run(*group, "--describe"))
    found(
        f"^Dynamic configs for group {tools.name} are:",
        tools.run("kafka-configs", "--entity-type", "groups", "--describe"),
    )
    found(r"^  consumer\.heartbeat\.interval\.ms=5000 ", tools.run(*group, "--describe", "--all"))
    found("InvalidConfiguration", tools.refused(*group, "--alter", "--add-config", "consumer.session.timeout.ms=1"))
    tools.run(*group, "--alter", "--delete-config", "consumer.session.timeout.ms")
    found("doesn't exist", tools.run(*group, "--describe"))


def quotas_are_set_shown_and_taken_back(tools: Tools) -> None:
    user, client = ("--user", f"{tools.name}-u"), ("--client", f"{tools.name}-c")
    given = (
        ((*user,), "producer_byte_rate=1024,consumer_byte_rate=2048", f"user-principal '{user[1]}'"),
        ((*user, *client), "request_percentage=50", f"user-principal '{user[1]}', client-id '{client[1]}'"),
        ((*client,), "controller_mutation_rate=100", f"client-id '{client[1]}'"),
        (("--ip", "127.0.0.9"), "connection_creation_rate=10", "ip '127.0.0.9'"),
    )
    for entity, quotas, told in given:
        tools.run("kafka-configs", *entity, "--alter", "--add-config", quotas)
        said = tools.run("kafka-configs", *entity, "--describe")
        found(f"^Quota configs for {told} are ", said)
        for quota in quotas.split(","):
            assert f"{quota}.0" in said, said
        tools.run(
            "kafka-configs",
            *entity,
            "--alter",
            "--delete-config",
            ",".join(each.split("=")[0] for each in quotas.split(",")),
        )
        assert told not in tools.run("kafka-configs", *entity, "--describe")
    tools.run("kafka-configs", "--user-defaults", "--alter", "--add-config", "producer_byte_rate=1000000000")
    found(
        "^Quota configs for the default user-principal are producer_byte_rate=1.0E9",
        tools.run("kafka-configs", "--user-defaults", "--describe"),
    )
    tools.run("kafka-configs", "--user-defaults", "--alter", "--delete-config", "producer_byte_rate")
    tools.refused("kafka-configs", *user, "--alter", "--add-config", "nosuch_rate=1")


def users_of_scram_are_made_shown_log_in_and_are_deleted(tools: Tools) -> None:
    user = ("kafka-configs", "--user", tools.name)
    for credential in ("SCRAM-SHA-256=[iterations=8192,password=secret]", "SCRAM-SHA-512=[password=secret]"):
        tools.run(*user, "--alter", "--add-config", credential)
    said = tools.run(*user, "--describe")
    found(r"SCRAM-SHA-256=iterations=8192", said)
    found(r"SCRAM-SHA-512=iterations=4096", said)
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule"
    for password, works in (("secret", True), ("wrong", False)):
        at, login = tools.login(
            **{"sasl.jaas.config": f'{jaas} required username="{tools.name}" password="{password}";'}
        )
        listed = ("kafka-topics", "--bootstrap-server", at, "--list", "--command-config", login)
        if works:
            tools.run(*listed, at=False)
        else:
            found("SaslAuthenticationException", tools.refused(*listed, at=False))
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        tools.run(*user, "--alter", "--delete-config", mechanism)
    assert tools.name not in tools.run("kafka-configs", "--entity-type", "users", "--describe")
    found("ResourceNotFound", tools.refused(*user, "--alter", "--delete-config", "SCRAM-SHA-256"))


def rights_are_given_shown_obeyed_and_taken_back(tools: Tools) -> None:
    topic, other = tools.topic(), f"User:{tools.name}"
    allow = ("kafka-acls", "--add", "--allow-principal")
    tools.run(*allow, other, "--producer", "--topic", topic, "--transactional-id", tools.name)
    at, login = tools.login()
    refused = tools.says(
        "kafka-console-producer",
        "--bootstrap-server",
        at,
        "--topic",
        topic,
        "--command-config",
        login,
        stdin="no\n",
        at=False,
    )
    found("TopicAuthorizationException", refused)
    tools.run(*allow, f"User:{USER}", "--producer", "--topic", topic)
    tools.run(
        *allow,
        f"User:{USER}",
        "--consumer",
        "--topic",
        topic[:-2],
        "--group",
        topic[:-2],
        "--resource-pattern-type",
        "prefixed",
    )
    tools.run(
        "kafka-console-producer",
        "--bootstrap-server",
        at,
        "--topic",
        topic,
        "--command-config",
        login,
        stdin="yes\n",
        at=False,
    )
    read = tools.run(
        "kafka-console-consumer",
        *("--bootstrap-server", at, "--topic", topic, "--group", topic, "--command-config", login),
        *("--from-beginning", "--max-messages", "1", "--timeout-ms", "30000"),
        at=False,
    )
    assert read.split() == ["yes"], read
    tools.run(
        "kafka-acls",
        "--add",
        "--deny-principal",
        f"User:{USER}",
        "--deny-host",
        "127.0.0.1",
        "--operation",
        "Write",
        "--topic",
        topic,
    )
    refused = tools.says(
        "kafka-console-producer",
        "--bootstrap-server",
        at,
        "--topic",
        topic,
        "--command-config",
        login,
        stdin="no\n",
        at=False,
    )
    found("TopicAuthorizationException", refused)

    said = tools.run("kafka-acls", "--list", "--topic", topic, "--resource-pattern-type", "match")
    found(rf"resourceType=TOPIC, name={topic}, patternType=LITERAL", said)
    found(rf"resourceType=TOPIC, name={topic[:-2]}, patternType=PREFIXED", said)
    found(rf"principal={other}, host=\*, operation=WRITE, permissionType=ALLOW", said)
    found(rf"principal=User:{USER}, host=127\.0\.0\.1, operation=WRITE, permissionType=DENY", said)
    tools.run("kafka-acls", "--remove", "--force", "--topic", topic, "--allow-principal", other, "--producer")
    assert other not in tools.run("kafka-acls", "--list", "--topic", topic)
    for kind in ("--topic", "--group", "--transactional-id"):
        tools.run("kafka-acls", "--remove", "--force", kind, topic)
        tools.run("kafka-acls", "--remove", "--force", kind, topic[:-2], "--resource-pattern-type", "prefixed")
    assert topic[:-2] not in tools.run("kafka-acls", "--list")


def metrics_of_clients_are_asked_for(tools: Tools) -> None:
    name = ("--name", tools.name)
    tools.run(
        "kafka-client-metrics",
        "--alter",
        *name,
        "--metrics",
        "org.apache.kafka.",
        "--interval",
        "10000",
        "--match",
        "client_id=x",
    )
    assert tools.name in tools.run("kafka-client-metrics", "--list").split()
    said = tools.run("kafka-client-metrics", "--describe", *name)
    for line in ("interval.ms=10000", "match=client_id=x", "metrics=org.apache.kafka."):
        assert line in said, said
    tools.run("kafka-client-metrics", "--delete", *name)
    assert tools.name not in tools.run("kafka-client-metrics", "--list").split()


def tokens_are_refused_where_there_is_no_secret_for_them(tools: Tools) -> None:
    at, login = tools.login()
    token = ("--bootstrap-server", at, "--command-config", login)
    for action in (
        ("--create", "--max-life-time-period", "-1"),
        ("--describe",),
        ("--renew", "--renew-time-period", "-1", "--hmac", "c2VjcmV0"),
        ("--expire", "--expiry-time-period", "-1", "--hmac", "c2VjcmV0"),
    ):
        found("DelegationTokenDisabledException", tools.refused("kafka-delegation-tokens", *token, *action, at=False))


TESTS = (
    topics_are_made_listed_described_grown_and_deleted,
    settings_of_a_topic_are_set_shown_and_taken_back,
    settings_of_the_broker_are_set_shown_and_taken_back,
    levels_of_the_brokers_loggers_are_shown,
    settings_of_a_group_are_set_shown_and_taken_back,
    quotas_are_set_shown_and_taken_back,
    users_of_scram_are_made_shown_log_in_and_are_deleted,
    rights_are_given_shown_obeyed_and_taken_back,
    metrics_of_clients_are_asked_for,
    tokens_are_refused_where_there_is_no_secret_for_them,
)
