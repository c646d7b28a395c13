"""SASL with real clients and by hand: who is known, who is not, and what an unknown client can do."""

import asyncio
import struct
import time

import pytest
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

import mainstem
from mainstem.broker.arrivals import SCRATCH_BYTES
from mainstem.broker.config import BrokerConfig
from mainstem.broker.handlers import load_handlers
from mainstem.core import ManualClock, SystemClock
from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code
from tests.broker.security.test_scram import Client as ScramClient
from tests.broker.security.test_scram import Mechanism
from tests.support import kafka_tools
from tests.support.broker import Client, running, until
from tests.support.certificates import Authority
from tests.support.raw import RawClient

ALL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def config(**settings):
    settings = {
        "protocol": "SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": ALL,
        "users": {"alice": "wonderland"},
    } | settings
    return BrokerConfig(port=0, connection_failed_authentication_delay_ms=10, **settings)


def as_user(bootstrap, mechanism="PLAIN", user="alice", password="wonderland"):
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


@pytest.fixture(scope="module")
def log():
    with mainstem.embedded(broker=config()) as log:
        yield log


@pytest.mark.parametrize("mechanism", ALL)
def test_librdkafka_and_aiokafka_say_who_they_are(log, mechanism):
    topic = f"t-{mechanism}"
    producer = Producer(as_user(log.bootstrap, mechanism))
    producer.produce(topic, b"one")
    assert producer.flush(30) == 0

    async def read() -> bytes:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=log.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="wonderland",
            auto_offset_reset="earliest",
        )
        async with consumer:
            return (await asyncio.wait_for(consumer.getone(), 30)).value

    assert asyncio.run(read()) == b"one"


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "wonderland")])
def test_who_fails_is_told_so_and_nothing_else(log, mechanism, user, password):
    admin = AdminClient(as_user(log.bootstrap, mechanism, user, password))
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)

    async def try_it() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=log.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=password,
        )
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(KafkaError):
        asyncio.run(try_it())


@pytest.mark.timeout(240)
def test_kafkas_tools_make_users_over_tls_and_these_come_in(tmp_path):
    authority = Authority(tmp_path)
    pem, key = authority.issue("log")
    with mainstem.embedded(
        tmp_path / "data", broker=config(protocol="SASL_SSL", certificate_file=str(pem), key_file=str(key))
    ) as log:

        def properties(name, mechanism, user, password):
            file = tmp_path / f"{name}.properties"
            module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
            file.write_text(
                f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\nssl.truststore.type=PEM\n"
                f"ssl.truststore.location={authority.file}\n"
                f"sasl.jaas.config=org.apache.kafka.common.security.{module} "
                f'required username="{user}" password="{password}";\n'
            )
            return str(file)

        admin = properties("admin", "PLAIN", "alice", "wonderland")
        configs = ("kafka-configs", "--bootstrap-server", log.bootstrap, "--command-config", admin)
        user = ("--entity-type", "users", "--entity-name", "bob")
        kafka_tools.run(*configs, "--alter", *user, "--add-config", "SCRAM-SHA-512=[iterations=8192,password=builder]")
        assert "SCRAM-SHA-512=iterations=8192" in kafka_tools.run(*configs, "--describe", *user).stdout
        bob = properties("bob", "SCRAM-SHA-512", "bob", "builder")
        at = ("--bootstrap-server", log.bootstrap, "--topic", "t", "--command-config", bob)
        kafka_tools.run("kafka-console-producer", *at, stdin="hello\n")
        said = kafka_tools.run(
            "kafka-console-consumer", *at, "--from-beginning", "--max-messages", "1", "--timeout-ms", "60000"
        ).stdout
        assert said.split() == ["hello"]
        kafka_tools.run(*configs, "--alter", *user, "--delete-config", "SCRAM-SHA-512")
        with RawClient(log.bootstrap) as raw, pytest.raises(ConnectionError):
            raw.call(18, 0)  # no TLS


