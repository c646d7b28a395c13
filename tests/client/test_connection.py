import time
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.serialization import Encoding

import mainstem
from mainstem.broker.config import BrokerConfig
from mainstem.client import BrokerUnavailable, Connection, Security
from mainstem.client.compacted import read_compacted
from mainstem.client.connection import records_are_gone
from mainstem.client.topics import ensure_topic
from mainstem.client.transaction import SharedTransaction
from mainstem.core import TopicPartition, UserError
from tests.support.certificates import Authority, self_signed
from tests.support.kafka_cluster import KafkaCluster
from tests.support.ports import free_port

SECURE = Security(
    protocol="SASL_SSL", mechanism="SCRAM-SHA-512", username="ada", password='s"e\\cret', ca_file="/etc/ca.pem"
)


def test_plain_text_is_the_default():
    connection = Connection("127.0.0.1:9092")
    assert connection.aiokafka() == {"security_protocol": "PLAINTEXT"}
    assert connection.confluent() == {"bootstrap.servers": "127.0.0.1:9092", "security.protocol": "PLAINTEXT"}
    assert connection.spark()["kafka.bootstrap.servers"] == "127.0.0.1:9092"


def test_security_reaches_every_client():
    connection = Connection("a:1,b:2", SECURE)
    assert connection.addresses == (("a", 1), ("b", 2))
    confluent = connection.confluent(isolation_level="read_committed")
    assert confluent["sasl.password"] == 's"e\\cret'
    assert confluent["ssl.ca.location"] == "/etc/ca.pem"
    assert confluent["isolation.level"] == "read_committed"
    spark = connection.spark()
    assert spark["kafka.sasl.jaas.config"].endswith(
        'ScramLoginModule required username="ada" password="s\\"e\\\\cret";'
    )
    assert spark["kafka.ssl.truststore.type"] == "PEM"


def test_a_password_is_not_printed():
    assert "cret" not in repr(Connection("a:1", SECURE))


@pytest.mark.parametrize("bootstrap", ["", "localhost", "localhost:", ":9092", "a:0", "a:99999", "a:1,b"])
def test_a_bad_address_is_told_at_once(bootstrap):
    with pytest.raises(UserError, match="expected HOST:PORT"):
        Connection(bootstrap)


@pytest.mark.parametrize(
    "settings",
    [
        {"protocol": "SASL_SSL"},
        {"mechanism": "PLAIN"},
        {"protocol": "SSL", "key_file": "/k.pem"},
        {"protocol": "SSL", "certificate_file": "/c.pem"},
        {"ca_file": "/ca.pem"},
        {"certificate_file": "/c.pem", "key_file": "/k.pem"},
    ],
)
def test_half_of_a_security_setting_is_refused(settings):
    with pytest.raises(ValueError, match=": set "):
        Security(**settings)


@pytest.fixture(scope="module", params=["mainstem", pytest.param("kafka", marks=pytest.mark.kafka)])
def secure_log(request, tmp_path_factory):
    """The address of a log that takes TLS and SASL only, and the file of its authority."""
    with (_kafka if request.param == "kafka" else _ours)(tmp_path_factory) as found:
        yield found


@contextmanager
def _ours(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("secure"))
    certificate, key = authority.issue("log")
    config = BrokerConfig(
        port=0,
        protocol="SASL_SSL",
        certificate_file=str(certificate),
        key_file=str(key),
        sasl_enabled_mechanisms=("PLAIN", "SCRAM-SHA-256"),
        users={"ada": "secret"},
        connection_failed_authentication_delay_ms=10,
    )
    with mainstem.embedded(broker=config) as log:
        yield log.bootstrap, authority.file


@contextmanager
def _kafka(tmp_path_factory):
    """A broker with a second listener."""
    directory, port = tmp_path_factory.mktemp("secure"), free_port()
    made, key = self_signed()
    certificate, both = directory / "server.crt", directory / "server.pem"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    both.write_bytes(key + certificate.read_bytes())
    cluster = KafkaCluster(1, directory / "kafka")
    plain = f"PLAINTEXT://127.0.0.1:{cluster.ports[1]}"
    login = "org.apache.kafka.common.security"
    cluster.overrides |= {
        "listeners": f"{plain},CONTROLLER://127.0.0.1:{cluster._controller_ports[1]},SECURE://127.0.0.1:{port}",
        "advertised.listeners": f"{plain},SECURE://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.secure.plain.sasl.jaas.config": f'{login}.plain.PlainLoginModule required user_ada="secret";',
        "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
    }
    with cluster:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        admin = cluster.admin()
        for future in admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("ada", info, b"secret")]
        ).values():
            future.result()
        yield f"127.0.0.1:{port}", certificate


def secured(secure_log, mechanism, password="secret"):
    address, certificate = secure_log
    return Connection(address, Security("SASL_SSL", mechanism, "ada", password, str(certificate)))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_transaction_and_its_reader_go_over_tls_and_sasl(secure_log, mechanism):
    connection = secured(secure_log, mechanism)
    topic = f"secure-{mechanism.lower()}"
    ensure_topic(connection, topic, 1)
    transaction = SharedTransaction(connection, topic)
    transaction.fence()
    with transaction.writer(transaction.begin()) as writer:
        writer.append(TopicPartition(topic, 0), [b"k"], [b"v"], None, int(time.time() * 1000))
        appended = writer.finish()
    transaction.commit({partition: part.count for partition, part in appended.items()})
    transaction.close()
    assert read_compacted(connection, topic) == {b"k": b"v"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_one_line(secure_log, mechanism):
    with pytest.raises(BrokerUnavailable, match=r"(?i)authentication"):
        SharedTransaction(secured(secure_log, mechanism, "wrong"), "t")


def test_a_certificate_that_nobody_vouches_for_is_refused(secure_log):
    address, _ = secure_log
    with pytest.raises(BrokerUnavailable, match=r"(?i)certificate"):
        SharedTransaction(Connection(address, Security("SASL_SSL", "PLAIN", "ada", "secret")), "t")


def test_how_spark_says_that_records_are_gone():
    said = "Some data may have been lost because they are not available in Kafka any more; either the data was aged out"
    assert records_are_gone(f"[STREAM_FAILED] {said}")
    assert not records_are_gone("Java heap space")
