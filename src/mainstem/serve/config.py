"""Settings of serving nodes: a table `[serve.<name>]` for each, with the views that it keeps.

    [serve.answers]
    listen = ["127.0.0.1:9611", "127.0.0.1:9612"]     # two nodes with the same views
    views.planes = { kind = "key-value", topics = "fleet.planes", versions = true }
    views.names = { kind = "search", topics = ["fleet.airports", "fleet.planes"] }
    views.flights = { kind = "sql", topics = "flights_enriched" }

Without the engines, which take long to import.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mainstem.core import is_topic_name
from mainstem.core.address import parse_address
from mainstem.core.config import BadSetting, convert

Kind = Literal["key-value", "search", "sql"]


class ViewConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One view, in `[serve.<node>.views.<name>]`.

    Attributes:
        kind: `key-value` answers with the row of a key, `search` with the rows that fit words, `sql` with those of a
            query.
        topics: what it is made of: one topic of a key-value view, one or more of the others. The output of a job stands
            for that of its current version.
        key: the columns of a key-value view's key; those of the topic unless given.
        versions: whether a key-value view answers as of earlier positions too.
    """

    kind: Kind
    topics: str | list[str]
    key: str | list[str] = []
    versions: bool = False

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("expected the topics that the view is made of, found none")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"topics: expected each once, found {', '.join(self.names)}")
        if self.kind == "key-value" and len(self.names) != 1:
            raise ValueError(f"a key-value view is of one topic, found {len(self.names)}: make a view of each")
        if self.kind != "key-value" and (self.key or self.versions):
            raise ValueError(f"key and versions are for key-value views, this one is of kind {self.kind}")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)


class ServeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[serve.<name>]`: nodes that keep the same views, each a process with indexes of its own.

    Attributes:
        listen: HOST:PORT of the node, or those of several, as a list or with commas between them; port 0 takes a free
            one. There is no authentication yet: keep it on loopback.
        views: by their names.
        snapshot_every_s: how often an index is copied, to be restored from where it is lost; 0: never.
        sql_memory: what the queries of an SQL view may take together; the index of a version before has as much. Each
            is a process, which is ended beyond that and 768 MB.
        sql_spill_bytes: what they may take together on the disk, beside that.
    """

    views: dict[str, ViewConfig]
    listen: str | list[str] = "127.0.0.1:9610"
    snapshot_every_s: Annotated[int, Meta(ge=0)] = 3600
    sql_memory: str = "512MB"
    sql_spill_bytes: Annotated[int, Meta(ge=1 << 20)] = 1 << 30

    def __post_init__(self) -> None:
        if not self.addresses:
            raise ValueError("listen: expected an address, found none")
        for address in self.addresses:
            try:
                parse_address(address, "listen")
            except BadSetting as error:
                raise ValueError(str(error)) from None
        for name in self.views:
            if not is_topic_name(name):  # a part of an address, and a directory's name
                raise ValueError(f"views: expected letters, digits, '.', '_' and '-' in a name, found {name!r}")

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self.listen.replace(" ", "").split(",")) if isinstance(self.listen, str) else tuple(self.listen)


def convert_nodes(tables: Mapping[str, Any], *, where: str) -> dict[str, ServeConfig]:
    """The tables `[serve.<name>]`.

    Raises:
        BadSetting: one is wrong, or two nodes would have one name or one address.
    """
    nodes = {name: convert(table, ServeConfig, where=f"{where}: [serve.{name}]") for name, table in tables.items()}
    addresses: dict[str, str] = {}
    for name, config in nodes.items():
        if not is_topic_name(name):
            raise BadSetting(f"{where}: [serve.{name}]: expected letters, digits, '.', '_' and '-' in a node's name")
        for address in config.addresses:
            other = addresses.setdefault(address, name)
            if (other != name or config.addresses.count(address) > 1) and not address.endswith(":0"):
                raise BadSetting(
                    f"{where}: [serve.{name}]: expected an address of its own for each node, found {address} twice",
                    hint="give each another port",
                )
    return nodes


def node_names(name: str, config: ServeConfig) -> list[str]:
    """The nodes of a table, by the order of their addresses: `answers`, or `answers-1`, `answers-2`, …"""
    count = len(config.addresses)
    return [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]
