import asyncio

import msgspec
import pytest

from mainstem.broker.groups.config import ConsumerGroupConfig, ShareGroupConfig, StreamsGroupConfig
from mainstem.broker.groups.settings import SETTINGS, Number, read_offset_reset
from mainstem.core import ManualClock
from mainstem.wire.errors import Code, RequestError
from tests.support.broker import CONFIG, crashed, running, start, stop

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def told(story):
    asyncio.run(story())


async def put(settings, group, **values):
    names = {"session": SESSION, "heartbeat": HEARTBEAT}
    await settings.change(group, lambda present: {**present, **{names[name]: text for name, text in values.items()}})


def test_settings_are_in_effect_at_once_and_survive_a_crash(tmp_path):
    async def story():
        clock = ManualClock()
        broker = await start(tmp_path / "a", clock)
        settings = broker.groups.settings
        assert settings.consumer("g").session_timeout_ms == 45_000
        await put(settings, "g", session="50000")
        await put(settings, "g", heartbeat="6000")
        await put(settings, "gone", heartbeat="6000")
        await settings.change("gone", lambda _: {})
        assert settings.consumer("g").session_timeout_ms == 50_000
        assert settings.consumer("h").session_timeout_ms == 45_000
        broker = await crashed(broker, tmp_path / "b", clock)
        settings = broker.groups.settings
        found = settings.consumer("g")
        assert (found.session_timeout_ms, found.heartbeat_interval_ms) == (50_000, 6_000)
        assert settings.overrides("gone") == {}
        assert broker.groups.consumer.settings("g") is found
        await stop(broker)

    told(story)


def test_a_value_that_was_set_under_wider_bounds_counts_as_the_nearest(tmp_path):
    async def story():
        clock = ManualClock()
        broker = await start(tmp_path, clock)
        await put(broker.groups.settings, "g", session="60000")
        await stop(broker)
        config = msgspec.structs.replace(CONFIG, group_consumer_max_session_timeout_ms=46_000)
        broker = await start(tmp_path, clock, config)
        assert broker.groups.settings.consumer("g").session_timeout_ms == 46_000
        await stop(broker)

    told(story)


def test_what_a_group_may_not_have(tmp_path):
    async def story():
        config = msgspec.structs.replace(
            CONFIG, group_consumer_min_session_timeout_ms=1, group_consumer_max_heartbeat_interval_ms=100_000
        )
        broker = await start(tmp_path, ManualClock(), config)
        settings = broker.groups.settings
        offload = {"consumer.assignor.offload.enable": "true"}
        for values in (offload, {"x": "1"}, {SESSION: "x"}, {SESSION: "0"}, {SESSION: "5000"}, {HEARTBEAT: "50000"}):
            with pytest.raises(RequestError) as refused:
                settings.check(values)
            assert refused.value.code is Code.invalid_config
        settings.check({SESSION: "5001"})
        await stop(broker)

    told(story)


def test_every_setting_has_its_default_and_bounds_in_the_broker():
    for name, setting in SETTINGS.items():
        if isinstance(setting, Number):
            assert f"group.{name}" == setting.above.replace("_", ".")
            bounds = (each for each in (setting.least, setting.most) if isinstance(each, str))
            assert all(hasattr(CONFIG, each) for each in (setting.above, *bounds))


def test_groups_without_settings_have_the_defaults(tmp_path):
    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            assert broker.groups.settings.share("g") == ShareGroupConfig()
            assert broker.groups.settings.consumer("g") == ConsumerGroupConfig()

    told(story)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("latest", "latest"),
        ("earliest", "earliest"),
        ("by_duration:PT0S", 0),
        ("by_duration:PT1H", 3_600_000),
        ("by_duration:pt1.5s", 1_500),
        ("by_duration:P1DT2H3M4S", 93_784_000),
        ("by_duration:P1D", 86_400_000),
    ],
)
def test_where_a_share_group_begins(text, value):
    assert read_offset_reset(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "LATEST", "none", "by_duration:", "by_duration:x", "by_duration:P", "by_duration:PT", "by_duration:P1DT"),
        *("by_duration:-PT1H", "by_duration:PT-1H", "by_duration:P1M", "BY_DURATION:PT1H", "xby_duration:PT1H"),
    ],
)
def test_where_no_share_group_begins(text):
    """As Apache Kafka 4.3.0 has it, but that a duration may not have negative parts."""
    with pytest.raises(ValueError):
        read_offset_reset(text)


