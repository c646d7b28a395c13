"""The settings of a PostgreSQL replica; apart from it, so that reading settings needs no driver."""

from typing import Annotated

import msgspec
from msgspec import Meta


class PostgresReplicaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="postgres"):
    """Settings of `[sinks.<name>]` with `type = "postgres"`.

    Attributes:
        url: the database to write to.
        source: name of the source whose tables are replicated.
        schema: where tables of the source's schema public go; other schemas keep their name.
        commit_interval_ms: how long source transactions may share a target transaction.
        report_interval_ms: how often the audit hears from it.
    """

    url: str
    source: str
    schema: Annotated[str, Meta(min_length=1)] = "public"
    commit_interval_ms: Annotated[int, Meta(ge=0)] = 100
    report_interval_ms: Annotated[int, Meta(ge=0)] = 1_000

    def __repr__(self) -> str:
        return f"{type(self).__name__}(url=…)"  # it holds a password, and a traceback or a log may show this
