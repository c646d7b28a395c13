"""The settings of a PostgreSQL source; apart from it, so that reading settings needs no driver."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class PostgresSourceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="postgres"):
    """Settings of `[sources.<name>]` with `type = "postgres"`.

    Attributes:
        url: `postgresql://user:password@host:port/database`.
        tables: `table` in schema public, or `schema.table`; empty: every table of schema public at the first start.
        slot: replication slot; `mainstem_<source>` unless set.
        publication: `mainstem_<source>` unless set; created where it is missing.
        partitions: of each table's topic. Order is kept per key; with one partition, per table.
        as_text: `table.column`s that are kept as their text.
        on_gap: what to do when changes are missing between log and slot, or in the log.
        commit_interval_ms: how long source transactions are gathered for one Kafka transaction.
        max_transaction_rows: a larger source transaction is committed in parts.
        heartbeat_ms: how often an idle source moves its position on, so that the slot does not hold WAL.
        heartbeat_wal_bytes: only when the WAL has grown by so much meanwhile.
    """

    url: str
    tables: tuple[str, ...] = ()
    slot: str = ""
    publication: str = ""
    partitions: Annotated[int, Meta(ge=1)] = 1
    as_text: tuple[str, ...] = ()
    on_gap: Literal["refuse", "snapshot"] = "refuse"
    commit_interval_ms: Annotated[int, Meta(ge=0)] = 100
    max_transaction_rows: Annotated[int, Meta(ge=1)] = 500_000
    heartbeat_ms: Annotated[int, Meta(ge=1)] = 10_000
    heartbeat_wal_bytes: Annotated[int, Meta(ge=0)] = 1_048_576

    def __repr__(self) -> str:
        return f"{type(self).__name__}(url=…)"  # it holds a password, and a traceback or a log may show this
