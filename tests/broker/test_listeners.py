"""Listeners: several addresses, each told to its own clients; TLS with real clients; what cannot hold memory."""

import asyncio
import contextlib
import gc
import socket
import ssl
from pathlib import Path

import pytest
import structlog
import uvloop
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from cryptography import x509

import mainstem
from mainstem.broker import handshakes, listeners
from mainstem.broker.answer_memory import PATIENCE_SECONDS
from mainstem.broker.config import BrokerConfig, ListenerConfig
from mainstem.core import ManualClock, SystemClock
from mainstem.core.config import BadSetting
from mainstem.records import Record, build_batch
from tests.support import kafka_tools
from tests.support.broker import Client, running, until
from tests.support.certificates import Authority
from tests.support.key_updates import updates_until_cut_off
from tests.support.ports import free_port, free_ports
from tests.support.raw import RawClient


@pytest.fixture
def authority(tmp_path):
    made = Authority(tmp_path)
    made.issue("log")
    made.issue("app", subject=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "app")]))
    return made


def tls(authority, **settings):
    files = {"certificate_file": str(authority.directory / "log.pem"), "key_file": str(authority.directory / "log.key")}
    return {"protocol": "SSL", "port": 0, **files, **settings}


def mutual(authority, **settings):
    return tls(authority, client_ca_file=str(authority.file), **settings)


def of_client(authority):
    """librdkafka's settings for a client that shows a certificate."""
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.file),
        "ssl.certificate.location": str(authority.directory / "app.pem"),
        "ssl.key.location": str(authority.directory / "app.key"),
    }


def test_each_listener_tells_its_own_address(tmp_path):
    """A client of the second listener was sent to the first one's address."""
    second = free_port()
    config = BrokerConfig(
        port=0, listeners={"out": ListenerConfig(port=second, advertised_host="localhost", advertised_port=4321)}
    )
    with mainstem.embedded(broker=config) as log:
        for bootstrap, told in ((log.bootstrap, log.bootstrap), (f"127.0.0.1:{second}", "localhost:4321")):
            with RawClient(bootstrap) as raw:
                for api, version, answer in ((3, 9, {"topics": []}), (60, 0, {})):
                    (node,) = raw.call(api, version, **answer).brokers
                    assert f"{node.host}:{node.port}" == told
                one = raw.call(10, 1, key="g", key_type=0)
                several = raw.call(10, 4, key_type=0, coordinator_keys=["g"]).coordinators[0]
                assert {f"{each.host}:{each.port}" for each in (one, several)} == {told}


def test_what_a_listener_leaves_out_is_said_by_broker():
    config = BrokerConfig(
        certificate_file="a", key_file="b", listeners={"out": ListenerConfig(port=0, protocol="SSL", key_file="c")}
    )
    out = config.all_listeners()["out"]
    assert (out.certificate_file, out.key_file) == ("a", "c")
    assert config.below(Path("/etc")).listeners["out"].key_file == "/etc/c"
    assert config.below(Path("/etc")).certificate_file == "/etc/a"


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"protocol": "SSL"}, "needs certificate_file"),
        ({"protocol": "SSL", "certificate_file": "a"}, "needs key_file"),
        (
            {"protocol": "SSL", "certificate_file": "a", "key_file": "b", "client_auth": "required"},
            "needs client_ca_file",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings, missing):
    with pytest.raises(ValueError, match=missing):
        BrokerConfig(**settings)
    with pytest.raises(ValueError, match=f"listeners.out: .*{missing}"):
        BrokerConfig(listeners={"out": ListenerConfig(**settings)})


def test_a_certificate_that_is_not_there_stops_the_start(authority, tmp_path):
    async def check() -> None:
        (authority.directory / "log.pem").unlink()
        with pytest.raises(BadSetting, match=r"listener broker: certificate_file .*log\.pem"):
            async with running(tmp_path / "data", SystemClock(), BrokerConfig(**tls(authority))):
                pass

    asyncio.run(check())


