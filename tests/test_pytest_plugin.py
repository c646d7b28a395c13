from confluent_kafka.admin import AdminClient

from mainstem.embedded_log import EmbeddedLog


def test_a_users_test_gets_a_log_by_naming_the_fixture(mainstem_log: EmbeddedLog) -> None:
    """The installed package registers the fixture; nothing is imported for it."""
    admin = AdminClient({"bootstrap.servers": mainstem_log.bootstrap})
    assert len(admin.list_topics(timeout=30).brokers) == 1
