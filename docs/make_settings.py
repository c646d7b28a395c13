"""Write docs/settings.md from the structs that check the settings: `python docs/make_settings.py`.
A test holds both together.
"""

import re
import types
import typing
from pathlib import Path
from typing import Any

import msgspec

from mainstem.broker.config import BrokerConfig, ListenerConfig
from mainstem.client.connection import Security
from mainstem.connect.gateway_config import CollectorConfig, GatewayConfig
from mainstem.connect.sinks.delta import LakehouseConfig
from mainstem.connect.sinks.postgres_config import PostgresReplicaConfig
from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from mainstem.core.documented import documented
from mainstem.log import LogConfig
from mainstem.log.config import TopicConfig as KafkaTopicConfig
from mainstem.process.project_config import JobConfig, ProjectConfig, TopicConfig
from mainstem.process.session import ApplicationConfig, SparkConfig
from mainstem.process.splice import SpliceConfig
from mainstem.serve.config import ServeConfig, ViewConfig

TARGET = Path(__file__).with_name("settings.md")

TABLES: list[tuple[str, type[msgspec.Struct]]] = [
    ("[project]", ProjectConfig),
    ("[topics.NAME]", TopicConfig),
    ("[jobs.NAME]", JobConfig),
    ('[sources.NAME] with type = "postgres"', PostgresSourceConfig),
    ('[sources.NAME] with type = "file"', FileSourceConfig),
    ('[sinks.NAME] with type = "delta"', LakehouseConfig),
    ('[sinks.NAME] with type = "postgres"', PostgresReplicaConfig),
    ("[gateway]", GatewayConfig),
    ("[gateway.collector]", CollectorConfig),
    ("[serve.NAME]", ServeConfig),
    ("[serve.NAME.views.VIEW]", ViewConfig),
    ("[splices.NAME]", SpliceConfig),
    ("[spark]", SparkConfig),
    ("[spark.applications.NAME]", ApplicationConfig),
    ("[broker]", BrokerConfig),
    ("[broker.listeners.NAME]", ListenerConfig),
    ("[log]", LogConfig),
    ("[security]", Security),
]

HEAD = """# Settings

Every table of a project's `mainstem.toml`. A variable `MAINSTEM_<TABLE>__<SETTING>` in the environment overrides a setting:
`MAINSTEM_BROKER__PORT=9093`, `MAINSTEM_SOURCES__SHOP__URL=postgresql://…` (deeper tables have more double underscores).
Capitals do not count, and what the name of a variable cannot hold is an underscore there: `MAINSTEM_SOURCES__WEB_SHOP__URL` is for `[sources.Web-Shop]`.
A setting that is unknown or of the wrong type stops the start with one line that names it and its file. A relative path
means one below the project's directory. `docs/projects.md` shows a table of each kind.

This page is written by `docs/make_settings.py`.
"""


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for table, kind in TABLES:
        about, meanings = documented(kind)
        parts.append(f"## {table}\n\n{about}\n\n| setting | type | default | meaning |\n|---|---|---|---|")
        if of_type := re.match(r'\[(\w+)s\.NAME\] with type = "(\w+)"', table):
            parts[-1] += f"\n| `type` | `{of_type[2]}` | required | of which kind the {of_type[1]} is. |"
        parts[-1] += "".join(f"\n| `{n}` | {t} | {d} | {cell(meanings[n])} |" for n, t, d in rows(kind)) + "\n"
    text = (
        "A topic's own settings, in `[topics.NAME.config]` and for `mainstem topic create --config`, with Kafka's names. The "
        "defaults are Kafka's, except that `flush.messages` is 1: an acknowledged record is on the disk; `plan` and `up` name a topic where it is not. They hold for topics that anybody else creates. A topic of a project is kept for ever "
        "(`retention.ms` and `retention.bytes` are -1), since a week's retention would delete last year's events on arrival; one "
        "that is a changelog is compacted instead, seven days later (`min.compaction.lag.ms`)."
    )
    _, meanings = documented(KafkaTopicConfig)
    parts.append(f"## Kafka's topic settings\n\n{text}\n\n| setting | type | default | meaning |\n|---|---|---|---|")
    parts[-1] += "".join(
        f"\n| `{n.replace('_', '.')}` | {t} | {d} | {cell(meanings[n])} |" for n, t, d in rows(KafkaTopicConfig)
    )
    parts[-1] += "\n"
    return "\n".join(parts)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def rows(kind: type[msgspec.Struct]) -> list[tuple[str, str, str]]:
    """Name, type and default of every field."""
    return [(field.name, type_text(field.type), default_text(field)) for field in msgspec.structs.fields(kind)]


def type_text(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" if value else "empty" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_text(each) for each in arguments if each is not type(None))
    if origin in (list, tuple):
        return f"list of {type_text(arguments[0])}"
    if origin is not None:
        return "table"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "table"
    return {str: "text", int: "integer", float: "number", bool: "true or false"}.get(kind, str(kind))


def default_text(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if isinstance(value, msgspec.Struct) or value in ({}, (), [], None, ""):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    TARGET.write_text(render())