@pytest.mark.timeout(120)
def test_real_clients_write_and_read_over_mutual_tls(authority, tmp_path):
    with mainstem.embedded(broker=BrokerConfig(**mutual(authority))) as log:
        producer = Producer({"bootstrap.servers": log.bootstrap, **of_client(authority)})
        producer.produce("t", b"x" * 100_000)
        assert producer.flush(30) == 0

        async def second() -> None:
            context = ssl.create_default_context(cafile=str(authority.file))
            context.load_cert_chain(authority.directory / "app.pem", authority.directory / "app.key")
            async with AIOKafkaProducer(
                bootstrap_servers=log.bootstrap, security_protocol="SSL", ssl_context=context
            ) as producer:
                await producer.send_and_wait("t", b"second")

        asyncio.run(second())
        properties = tmp_path / "client.properties"
        chain, key = ((authority.directory / f"app.{kind}").read_text().replace("\n", "\\n") for kind in ("pem", "key"))
        properties.write_text(
            f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority.file}\n"
            f"ssl.keystore.type=PEM\nssl.keystore.certificate.chain={chain}\nssl.keystore.key={key}\n"
        )
        said = kafka_tools.run(
            "kafka-console-consumer",
            *("--bootstrap-server", log.bootstrap, "--topic", "t", "--from-beginning", "--max-messages", "2"),
            *("--command-config", str(properties), "--timeout-ms", "60000"),
        ).stdout
        assert [len(line) for line in said.splitlines()] == [100_000, 6]


@pytest.mark.timeout(60)
def test_clients_of_a_certificate_for_localhost_alone_reach_the_log_that_listens_there(authority, tmp_path):
    """They were sent on to 127.0.0.1, for which it is none."""
    authority.issue("log", hosts=[x509.DNSName("localhost")])
    with mainstem.embedded(broker=BrokerConfig(host="localhost", **tls(authority))) as log:
        assert log.bootstrap.startswith("localhost:")
        producer = Producer({"bootstrap.servers": log.bootstrap, **of_client(authority)})
        producer.produce("t", b"x")
        assert producer.flush(30) == 0


async def asked(broker, context):
    client = Client(*await asyncio.open_connection(broker.host, broker.port, ssl=context))
    try:
        await client.call(18, 0)
    finally:
        client.close()
        await asyncio.sleep(0)


def test_who_shows_a_certificate_is_its_subject_and_who_shows_none_is_cut_off(authority, tmp_path):
    async def check() -> None:
        async with running(tmp_path / "data", SystemClock(), BrokerConfig(**mutual(authority))) as broker:
            context = ssl.create_default_context(cafile=str(authority.file))
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await asked(broker, context)
            assert not broker.connections
            context.load_cert_chain(authority.directory / "app.pem", authority.directory / "app.key")
            client = Client(*await asyncio.open_connection(broker.host, broker.port, ssl=context))
            await client.call(18, 0)
            assert [each.principal for each in broker.connections] == ["User:CN=app"]
            client.close()

    asyncio.run(check())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_that_shows_no_certificate_is_told_so(authority, version):
    """The connection ended without a word, and clients tried again until their patience was over."""
    context = ssl.create_default_context(cafile=str(authority.file))
    context.minimum_version = context.maximum_version = version
    with mainstem.embedded(broker=BrokerConfig(**mutual(authority))) as log:
        host, _, port = log.bootstrap.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=10)
        with pytest.raises(ssl.SSLError, match="ALERT"), context.wrap_socket(plain, server_hostname=host) as secure:
            secure.recv(1)


def test_tls_before_1_2_is_refused(authority, tmp_path):
    async def check() -> None:
        async with running(tmp_path / "data", SystemClock(), BrokerConfig(**tls(authority))) as broker:
            old = ssl.create_default_context(cafile=str(authority.file))
            old.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.warns(DeprecationWarning, match="TLSv1"):
                old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(broker.host, broker.port, ssl=old)

    asyncio.run(check())


