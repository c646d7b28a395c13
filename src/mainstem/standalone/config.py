"""The settings of a whole node: every table of `mainstem.toml`, each checked by the room that it belongs to."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from mainstem.broker.config import BrokerConfig
from mainstem.client.connection import Security
from mainstem.connect.gateway_config import GatewayConfig
from mainstem.connect.sinks.delta import LakehouseConfig
from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.connect.worker import SinkConfig, SourceConfig, convert_sink, convert_source
from mainstem.core.config import (
    PROJECT_FILE,
    BadSetting,
    check_type,
    convert,
    named_tables,
    overlay_environment,
    read_toml,
    settings_from,
)
from mainstem.log import InvalidTopicConfig, LogConfig, TopicConfig
from mainstem.process import Project
from mainstem.process.session import SparkConfig
from mainstem.process.splice import SpliceConfig
from mainstem.serve.config import ServeConfig, convert_nodes
from mainstem.standalone.state import LAYOUT
from mainstem.standalone.tables import check_tables

Config = TypeVar("Config", bound=msgspec.Struct)


class NodeConfig(msgspec.Struct, frozen=True):
    """Everything but the jobs and their topics, which `mainstem.process.load_project` reads. Paths are absolute."""

    broker: BrokerConfig
    log: LogConfig
    gateway: GatewayConfig
    security: Security
    spark: SparkConfig
    sources: dict[str, SourceConfig]
    connect_sinks: dict[str, SinkConfig]
    lakehouses: dict[str, LakehouseConfig]
    serve: dict[str, ServeConfig] = {}
    splices: dict[str, SpliceConfig] = {}

    @property
    def connects(self) -> bool:
        """Whether there is work for a connect worker."""
        return bool(self.sources or self.connect_sinks or self.splices)


def load_config(path: Path, environment: Mapping[str, str] = os.environ) -> NodeConfig:
    """Read and check the settings of the project at `path`.

    Raises:
        BadSetting: the message names the file or the variable, and the setting.
    """
    return settings_from(environment, lambda variables: _load(path, variables), where=str(path / PROJECT_FILE))


def _load(path: Path, environment: Mapping[str, str]) -> NodeConfig:
    where, directory = path / PROJECT_FILE, path.resolve()
    file = read_toml(where)
    tree = overlay_environment(file, environment)
    check_tables(tree, file, environment, where=str(where))
    sources, sinks = (named_tables(tree, table, where=where) for table in ("sources", "sinks"))
    gateway = convert(tree.get("gateway", {}), GatewayConfig, where=f"{where}: [gateway]")
    if gateway.collector.name in sources:  # both would write under one transactional id, and fence each other
        raise BadSetting(
            f"{where}: [sources.{gateway.collector.name}]: the collector has that name",
            hint="give the source another one, or the collector: [gateway.collector] name",
        )
    for name, sink in sinks.items():
        check_type(sink, ("delta", "postgres"), where=f"{where}: [sinks.{name}]")
    deltas = {
        name: {k: v for k, v in sink.items() if k != "type"} for name, sink in sinks.items() if sink["type"] == "delta"
    }
    others = {name: sink for name, sink in sinks.items() if name not in deltas}
    made = {n: convert_source(s, where=f"{where}: [sources.{n}]") for n, s in sources.items()}
    _check_ends(made, where)
    nodes = convert_nodes(named_tables(tree, "serve", where=where), where=str(where))
    splices = {
        name: convert(each, SpliceConfig, where=f"{where}: [splices.{name}]")
        for name, each in named_tables(tree, "splices", where=where).items()
    }
    _check_views(nodes, splices, where)
    return NodeConfig(
        broker=convert(tree.get("broker", {}), BrokerConfig, where=f"{where}: [broker]"),
        log=convert(tree.get("log", {}), LogConfig, where=f"{where}: [log]"),
        gateway=gateway,
        security=convert(tree.get("security", {}), Security, where=f"{where}: [security]").below(directory),
        spark=convert(tree.get("spark", {}), SparkConfig, where=f"{where}: [spark]"),
        sources={name: _below(each, directory) for name, each in made.items()},
        connect_sinks={n: convert_sink(s, where=f"{where}: [sinks.{n}]") for n, s in others.items()},
        lakehouses={
            n: _below(convert(s, LakehouseConfig, where=f"{where}: [sinks.{n}]"), directory) for n, s in deltas.items()
        },
        serve=nodes,
        splices=splices,
    )


def _check_ends(sources: Mapping[str, SourceConfig], where: Path) -> None:
    """Raise where the end of one file would be stated for a topic that another one goes on writing to."""
    owners: dict[str, tuple[str, bool]] = {}
    for name, source in sources.items():
        if not isinstance(source, FileSourceConfig):
            continue
        other, states_end = owners.setdefault(source.topic, (name, source.end_marker))
        if other != name and (states_end or source.end_marker):
            raise BadSetting(
                f"{where}: [sources.{other}] and [sources.{name}] write to the same topic, {source.topic}: the end of one "
                "file would be stated for both",
                hint="give each a `topic` of its own, or set end_marker = false for both",
            )


def _check_views(nodes: Mapping[str, ServeConfig], splices: Mapping[str, SpliceConfig], where: Path) -> None:
    """Raise where a view is of a splice: what its rows were made of is not known, so a token would mean nothing."""
    for node, config in nodes.items():
        for view, of in config.views.items():
            for name in sorted(set(of.names) & splices.keys()):
                raise BadSetting(
                    f"{where}: [serve.{node}]: view {view}: expected topics of sources, events or jobs, found the splice {name}",
                    hint=f"name the topic that job {splices[name].job} writes: views follow its current version by themselves",
                )


def check_topics(project: Project, path: Path) -> None:
    """Check what the project at `path` says of its topics as our own log does; a Kafka has its own settings.

    Raises:
        BadSetting: the message names the file, the topic and the setting.
    """
    for name, spec in project.topics.items():
        try:
            TopicConfig.from_kafka(spec.config)
        except InvalidTopicConfig as error:
            raise BadSetting(f"{path / PROJECT_FILE}: [topics.{name}]: {error}", hint=error.hint) from error


def check_applications(project: Project, config: NodeConfig, path: Path) -> None:
    """Refuse the settings of an application that no job of the project at `path` runs in: they would mean nothing.

    Raises:
        BadSetting: the message names the file and the table.
    """
    named = {each.application for each in project.job_configs.values()} - {""}
    for name in config.spark.applications.keys() - named:
        raise BadSetting(
            f"{path / PROJECT_FILE}: [spark.applications.{name}]: no job has application = {name!r}",
            hint=f"jobs name {', '.join(sorted(named)) or 'none'}; set it under [jobs.NAME]",
        )


def table_directories(config: NodeConfig, data: Path) -> dict[str, Path]:
    """Where each lakehouse keeps its tables, by its name: `path`, else a directory of the data directory.

    Raises:
        BadSetting: two keep them in the same place, and would both append the same records.
    """
    places = {name: Path(each.path or data / LAYOUT["tables"]).absolute() for name, each in config.lakehouses.items()}
    owners: dict[Path, str] = {}
    for name, place in places.items():
        other = owners.setdefault(place.resolve(), name)
        if other != name:
            raise BadSetting(
                f"{PROJECT_FILE}: [sinks.{other}] and [sinks.{name}] keep their tables in the same directory, {place}",
                hint="give each a `path` of its own",
            )
    return places


def _below(config: Config, directory: Path) -> Config:
    """The settings with a relative `path` below the project's directory: where a command is called does not matter."""
    path = getattr(config, "path", "")
    return msgspec.structs.replace(config, path=str(directory / path)) if path else config
