import pytest

from mainstem.connect.gateway_config import GatewayConfig
from mainstem.core.config import BadSetting, convert


def test_settings_are_checked():
    config = convert({"listen": "127.0.0.1:0", "collector": {"batch_events": 5}}, GatewayConfig, where="[gateway]")
    assert config.collector.batch_events == 5
    with pytest.raises(BadSetting, match="unknown field `batch`"):
        convert({"collector": {"batch": 5}}, GatewayConfig, where="[gateway]")