def test_a_handshake_that_does_not_come_is_cut_off(authority, tmp_path):
    config = BrokerConfig(**tls(authority), authentication_timeout_ms=200)

    async def check() -> None:
        async with running(tmp_path / "data", SystemClock(), config) as broker:
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
            await until(lambda: not list(broker.handshakes), "no handshake is left")

    asyncio.run(check())


def test_a_handshake_that_drips_is_cut_off(authority, tmp_path):
    config = BrokerConfig(**tls(authority), authentication_timeout_ms=300)

    async def check() -> None:
        async with running(tmp_path / "data", SystemClock(), config) as broker:
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            ended = asyncio.ensure_future(reader.read())
            async with asyncio.timeout(10):
                for byte in b"\x16\x03\x01\x02\x00\x01" + bytes(500):  # the beginning of a ClientHello
                    writer.write(bytes([byte]))
                    if (await asyncio.wait([ended], timeout=0.05))[0]:
                        break
            assert ended.result() == b""
            writer.close()
            await until(lambda: not list(broker.handshakes), "no handshake is left")

    asyncio.run(check())


def test_clients_beyond_the_limit_are_gone_before_their_handshake_and_those_that_fail_in_it_count_no_more(
    authority, tmp_path
):
    """They were told by TLS, and held a descriptor until they had answered that."""
    config = BrokerConfig(**tls(authority), max_connections_per_ip=2)

    async def check() -> None:
        async with running(tmp_path / "data", SystemClock(), config) as broker:
            silent = [await asyncio.open_connection(broker.host, broker.port) for _ in range(2)]
            for _ in range(5):
                reader, writer = await asyncio.open_connection(broker.host, broker.port)
                assert await asyncio.wait_for(reader.read(), 2) == b""
                writer.close()
            assert len(list(broker.descriptors())) == 3  # of the two, too: a fork would keep them open
            for _, writer in silent:
                writer.write(b"no TLS")
            await until(lambda: len(list(broker.descriptors())) == 1, "their handshakes have failed")
            context = ssl.create_default_context(cafile=str(authority.file))
            clients = [Client(*await asyncio.open_connection(broker.host, broker.port, ssl=context)) for _ in range(2)]
            for client in clients:
                await client.call(18, 0)
            for client in clients:
                client.close()
            for _, writer in silent:
                writer.close()

    asyncio.run(check())


def test_silent_clients_keep_no_other_address_out_and_their_own_for_a_second(authority, tmp_path, monkeypatch):
    monkeypatch.setattr(handshakes, "MOST", 5)
    monkeypatch.setattr(handshakes, "MOST_WAITING", 7)

    async def check() -> None:
        async with running(tmp_path / "data", SystemClock(), BrokerConfig(**tls(authority))) as broker:
            where, context = (broker.host, broker.port), ssl.create_default_context(cafile=str(authority.file))

            async def served(host):
                arriving = asyncio.open_connection(*where, ssl=context, local_addr=(host, 0))
                client = Client(*await asyncio.wait_for(arriving, 30))
                await client.call(18, 0)
                client.close()

            silent = [await asyncio.open_connection(*where) for _ in range(20)]
            await until(lambda: len(list(broker.descriptors())) == 1 + 5 + 7, "twelve are kept")
            async with asyncio.timeout(handshakes.PATIENCE_SECONDS):
                await served("127.0.0.2")
            assert await silent[0][0].read() == b""  # the oldest was cut off
            await served("127.0.0.1")
            for _, writer in silent:
                writer.close()

    asyncio.run(check())


def test_good_clients_that_come_all_at_once_are_all_served(authority, tmp_path, monkeypatch):
    """The first of a burst were cut off before their handshake had had a turn."""
    monkeypatch.setattr(handshakes, "MOST", 5)

    async def check() -> None:
        async with running(tmp_path / "data", SystemClock(), BrokerConfig(**tls(authority))) as broker:
            context = ssl.create_default_context(cafile=str(authority.file))
            await asyncio.gather(*(asked(broker, context) for _ in range(60)))

    asyncio.run(check())