def test_users_made_by_an_admin_client_are_there_after_a_restart(tmp_path):
    with mainstem.embedded(tmp_path, broker=config()) as log:
        admin = AdminClient(as_user(log.bootstrap))
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 5000)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("carol", info, b"c-secret")])["carol"].result(
            30
        )
        (told,) = admin.describe_user_scram_credentials(["carol"])["carol"].result(30).scram_credential_infos
        assert (told.mechanism, told.iterations) == (ScramMechanism.SCRAM_SHA_256, 5000)
        with pytest.raises(KafkaException, match="RESOURCE_NOT_FOUND"):
            admin.describe_user_scram_credentials(["alice"])["alice"].result(30)
    with mainstem.embedded(tmp_path, broker=config(users={})) as log:
        for mechanism in ("SCRAM-SHA-256", "PLAIN"):
            AdminClient(as_user(log.bootstrap, mechanism, "carol", "c-secret")).list_topics(timeout=30)


# --- by hand ----------------------------------------------------------------------------------------------------------


def token(user="alice", password="wonderland"):
    return f"\0{user}\0{password}".encode()


def log_in(raw, mechanism="PLAIN", password="wonderland"):
    assert raw.call(17, 1, mechanism=mechanism).error_code is Code.none
    if mechanism == "PLAIN":
        return raw.call(36, 2, auth_bytes=token(password=password))
    client = ScramClient(Mechanism.SHA_256, "alice", password)
    answer = raw.call(36, 2, auth_bytes=client.first())
    return raw.call(36, 2, auth_bytes=client.final(bytes(answer.auth_bytes)))


def test_every_api_before_the_client_is_known_ends_the_connection(log):
    for api_key, handler in load_handlers().items():
        with RawClient(log.bootstrap) as raw:
            raw.call(18, 0)
            if api_key in (17, 18, 36):
                continue
            head = struct.pack(">hhih", api_key, handler.max_version, 1, -1) + bytes(20)
            raw._socket.sendall(struct.pack(">i", len(head)) + head)
            with pytest.raises(ConnectionError):
                raw.receive(api_key, handler.max_version)


def test_an_unknown_client_may_send_little(log):
    with RawClient(log.bootstrap) as raw:
        raw._socket.sendall(struct.pack(">i", 524_289))
        with pytest.raises(ConnectionError):
            raw.receive(18, 0)
    with RawClient(log.bootstrap) as raw:
        assert log_in(raw).error_code is Code.none
        assert len(raw.call(3, 9, topics=[{"name": "x" * 30_000}] * 20).topics) == 1


def test_unknown_clients_do_not_keep_known_ones_from_sending(tmp_path):
    """Half a megabyte of each filled the budget of all requests: a producer came through every ten seconds."""

    async def check() -> None:
        async with running(tmp_path, SystemClock(), config(queued_max_request_bytes=1 << 20)) as broker:

            async def begun(size):
                client = Client(*await asyncio.open_connection(broker.host, broker.port))
                client._writer.write(struct.pack(">i", size) + b"\0\x12\0\0" + bytes(size - 8))
                return client

            known = Client(*await asyncio.open_connection(broker.host, broker.port))
            await known.call(17, 1, mechanism="PLAIN")
            answer = await known.call(36, 0, auth_bytes=b"\0alice\0wonderland")
            assert answer.error_code is Code.none
            strangers = [await begun(500_000) for _ in range(8)]
            await until(lambda: broker.strangers_memory.held, "they have sent what they may")
            await broker.topics.create("t", 1, {})
            for _ in range(3):
                produce = {"transactional_id": None, "acks": -1, "timeout": 9_000}
                batch = build_batch([Record(0, 1, None, bytes(900_000))])
                data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
                done = await asyncio.wait_for(known.call(0, 8, **produce, topic_data=data), 5)
                assert done.responses[0].partition_responses[0].error_code is Code.none
            assert broker.strangers_memory.held <= broker.strangers_memory.limit + 500_000 + 8 * SCRATCH_BYTES
            for client in (known, *strangers):
                client.close()

    asyncio.run(check())


def test_an_unknown_client_gives_way_to_one_of_another_address(tmp_path):
    """Two hundred silent connections kept everybody out where there were descriptors for fewer."""

    async def check() -> None:
        async with running(tmp_path, SystemClock(), config(max_connections=6)) as broker:
            silent = [
                await asyncio.open_connection(broker.host, broker.port, local_addr=("127.0.0.2", 0)) for _ in range(6)
            ]
            await until(lambda: len(broker.connections) == 6, "all places are taken")
            known = []
            for left in (5, 4, 3):
                known.append(Client(*await asyncio.open_connection(broker.host, broker.port)))
                await known[-1].call(17, 1, mechanism="PLAIN")
                answer = await known[-1].call(36, 0, auth_bytes=b"\0alice\0wonderland")
                assert answer.error_code is Code.none
                assert sum(each.client_host == "/127.0.0.2" for each in broker.connections) == left
            for each in (*known, *(writer for _, writer in silent)):
                each.close()
            await until(lambda: not broker.connections, "all have gone")

    asyncio.run(check())


