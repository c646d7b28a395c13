from tests.support.live import live_registry, log_connection, registry_url
from tests.support.postgres import pipeline, pipeline_log, postgres_server

__all__ = ["live_registry", "log_connection", "pipeline", "pipeline_log", "postgres_server", "registry_url"]
