from tests.support.live import live_registry, log_connection, registry_url

__all__ = ["live_registry", "log_connection", "registry_url"]
