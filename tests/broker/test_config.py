"""The broker's settings: safe defaults, and no unknown names."""

import asyncio

import psutil
import pytest

from mainstem.broker.config import BrokerConfig
from mainstem.core import SystemClock
from mainstem.core.config import BadSetting, convert
from tests.support.broker import running


def test_unless_told_otherwise_nobody_else_on_the_network_can_connect(tmp_path):
    async def check() -> None:
        async with running(tmp_path, SystemClock(), BrokerConfig(port=0)) as broker:
            listening = [each.laddr for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
            assert [ip for ip, port in listening if port == broker.port] == ["127.0.0.1"]

    asyncio.run(check())


def test_g10_groups_do_not_wait_for_their_first_rebalance():
    """Kafka's default makes every first consumer wait for 3 s."""
    assert BrokerConfig().group_initial_rebalance_delay_ms == 0


@pytest.mark.parametrize("wrong", [{"prot": 1}, {"port": 65_536}, {"port": -1}, {"num_partitions": 0}])
def test_a_setting_that_is_unknown_or_out_of_range_is_named(wrong):
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        convert(wrong, BrokerConfig, where="mainstem.toml")