def test_where_all_places_are_taken_a_silent_client_gives_way(authority, tmp_path):
    """With one place, whoever held it without a word kept everybody out until his time was over, and came again."""

    async def check() -> None:
        config = BrokerConfig(**tls(authority), max_connections=1)
        async with running(tmp_path / "data", SystemClock(), config) as broker:
            silent = await asyncio.open_connection(broker.host, broker.port)
            await until(lambda: len(list(broker.descriptors())) == 2, "it has the place")
            await asyncio.sleep(handshakes.PATIENCE_SECONDS)
            context = ssl.create_default_context(cafile=str(authority.file))
            client = Client(*await asyncio.open_connection(broker.host, broker.port, ssl=context))
            await client.call(18, 0)
            with pytest.raises(ConnectionError):  # who is connected does not
                await asyncio.open_connection(broker.host, broker.port, ssl=context)
            await client.call(18, 0)
            client.close()
            silent[1].close()

    asyncio.run(check())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_a_client_does_not_take_counts_until_it_does_or_is_cut_off(authority, tmp_path, run):
    """A transport of TLS gives all that it is told to another one below, and says that nothing is left: clients that
    took nothing held 18 MB each, as long as they liked.
    """
    clock, limit, batch = ManualClock(), 8 << 20, 900_000

    async def check() -> None:
        config = BrokerConfig(**tls(authority), queued_max_request_bytes=limit // 4)
        async with running(tmp_path / "data", clock, config) as broker:
            log = (await broker.topics.create("t", 1, {})).logs[0]
            for _ in range(16):
                await log.append(build_batch([Record(0, 1, None, b"x" * batch)]))
            wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50_000_000}]
            topics = [{"topic": "t", "partitions": wanted}]
            fetch = {"max_wait": 0, "min_bytes": 1, "max_bytes": 50_000_000, "topics": topics}
            context = ssl.create_default_context(cafile=str(authority.file))

            async def connected(room=None):
                plain = socket.socket()
                if room is not None:
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
                plain.setblocking(False)
                await asyncio.get_running_loop().sock_connect(plain, (broker.host, broker.port))
                opening = asyncio.open_connection(sock=plain, ssl=context, server_hostname="127.0.0.1", limit=1024)
                return Client(*await opening)

            slow = [await connected(room=4096) for _ in range(3)]
            for client in slow:
                for _ in range(8):  # a socket takes some megabytes of what nobody reads
                    client.send(1, 4, **fetch)
            await until(lambda: all(each._outbox.is_stuck for each in broker.connections), "they are stuck")
            assert all(each._outbox.held >= batch for each in broker.connections)
            client = await connected()
            async with asyncio.timeout(60):
                while broker.fetched_memory.held:  # TLS and the sockets take some more, 256 KB, before they stop
                    clock.advance_ms(int(PATIENCE_SECONDS * 1000))
                    await client.call(1, 4, **fetch)
            answer = await client.call(1, 4, **fetch)
            assert len(answer.responses[0].partitions[0].records) > limit - 2 * batch
            for each in (client, *slow):
                each._writer.transport.abort()
            await asyncio.sleep(0.05)

    run(check())


def test_a_log_that_stops_does_not_wait_for_clients_that_do_not_end_tls(authority):
    """The loop was closed under their transports; with warnings as errors, for ever."""
    context = ssl.create_default_context(cafile=str(authority.file))
    with mainstem.embedded(broker=BrokerConfig(**tls(authority))) as log:
        host, _, port = log.bootstrap.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=30)
        secure = context.wrap_socket(plain, server_hostname="localhost")
        secure.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
        assert secure.recv(4)
    secure.close()


