"""Settings of the broker that are changed while it runs: layers, topics that follow, a crash."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from mainstem.broker.dynamic_settings import TOPIC_DEFAULTS, WITHOUT_EFFECT, check, default_of, topic_defaults
from mainstem.broker.server import Broker
from mainstem.core import ManualClock
from mainstem.log import TopicConfig
from mainstem.wire.errors import Code, RequestError
from tests.log.simulated_disk import SimulatedDisk
from tests.support.broker import CONFIG, Client, crashed, partition_of, running, start, stop

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


async def alter(client: Client, broker: str, *changes: tuple[str, int, str | None], only: bool = False) -> Any:
    changed = [{"name": name, "config_operation": operation, "value": value} for name, operation, value in changes]
    asked = {"resource_type": BROKER, "resource_name": broker, "configs": changed}
    (answer,) = (await client.call(44, 1, resources=[asked], validate_only=only)).responses
    return answer


async def told(client: Client, kind: int, name: str, setting: str) -> tuple[str, int, list[tuple[str, str, int]]]:
    """Value, source and synonyms of one setting."""
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": [setting]}
    (answer,) = (await client.call(32, 4, resources=[asked], include_synonyms=True)).results
    (found,) = answer.configs
    return found.value, found.config_source, [(each.name, each.value, each.source) for each in found.synonyms]


async def created(client: Client, name: str, **settings: str) -> None:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    (made,) = (await client.call(19, 7, topics=[topic], timeout=30_000)).topics
    assert made.error_code is Code.none


def retention_of(broker: Broker, topic: str) -> int:
    return partition_of(broker, topic).config.retention_ms


def test_topics_without_a_value_of_their_own_follow_at_once_and_after_a_crash(tmp_path):
    async def check_it() -> None:
        clock = ManualClock()
        broker = await start(tmp_path / "first", clock)
        client = await Client.connect(broker)
        await created(client, "before")
        await created(client, "own", retention_ms="5000")
        await alter(client, "", ("log.retention.ms", SET, "7000"))
        await created(client, "after")
        names = ("before", "after", "own")
        assert [retention_of(broker, each) for each in names] == [7000, 7000, 5000]
        client.close()

        broker = await crashed(broker, tmp_path / "second", clock)
        assert [retention_of(broker, each) for each in names] == [7000, 7000, 5000]
        client = await Client.connect(broker)
        await alter(client, "1", ("log.retention.ms", SET, "8000"))
        assert retention_of(broker, "before") == 8000
        await alter(client, "1", ("log.retention.ms", DELETE, None))
        assert retention_of(broker, "before") == 7000
        await alter(client, "", ("log.retention.ms", DELETE, None))
        assert retention_of(broker, "before") == TopicConfig().retention_ms
        client.close()
        await stop(broker)

    asyncio.run(check_it())


def test_where_a_value_comes_from_is_told_as_kafka_tells_it(tmp_path):
    async def check_it() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            client = await Client.connect(broker)
            await created(client, "own", retention_ms="5000")
            await created(client, "plain")
            await alter(client, "", ("log.retention.ms", SET, "7000"))
            await alter(client, "1", ("log.retention.ms", SET, "8000"))
            layers = [("log.retention.ms", "8000", 2), ("log.retention.ms", "7000", 3)]
            default = str(TopicConfig().retention_ms)
            assert await told(client, TOPIC, "plain", "retention.ms") == ("8000", 2, layers)
            assert await told(client, TOPIC, "own", "retention.ms") == (
                "5000",
                1,
                [("retention.ms", "5000", 1), *layers],
            )
            await alter(client, "", ("log.retention.bytes", SET, "7000"))
            assert await told(client, TOPIC, "plain", "retention.bytes") == (
                "7000",
                3,
                [("log.retention.bytes", "7000", 3), ("log.retention.bytes", "-1", 5)],
            )
            assert await told(client, BROKER, "1", "log.retention.ms") == (
                "8000",
                2,
                [*layers, ("log.retention.ms", default, 5)],
            )
            assert await told(client, BROKER, "", "log.retention.ms") == ("7000", 3, layers[1:])
            client.close()

    asyncio.run(check_it())


def test_what_the_broker_is_started_with_for_its_topics_is_below_what_clients_set(tmp_path):
    async def check_it() -> None:
        clock, disk = ManualClock(), SimulatedDisk(tmp_path)
        config = replace(CONFIG, topic_defaults={"retention.ms": "7000", "cleanup_policy": "compact"})
        broker = await start(tmp_path, clock, config, disk=disk)
        client = await Client.connect(broker)
        await created(client, "plain")
        await created(client, "own", retention_ms="5000")
        assert [retention_of(broker, each) for each in ("plain", "own")] == [7000, 5000]
        assert partition_of(broker, "plain").config.cleanup_policy == "compact"
        (offsets,) = {each.config.cleanup_policy for each in broker.topics.by_name("__consumer_offsets").logs}
        assert (offsets, broker.topics.by_name("__transaction_state").config.get("retention.ms")) == ("compact", None)
        layers = [("log.retention.ms", "7000", 4)]
        default = ("log.retention.ms", str(TopicConfig().retention_ms), 5)
        assert await told(client, TOPIC, "plain", "retention.ms") == ("7000", 4, layers)
        assert await told(client, BROKER, "1", "log.retention.ms") == ("7000", 4, [*layers, default])
        await alter(client, "", ("log.retention.ms", SET, "8000"))
        assert retention_of(broker, "plain") == 8000
        await alter(client, "", ("log.retention.ms", DELETE, None))
        assert retention_of(broker, "plain") == 7000
        client.close()
        await stop(broker)

        broker = await start(tmp_path, clock, disk=disk)  # without them
        assert [retention_of(broker, each) for each in ("plain", "own")] == [TopicConfig().retention_ms, 5000]
        await stop(broker)

    asyncio.run(check_it())


def test_replicas_in_sync_are_set_for_all_brokers_always_and_for_one_never(tmp_path):
    """As in Apache Kafka 4.3.0, where confluent-kafka-python's tests look for it among what is no default."""

    async def check_it() -> None:
        clock = ManualClock()
        broker = await start(tmp_path / "first", clock)
        client = await Client.connect(broker)
        await created(client, "plain")
        name = "min.insync.replicas"
        assert await told(client, TOPIC, "plain", name) == ("1", 3, [(name, "1", 3), (name, "1", 5)])
        assert await told(client, BROKER, "1", name) == ("1", 3, [(name, "1", 3), (name, "1", 5)])
        assert await told(client, BROKER, "", name) == ("1", 3, [(name, "1", 3)])
        assert (await alter(client, "1", (name, SET, "2"))).error_code is Code.invalid_config
        assert (await alter(client, "", (name, DELETE, None))).error_code is Code.invalid_config
        assert (await alter(client, "", (name, SET, "2"))).error_code is Code.none
        assert (await alter(client, "1", ("log.retention.ms", SET, "7000"))).error_code is Code.none
        client.close()

        broker = await crashed(broker, tmp_path / "second", clock)
        client = await Client.connect(broker)
        assert (await told(client, TOPIC, "plain", name))[:2] == ("2", 3)
        client.close()
        await stop(broker)

    asyncio.run(check_it())