def test_an_unknown_client_has_little_time(tmp_path):
    with (
        mainstem.embedded(broker=config(authentication_timeout_ms=200)) as log,
        RawClient(log.bootstrap) as known,
        RawClient(log.bootstrap) as silent,
    ):
        log_in(known)
        with pytest.raises(ConnectionError):
            silent.receive(18, 0)
        with RawClient(log.bootstrap) as late, pytest.raises(ConnectionError):
            late.receive(18, 0)
        assert known.call(18, 0).error_code is Code.none


def test_whoever_breaks_the_handshake_off_is_no_client_that_was_slow(tmp_path):
    """Each left a traceback in the log, later, and the line of a client without a name."""
    authority = Authority(tmp_path)
    pem, key = authority.issue("log")
    settings = config(protocol="SASL_SSL", certificate_file=str(pem), key_file=str(key), authentication_timeout_ms=300)

    async def test():
        failed = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
        with structlog.testing.capture_logs() as told:
            async with running(tmp_path / "data", SystemClock(), settings) as broker:
                for data in (b"", b"GET / HTTP/1.0\r\n\r\n"):
                    _, writer = await asyncio.open_connection(broker.host, broker.port)
                    writer.write(data)
                    await writer.drain()
                    writer.close()
                await asyncio.sleep(0.7)  # for longer than the time to say who one is
        assert failed == []
        assert not [entry for entry in told if entry["event"] == "authentication_timed_out"]

    asyncio.run(test())


def test_an_unknown_client_gains_no_time_by_dripping_or_asking(tmp_path):
    with mainstem.embedded(broker=config(authentication_timeout_ms=400)) as log, RawClient(log.bootstrap) as drips:
        asks = drips.another()

        def go_on() -> None:
            for _ in range(200):
                asks.call(18, 0)
                drips._socket.sendall(b"\0")
                time.sleep(0.05)

        drips._socket.sendall(b"\0\0\1\0")  # so many bytes are to follow
        with asks, pytest.raises(OSError):
            go_on()
        with pytest.raises(OSError):
            drips.receive(18, 0)


def test_a_mechanism_that_is_not_offered_is_answered_with_those_that_are(log):
    with RawClient(log.bootstrap) as raw:
        answer = raw.call(17, 1, mechanism="GSSAPI")
        assert (answer.error_code, answer.mechanisms) == (Code.unsupported_sasl_mechanism, ALL)
        with pytest.raises(ConnectionError):
            raw.call(18, 0)


def test_steps_out_of_order(log):
    with RawClient(log.bootstrap) as raw:
        assert raw.call(36, 2, auth_bytes=token()).error_code is Code.illegal_sasl_state
        with pytest.raises(ConnectionError):
            raw.call(18, 0)
    with RawClient(log.bootstrap) as raw:
        log_in(raw)
        assert raw.call(17, 1, mechanism="PLAIN").error_code is Code.illegal_sasl_state
        assert raw.call(36, 2, auth_bytes=token()).error_code is Code.illegal_sasl_state
        assert raw.call(18, 0).error_code is Code.none


def test_a_log_without_sasl_says_so(mainstem_log):
    with RawClient(mainstem_log.bootstrap) as raw:
        assert raw.call(17, 1, mechanism="PLAIN").error_code is Code.illegal_sasl_state
        assert raw.call(36, 2, auth_bytes=token()).error_code is Code.illegal_sasl_state


@pytest.mark.parametrize("good", [True, False])
def test_handshake_version_0_is_followed_by_bare_bytes(log, good):
    with RawClient(log.bootstrap) as raw:
        assert raw.call(17, 0, mechanism="PLAIN").error_code is Code.none
        data = token(password="wonderland" if good else "wrong")
        raw._socket.sendall(struct.pack(">i", len(data)) + data)
        if good:
            assert raw._read(4) == bytes(4)
            assert raw.call(3, 9, topics=[]).brokers
        else:
            with pytest.raises(ConnectionError):
                raw._read(4)


