"""The settings of a whole node: every table of `mainstem.toml`, each checked by the room that it belongs to."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainstem.broker.config import BrokerConfig
from mainstem.client.connection import Security
from mainstem.connect.gateway import GatewayConfig
from mainstem.connect.sinks.delta import LakehouseConfig
from mainstem.connect.worker import SinkConfig, SourceConfig, convert_sink, convert_source
from mainstem.core.config import BadSetting, convert, overlay_environment, read_toml
from mainstem.log import LogConfig
from mainstem.process.session import SparkConfig

FILE = "mainstem.toml"
TABLES = ("project", "topics", "jobs", "spark", "log", "broker", "gateway", "security", "sources", "sinks")


class NodeConfig(msgspec.Struct, frozen=True):
    """Everything but the jobs and their topics, which `mainstem.process.load_project` reads."""

    broker: BrokerConfig
    log: LogConfig
    gateway: GatewayConfig
    security: Security
    spark: SparkConfig
    sources: dict[str, SourceConfig]
    connect_sinks: dict[str, SinkConfig]
    lakehouses: dict[str, LakehouseConfig]


def load_config(path: Path, environment: Mapping[str, str] = os.environ) -> NodeConfig:
    """Read and check the settings of the project at `path`.

    Raises:
        BadSetting: the message names the file and the setting.
    """
    where = path / FILE
    tree = overlay_environment(read_toml(where), environment)
    for table in tree:
        if table not in TABLES:
            close = difflib.get_close_matches(table, TABLES, 1)
            hint = f"did you mean [{close[0]}]?" if close else f"the tables are {', '.join(TABLES)}"
            raise BadSetting(f"{where}: unknown table [{table}]", hint=hint)
    sinks: dict[str, Any] = tree.get("sinks", {})
    deltas = {name: {k: v for k, v in sink.items() if k != "type"} for name, sink in sinks.items() if _is_delta(sink)}
    others = {name: sink for name, sink in sinks.items() if not _is_delta(sink)}
    return NodeConfig(
        broker=convert(tree.get("broker", {}), BrokerConfig, where=f"{where}: [broker]"),
        log=convert(tree.get("log", {}), LogConfig, where=f"{where}: [log]"),
        gateway=convert(tree.get("gateway", {}), GatewayConfig, where=f"{where}: [gateway]"),
        security=convert(tree.get("security", {}), Security, where=f"{where}: [security]"),
        spark=convert(tree.get("spark", {}), SparkConfig, where=f"{where}: [spark]"),
        sources={n: convert_source(s, where=f"{where}: [sources.{n}]") for n, s in tree.get("sources", {}).items()},
        connect_sinks={n: convert_sink(s, where=f"{where}: [sinks.{n}]") for n, s in others.items()},
        lakehouses={n: convert(s, LakehouseConfig, where=f"{where}: [sinks.{n}]") for n, s in deltas.items()},
    )


def _is_delta(sink: Any) -> bool:
    return isinstance(sink, Mapping) and sink.get("type") == "delta"
