"""Kafka's `group.*` settings, as the groups need them."""

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