def test_what_has_no_effect_is_kept_and_shown(tmp_path):
    async def check_it() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            client = await Client.connect(broker)
            assert (await alter(client, "1", ("background.threads", SET, "9"), only=True)).error_code is Code.none
            assert (await told(client, BROKER, "1", "background.threads"))[:2] == ("10", 5)
            assert (await alter(client, "1", ("background.threads", SET, "9"))).error_code is Code.none
            assert (await told(client, BROKER, "1", "background.threads"))[:2] == ("9", 2)
            await alter(client, "1", ("log.cleanup.policy", APPEND, "compact"))
            assert (await told(client, BROKER, "1", "log.cleanup.policy"))[0] == "delete,compact"
            await alter(client, "1", ("log.cleanup.policy", SUBTRACT, "compact"))
            assert (await told(client, BROKER, "1", "log.cleanup.policy"))[0] == "delete"
            client.close()

    asyncio.run(check_it())


def test_the_coordinators_topics_keep_their_settings(tmp_path):
    async def check_it() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            client = await Client.connect(broker)
            await alter(client, "", ("message.max.bytes", SET, "1"), ("log.retention.ms", SET, "1"))
            internal = [topic for topic in broker.topics if topic.internal]
            assert internal
            for topic in internal:
                settings = topic.logs[0].config
                assert (settings.max_message_bytes, settings.retention_ms) == (
                    TopicConfig.from_kafka(topic.config).max_message_bytes,
                    TopicConfig().retention_ms,
                )
            client.close()

    asyncio.run(check_it())


@pytest.mark.parametrize(
    ("broker", "name", "value", "said"),
    [
        ("77", "background.threads", "9", "broker '77', the only one is 1"),
        ("1", "num.partitions", "9", "Cannot update these configs dynamically: [num.partitions]"),
        ("1", "background.thread", "9", "background.threads"),
        ("1", "background.threads", "x", "background.threads: expected an integer, found 'x'"),
        ("1", "background.threads", "0", "expected 1 or more, found 0"),
        ("1", "sasl.login.refresh.window.factor", "nan", "expected 0 or more, found nan"),
        ("", "log.cleanup.policy", "keep", "cleanup.policy"),
    ],
)
def test_what_is_refused(tmp_path, broker, name, value, said):
    async def check_it() -> None:
        async with running(tmp_path, ManualClock()) as one:
            client = await Client.connect(one)
            answer = await alter(client, broker, (name, SET, value))
            assert answer.error_code is Code.invalid_request
            assert said in answer.error_message
            assert one.dynamic.of("1") == {}
            client.close()

    asyncio.run(check_it())


def test_every_setting_has_a_default_that_it_takes():
    everything = {name: default_of(name) for name in (*TOPIC_DEFAULTS, *WITHOUT_EFFECT)}
    check(everything)
    assert topic_defaults(everything) == TopicConfig()
    with pytest.raises(RequestError):
        topic_defaults({"log.retention.ms": "soon"})


def test_defaults_that_no_topic_could_have_are_refused(tmp_path):
    """A topic without settings of its own could not be made any more."""

    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            client = await Client.connect(broker)
            lag = "log.cleaner.min.compaction.lag.ms", SET, "10"
            assert (
                await alter(client, "", lag, ("log.cleaner.max.compaction.lag.ms", SET, "5"))
            ).error_code != Code.none
            assert (await alter(client, "", ("log.retention.ms", SET, "1e3"))).error_code != Code.none
            assert (await alter(client, "", lag)).error_code == Code.none
            await created(client, "t")
            client.close()

    asyncio.run(check())
