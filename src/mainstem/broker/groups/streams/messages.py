"""What a member of a streams group asks, and what it is told: StreamsGroupHeartbeat."""

from typing import Final

import msgspec

from mainstem.broker.groups.streams.configured import Status
from mainstem.broker.groups.streams.tasks import Tasks, TaskSet
from mainstem.broker.groups.streams.topology import InternalTopic, Topology

JOIN: Final = 0
LEAVE: Final = -1


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A heartbeat. What has not changed since the last one may be left out: None, or -1."""

    member_id: str
    epoch: int
    endpoint_epoch: int = -1
    """Of the endpoints that it was told last."""
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topology: Topology | None = None
    """Comes with the first one, and only then."""
    reported: Tasks | None = None
    """The tasks that the member has."""
    process_id: str | None = None
    endpoint: tuple[str, int] | None = None
    client_tags: tuple[tuple[str, str], ...] | None = None
    shuts_down: bool = False
    """Whether it wants all members of the application to end."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where a member answers queries, and of which partitions: topic, partitions of each."""

    host: str
    port: int
    active: TaskSet
    standby: TaskSet


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """What a member is told."""

    member_id: str
    epoch: int
    tasks: Tasks | None = None
    """All that it is to have now; None: as it was told before."""
    status: tuple[Status, ...] = ()
    endpoint_epoch: int = 0
    endpoints: tuple[Endpoint, ...] | None = None
    """Of all members that have one; None: as it was told before."""
    missing: tuple[InternalTopic, ...] = ()
    """Topics that are to be made before there are any tasks."""
