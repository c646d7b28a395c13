"""The broker's settings: safe defaults, and no unknown names."""

import pytest

from mainstem.broker.config import BrokerConfig
from mainstem.core.config import BadSetting, convert


def test_the_default_is_loopback():
    assert BrokerConfig().host == "127.0.0.1"


def test_g10_groups_do_not_wait_for_their_first_rebalance():
    assert BrokerConfig().group_initial_rebalance_delay_ms == 0


def test_an_unknown_setting_is_named():
    with pytest.raises(BadSetting, match="prot"):
        convert({"prot": 1}, BrokerConfig, where="mainstem.toml")
