from tests.support.live import live_registry, log_connection, registry_url
from tests.support.postgres import postgres_server

__all__ = ["live_registry", "log_connection", "postgres_server", "registry_url"]