def test_a_port_of_a_listener_in_use_names_its_setting(tmp_path):
    async def check() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", free_ports(1)[0]))
            taken.listen()
            config = BrokerConfig(port=0, listeners={"out": ListenerConfig(port=taken.getsockname()[1])})
            with pytest.raises(listeners.AddressInUse, match="is in use") as refused:
                async with running(tmp_path, SystemClock(), config):
                    pass
            assert "port of [broker.listeners.out]" in (refused.value.hint or "")

    asyncio.run(check())


def test_one_address_that_two_listeners_write_in_two_ways_is_in_use(tmp_path):
    """Two sockets may be bound to it until one of them listens; then it was a traceback."""
    port = free_port()
    out = ListenerConfig(host="127.0.0.01", port=port)

    async def check() -> None:
        with pytest.raises(listeners.AddressInUse, match=rf"127\.0\.0\.1:{port} is in use") as refused:
            async with running(tmp_path, SystemClock(), BrokerConfig(port=port, listeners={"out": out})):
                pass
        assert "port of [broker.listeners.out]" in refused.value.hint

    asyncio.run(check())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_every_address_of_ipv6_is_every_address(tmp_path):
    """As with other servers; a client of IPv4 was refused, and has its own name for rights and limits."""

    async def check() -> None:
        config = BrokerConfig(host="::", port=0, advertised_host="127.0.0.1")
        async with running(tmp_path, SystemClock(), config) as broker:
            for address, host in (("127.0.0.1", "/127.0.0.1"), ("::1", "/0:0:0:0:0:0:0:1")):
                client = Client(*await asyncio.open_connection(address, broker.port))
                await client.call(18, 0)
                assert [each.client_host for each in broker.connections] == [host]
                client.close()
                await until(lambda: not broker.connections, "it is gone")

    asyncio.run(check())


@pytest.mark.parametrize(("host", "told"), [("0.0.0.0", True), ("127.0.0.1", False), ("localhost", False)])
def test_a_log_that_anybody_on_the_network_may_use_says_so(tmp_path, host, told, monkeypatch):
    logs = structlog.testing.CapturingLogger()
    monkeypatch.setattr("mainstem.broker.listeners.log", logs)

    async def check() -> None:
        async with running(tmp_path, SystemClock(), BrokerConfig(host=host, port=0)):
            expected = [("anybody_may_connect",), ("nothing_is_encrypted",)] if told else []
            assert [each.args for each in logs.calls] == expected

    asyncio.run(check())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("turns", range(6))
def test_a_client_that_comes_while_the_broker_stops_is_let_go(authority, tmp_path, turns, secure, run):
    """`turns` of the event loop are between its coming and the stop: accepted, but without its protocol, in one."""

    async def check() -> None:
        config = BrokerConfig(**tls(authority)) if secure else BrokerConfig(port=0)
        async with running(tmp_path / "data", SystemClock(), config) as broker:
            client = socket.create_connection(("127.0.0.1", broker.port))
            for _ in range(turns):
                await asyncio.sleep(0)
            await broker.stop()
        assert not broker.connections
        with client, contextlib.suppress(ConnectionResetError):
            client.settimeout(5)
            assert client.recv(1) == b""

    run(check())
    gc.collect()  # a transport that was left open says so now


def test_a_client_that_has_new_keys_made_without_end_is_cut_off(authority, tmp_path):
    """Eight megabytes of KeyUpdate from one client, before it was known, held up all others for four seconds."""
    with mainstem.embedded(broker=BrokerConfig(**tls(authority))) as log:
        port = int(log.bootstrap.rpartition(":")[2])
        assert updates_until_cut_off(port, most=100) == 100, "some are anybody's right"
        assert updates_until_cut_off(port, most=2_000_000) < 2_000_000
        assert updates_until_cut_off(port, most=500_000, data_every=100) < 500_000
        Producer({"bootstrap.servers": log.bootstrap, **of_client(authority)}).list_topics(timeout=10)
