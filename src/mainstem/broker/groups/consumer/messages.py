"""What a member of the consumer protocol asks, and what it is told: ConsumerGroupHeartbeat, of any version."""

from typing import Final

import msgspec

from mainstem.broker.groups.modern.partitions import Assignment

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_FOR_A_WHILE: Final = -2
"""Member epochs with a meaning of their own; the last one is a static member's."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A heartbeat. What has not changed since the last one may be left out: None, or -1."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    reported: Assignment | None = None
    """The partitions that the member has."""

    @property
    def is_full(self) -> bool:
        """A member that names everything wants to be told everything: it joins, or has missed an answer."""
        if self.epoch == JOIN:
            return True
        subscribes = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.reported is not None


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """What a member is told."""

    member_id: str
    epoch: int
    assignment: Assignment | None = None
    """All that it is to have now; None: as it was told before."""
