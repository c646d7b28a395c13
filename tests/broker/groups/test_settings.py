import asyncio

import msgspec
import pytest

from mainstem.broker.groups.settings import SETTINGS
from mainstem.core import ManualClock
from mainstem.wire.errors import Code, RequestError
from tests.support.broker import CONFIG, crashed, start, stop

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
        for values in ({"x": "1"}, {SESSION: "x"}, {SESSION: "0"}, {SESSION: "5000"}, {HEARTBEAT: "50000"}):
            with pytest.raises(RequestError) as refused:
                settings.check(values)
            assert refused.value.code is Code.invalid_config
        settings.check({SESSION: "5001"})
        await stop(broker)

    told(story)


def test_every_setting_has_its_default_and_bounds_in_the_broker():
    for name, setting in SETTINGS.items():
        assert f"group.{name}" == setting.default.replace("_", ".")
        assert all(hasattr(CONFIG, each) for each in (setting.default, setting.least, setting.most))
