"""Kafka's `group.*` settings, as the groups need them."""

from typing import Literal, TypeAlias

import msgspec


class ClassicGroupConfig(msgspec.Struct, frozen=True):
    """Groups of the classic protocol."""

    initial_rebalance_delay_ms: int = 0
    """Kafka's default is 3000, which makes every first consumer of a group wait; 0 lets it start at once."""
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2_147_483_647
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in JoinGroup: it has no session yet, and nobody sees it go away."""


class ConsumerGroupConfig(msgspec.Struct, frozen=True):
    """Groups of the consumer protocol; the first three can be set for a single group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 0
    """At least so long between two target assignments: members that come together are assigned together. Kafka's
    default is 1000, with which the second consumer of a group gets its first partition a heartbeat later."""
    max_size: int = 2_147_483_647


OffsetReset: TypeAlias = Literal["latest", "earliest"] | int
"""Where a share group begins to read a partition: at its end, at its start, or so many milliseconds before now."""


class ShareGroupConfig(msgspec.Struct, frozen=True):
    """Share groups; all but the last can be set for a single group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 0
    """As of groups of the consumer protocol."""
    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    partition_max_record_locks: int = 2_000
    auto_offset_reset: OffsetReset = "latest"
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    renew_acknowledge_enable: bool = True
    max_size: int = 200


class StreamsGroupConfig(msgspec.Struct, frozen=True):
    """Streams groups; all but the last can be set for a single group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 0
    """As of groups of the consumer protocol."""
    initial_rebalance_delay_ms: int = 0
    """As of groups of the classic protocol."""
    num_standby_replicas: int = 0
    max_size: int = 2_147_483_647