def test_a_failure_is_answered_late_and_ends_the_connection(tmp_path, monkeypatch):
    logs = structlog.testing.CapturingLogger()
    monkeypatch.setattr("mainstem.broker.security.sasl.log", logs)

    async def check() -> None:
        async with running(tmp_path, SystemClock(), config()) as broker:
            client = await Client.connect(broker)
            await client.call(17, 1, mechanism="PLAIN")
            started = time.monotonic()
            answer = await client.call(36, 2, auth_bytes=token(password="wrong-secret"))
            assert answer.error_code is Code.sasl_authentication_failed
            assert time.monotonic() - started >= 0.01
            assert await client._reader.read() == b""
            client.close()
            assert "secret" not in str(answer)
            assert "secret" not in str(logs.calls)
            assert "wonderland" not in repr(broker.config)

    asyncio.run(check())


def test_that_nobody_can_say_who_he_is_is_told_at_the_start(tmp_path, monkeypatch):
    logs = structlog.testing.CapturingLogger()
    monkeypatch.setattr("mainstem.broker.security.sasl.log", logs)

    async def check() -> None:
        async with running(tmp_path, SystemClock(), config()):
            assert not logs.calls
        async with running(tmp_path, SystemClock(), config(users={})) as broker:
            assert [each.args for each in logs.calls] == [("no_users",)]
            await broker.credentials.change(iter(()), iter([("bob", 1, 4096, b"salt", b"salted")]))
        async with running(tmp_path, SystemClock(), config(users={})):
            assert len(logs.calls) == 1

    asyncio.run(check())


def test_a_session_that_ends_is_prolonged_by_saying_it_again(tmp_path):
    """KIP-368."""
    clock = ManualClock()

    async def call(client, api_key, version, **fields):
        return await asyncio.wait_for(client.call(api_key, version, **fields), 30)

    async def check() -> None:
        async with running(tmp_path, clock, config(connections_max_reauth_ms=5_000)) as broker:
            client = await Client.connect(broker)

            async def say(user="alice", mechanism="PLAIN"):
                await call(client, 17, 1, mechanism=mechanism)
                return await call(client, 36, 1, auth_bytes=token(user))

            first = await say()
            assert first.session_lifetime.total_seconds() == 5
            clock.advance_ms(4_000)
            assert (await say()).error_code is Code.none
            clock.advance_ms(4_000)
            assert (await call(client, 3, 9, topics=[])).brokers
            clock.advance_ms(2_000)
            with pytest.raises(asyncio.IncompleteReadError):
                await call(client, 3, 9, topics=[])
            client.close()

            client = await Client.connect(broker)
            await say()
            broker.credentials._given |= {("bob", each): broker.credentials._given["alice", each] for each in Mechanism}
            assert (await say("bob")).error_code is Code.sasl_authentication_failed
            client.close()

    asyncio.run(check())


def test_what_describe_configs_tells_has_no_password(log):
    with RawClient(log.bootstrap) as raw:
        log_in(raw, "SCRAM-SHA-256")
        answer = raw.call(32, 4, resources=[{"resource_type": 4, "resource_name": "1", "configuration_keys": None}])
        assert answer.results[0].configs
        assert "wonderland" not in str(answer)


@pytest.mark.parametrize("bad", [b"", b"alice", b"\0alice\0", b"\xff\0a\0b", b"bob\0alice\0wonderland"])
def test_a_plain_message_that_is_none(log, bad):
    with RawClient(log.bootstrap) as raw:
        raw.call(17, 1, mechanism="PLAIN")
        assert raw.call(36, 0, auth_bytes=bad).error_code is Code.sasl_authentication_failed


DELEGATION_TOKENS = {
    38: {"renewers": [], "max_lifetime": -1},
    39: {"hmac": b"x", "renew_period": 1},
    40: {"hmac": b"x", "expiry_time_period": 1},
    41: {"owners": None},
}


@pytest.mark.parametrize("api_key", DELEGATION_TOKENS)
def test_there_are_no_delegation_tokens(log, mainstem_log, api_key):
    """Who is known is told that there are none; who is not, that it may not ask."""
    version, fields = load_handlers()[api_key].max_version, DELEGATION_TOKENS[api_key]
    with RawClient(log.bootstrap) as raw:
        log_in(raw)
        assert raw.call(api_key, version, **fields).error_code is Code.delegation_token_auth_disabled
    with RawClient(mainstem_log.bootstrap) as raw:
        assert raw.call(api_key, version, **fields).error_code is Code.delegation_token_request_not_allowed
