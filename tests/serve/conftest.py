import pytest

from tests.serve.fleet import Fleet
from tests.support.live import live_registry, log_connection, registry_url

__all__ = ["live_registry", "log_connection", "registry_url"]


@pytest.fixture
def fleet(log_connection, live_registry):
    return Fleet(log_connection, live_registry)
