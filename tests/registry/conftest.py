from tests.support.live import log_connection, registry_url

__all__ = ["log_connection", "registry_url"]
