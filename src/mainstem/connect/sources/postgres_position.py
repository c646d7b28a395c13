"""Where a PostgreSQL source is, and whether log and database still fit together.

The position is written into the log in the transaction of the rows; the slot is confirmed after that. So what the slot
has confirmed never lies beyond the position, and any other finding means that something else moved one of them:

    confirmed <= position <= end of the database's WAL      go on: the server sends what follows the position
    no slot, or its WAL is gone                             changes after the position cannot be had any more
    confirmed > position                                    the changes between them were confirmed, but not to this log
    position > end of WAL                                   the database was restored to an older state
    another system identifier                               another database
    a topic is gone, or has another id                      rows that have not changed since went with it
"""

from typing import Literal

import msgspec

from mainstem.connect.sources.postgres_pgoutput import format_lsn
from mainstem.core import CorruptData, UserError
from mainstem.core.prepared import prepared


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much of a source transaction is in the log that was too large for one Kafka transaction."""

    commit_lsn: int
    changes: int  # the server's messages that are done: it sends the same ones in the same order again
    total_order: int
    counts: dict[str, int] = {}


class SourcePosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a source keeps in `__mainstem.sources`.

    Attributes:
        state: `snapshot` is written before the slot is created: what is found later in that state starts anew.
        system: the database cluster's identifier; it is a number too large for JSON's readers, hence text.
        lsn: every transaction that ended at or before this byte of the WAL is in the log.
        commit_lsn: of the last transaction in the log; the `position` of its records.
        tables: `schema.table`, as the topics are called.
        oids: of `tables`, in their order: a table that is renamed keeps its oid. Empty in older positions.
        part: of the transaction that follows.
        topics: the ids of the source's topics, by their names. Empty in older positions.
    """

    state: Literal["snapshot", "streaming"]
    system: str
    database: str
    slot: str
    lsn: int = 0
    commit_lsn: int = 0
    tables: tuple[str, ...] = ()
    oids: tuple[int, ...] = ()
    part: Part | None = None
    topics: dict[str, str] = {}


class Slot(msgspec.Struct, frozen=True):
    """A row of pg_replication_slots."""

    plugin: str
    database: str
    active_pid: int | None
    confirmed_lsn: int
    wal_status: str  # reserved, extended, unreserved, lost


class Server(msgspec.Struct, frozen=True):
    """The cluster and database at the other end."""

    system: str
    database: str
    wal_end: int


class Snapshot(msgspec.Struct, frozen=True):
    """Start with a snapshot; drop the slot of an attempt that did not finish."""

    drop_slot: bool


class Resume(msgspec.Struct, frozen=True):
    """Stream what follows the position."""

    position: SourcePosition


class SlotExists(UserError):
    """A slot of the wanted name exists, but the log knows nothing of it."""


class PositionMismatch(UserError):
    """Log and database do not fit together any more: going on would lose changes in silence."""


def decode_position(source: str, value: object) -> SourcePosition:
    try:
        return msgspec.convert(value, prepared(SourcePosition))
    except msgspec.ValidationError as error:
        raise CorruptData(f"source {source}: its position in the log: {error}") from error


def plan_start(
    source: str,
    wanted_slot: str,
    position: SourcePosition | None,
    slot: Slot | None,
    server: Server,
    *,
    snapshot_on_gap: bool,
) -> Snapshot | Resume:
    """What to do at the start of a source.

    Raises:
        SlotExists: the slot is there and was not made for this log: another installation may be using it.
        PositionMismatch: changes are missing, or the database is another one; `snapshot_on_gap` takes a new snapshot
            instead, whose records replace everything older.
    """
    if position is None:
        if slot is not None:
            raise SlotExists(
                f"source {source}: replication slot {wanted_slot} exists, but this log has no position of the source",
                hint=f"if no other Mainstem uses it: SELECT pg_drop_replication_slot('{wanted_slot}'); else set another `slot`",
            )
        return Snapshot(drop_slot=False)
    begins_anew = position.state == "snapshot"
    reason = "its snapshot was cut short" if begins_anew else _mismatch(position, slot, server)
    if reason is None:
        return Resume(position)
    if begins_anew or snapshot_on_gap:
        if slot is not None and not _is_ours(position, slot, server):
            raise SlotExists(
                f"source {source}: replication slot {position.slot} exists in system {server.system} and is not this log's, "
                f"which was begun with database {position.database} of system {position.system}",
                hint=f"if no other Mainstem uses it: SELECT pg_drop_replication_slot('{position.slot}'); else give this "
                "source another name",
            )
        return Snapshot(drop_slot=slot is not None)
    raise PositionMismatch(
        f"source {source}: {reason}",
        hint='set on_gap = "snapshot" for this source: it takes a new snapshot, which replaces all older rows of its topics',
    )


def _is_ours(position: SourcePosition, slot: Slot, server: Server) -> bool:
    """The slot was made for this log: a new snapshot may drop it."""
    return _is_same_database(position, server) and slot.plugin == "pgoutput" and slot.database == server.database


def _is_same_database(position: SourcePosition, server: Server) -> bool:
    return (position.system, position.database) == (server.system, server.database)


def _mismatch(position: SourcePosition, slot: Slot | None, server: Server) -> str | None:
    reached = format_lsn(position.lsn)
    if not _is_same_database(position, server):
        return (
            f"the log was filled from database {position.database} of system {position.system}, "
            f"found database {server.database} of system {server.system}"
        )
    if position.lsn > server.wal_end:
        return (
            f"the log has changes up to {reached}, but the database's WAL ends at {format_lsn(server.wal_end)}: "
            "it was restored to an older state"
        )
    if slot is None or slot.wal_status == "lost":
        found = "does not exist" if slot is None else "has lost its WAL"
        return f"slot {position.slot} {found}: changes from {reached} to {format_lsn(server.wal_end)} are missing"
    if not _is_ours(position, slot, server):
        return f"slot {position.slot} is of plugin {slot.plugin} and database {slot.database}: it is not ours"
    if slot.confirmed_lsn > position.lsn:
        return f"slot {position.slot} was moved: changes from {reached} to {format_lsn(slot.confirmed_lsn)} are missing"
    return None
