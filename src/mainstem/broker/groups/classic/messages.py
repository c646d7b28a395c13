"""What members ask of a group of the classic protocol, and what they are told, of all versions of JoinGroup and
SyncGroup.
"""

from collections.abc import Callable, Mapping

import msgspec

from mainstem.wire.errors import Code


class Protocol(msgspec.Struct, frozen=True):
    """One way of assigning that a member knows, with what it says about itself."""

    name: str
    metadata: bytes


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """JoinGroup, of any version."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    member_id_required: bool = True
    """From version 4 on a new member gets its id first and joins with it, so that a lost answer leaves no ghost."""
    may_skip_assignment: bool = False
    """From version 9 on a static leader that came back can be told to leave the assignment as it is."""


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """SyncGroup, of any version. `assignments` are everybody's, from the leader; nobody else has any."""

    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    """As `protocol`, from version 5 on; None: it is not checked."""
    protocol: str | None = None
    assignments: Mapping[str, bytes] = {}


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a member that joined is told."""

    error: Code = Code.none
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """For the leader: (member id, instance id, metadata) of everybody."""


class SyncAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A member's part of the assignment."""

    error: Code = Code.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


JoinReply = Callable[[JoinAnswer], None]
SyncReply = Callable[[SyncAnswer], None]
