"""The log process dies the moment it has answered a change of a topic: the change holds."""

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.crash.test_coordinators import LogProcess


def changed(results):
    for result in results.values():
        result.result(30)


def test_settings_and_partitions_survive_a_kill(tmp_path):
    log = LogProcess(tmp_path)
    log.start()
    try:
        admin = AdminClient({"bootstrap.servers": log.bootstrap})
        changed(admin.create_topics([NewTopic("t", 2, 1, config={"retention.ms": "1000000"})]))
        changed(admin.create_topics([NewTopic("gone", 1, 1)]))
        log.kill()
        log.start()
        entries = [
            ConfigEntry("retention.bytes", "123456", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ]
        resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=entries)
        changed(admin.incremental_alter_configs([resource]))
        log.kill()
        log.start()
        changed(admin.create_partitions([NewPartitions("t", 5)]))
        log.kill()
        log.start()
        changed(admin.delete_topics(["gone"]))
        log.kill()
        log.start()
        resource = ConfigResource(ResourceType.TOPIC, "t")
        found = admin.describe_configs([resource])[resource].result(30)
        assert {name: found[name].value for name in ("retention.ms", "retention.bytes", "cleanup.policy")} == {
            "retention.ms": "1000000",
            "retention.bytes": "123456",
            "cleanup.policy": "delete,compact",
        }
        topics = admin.list_topics(timeout=30).topics
        assert len(topics["t"].partitions) == 5
        assert "gone" not in topics
    finally:
        log.kill()