def test_settings_of_a_share_group(tmp_path):
    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            settings = broker.groups.settings
            values = {
                "share.auto.offset.reset": "by_duration:PT1M",
                "share.isolation.level": "read_committed",
                "share.renew.acknowledge.enable": "FALSE",
                "share.record.lock.duration.ms": "15000",
                "share.delivery.count.limit": "10",
                "share.partition.max.record.locks": "100",
            }
            await settings.change("g", lambda _: values)
            found = settings.share("g")
            assert (found.auto_offset_reset, found.isolation_level) == (60_000, "read_committed")
            assert (found.renew_acknowledge_enable, found.record_lock_duration_ms) == (False, 15_000)
            assert (found.delivery_count_limit, found.partition_max_record_locks) == (10, 100)
            assert settings.consumer("g") == ConsumerGroupConfig()
            for name, text in (
                ("share.auto.offset.reset", "none"),
                ("share.isolation.level", "READ_COMMITTED"),
                ("share.renew.acknowledge.enable", "x"),
                ("share.delivery.count.limit", "11"),
                ("share.record.lock.duration.ms", "60001"),
                ("share.session.timeout.ms", "44999"),
            ):
                with pytest.raises(RequestError) as refused:
                    settings.check({name: text})
                assert refused.value.code is Code.invalid_config

    told(story)


def test_settings_of_a_streams_group(tmp_path):
    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            settings = broker.groups.settings
            assert settings.streams("g") == StreamsGroupConfig()
            values = {
                "streams.session.timeout.ms": "50000",
                "streams.heartbeat.interval.ms": "6000",
                "streams.num.standby.replicas": "2",
                "streams.initial.rebalance.delay.ms": "3000",
                "streams.assignment.interval.ms": "15000",
            }
            await settings.change("g", lambda _: values)
            assert settings.streams("g") == StreamsGroupConfig(50_000, 6_000, 15_000, 3_000, 2)
            assert settings.streams("h") == StreamsGroupConfig()
            for name, text in (
                ("streams.num.standby.replicas", "3"),
                ("streams.num.standby.replicas", "-1"),
                ("streams.initial.rebalance.delay.ms", "-1"),
                ("streams.assignment.interval.ms", "15001"),
                ("streams.session.timeout.ms", "60001"),
            ):
                with pytest.raises(RequestError) as refused:
                    settings.check({name: text})
                assert refused.value.code is Code.invalid_config
                assert f"{name}: expected " in str(refused.value)

    told(story)


@pytest.mark.parametrize("duration", ["PT" + "9" * 400 + "S", "P" + "9" * 20 + "D", "PT" + "9" * 30 + "S"])
def test_a_duration_that_no_long_has_room_for_is_none(duration):
    with pytest.raises(ValueError, match="by_duration"):
        read_offset_reset(f"by_duration:{duration}")


@pytest.mark.parametrize("text", ["45_000", "4.5e4", "0x10", "", "9" * 30])
def test_a_number_is_written_as_kafka_reads_it(tmp_path, text):
    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            with pytest.raises(RequestError) as refused:
                await put(broker.groups.settings, "g", session=text)
            assert refused.value.code is Code.invalid_config
            await put(broker.groups.settings, "g", session=" 50000 ")
            assert broker.groups.settings.consumer("g").session_timeout_ms == 50_000

    told(story)
