"""What every group is, of whatever protocol: the coordinator, commits and descriptions need no more of it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, TypeAlias

import msgspec

from mainstem.broker.groups.records import Key, Value
from mainstem.core import TopicPartition

Entry: TypeAlias = tuple[Key, Value | None]
"""A record to store; None for its value is a tombstone."""


def time_to_join(rebalance_timeout_ms: int, session_timeout_ms: int) -> int:
    """Of a member of the classic protocol, in ms: who names none, 0 or less, is given as long as its session."""
    return rebalance_timeout_ms if rebalance_timeout_ms > 0 else session_timeout_ms


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants to commit offsets, and of what."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    """Or the member's epoch, in a group of the consumer protocol."""
    partitions: Sequence[TopicPartition] = ()
    transactional: bool = False
    knows_epochs: bool = True
    """Whether the version of the request has an error for an epoch that is over (OffsetCommit 9)."""


class Group(ABC):
    """A group: its members, and what they may do with its offsets. No I/O."""

    kind: ClassVar[str]
    """As ListGroups names it."""

    expires: ClassVar[bool] = True
    """Whether it is forgotten when it has neither members nor offsets; if not, somebody has to delete it."""

    group_id: str
    protocol_type: str | None
    """None: nobody has ever joined; somebody only commits offsets."""

    @property
    @abstractmethod
    def state_name(self) -> str:
        """As clients are shown it."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """True if it is there and has no members."""

    @property
    def is_expected(self) -> bool:
        """True while somebody is about to join."""
        return False

    @abstractmethod
    def next_deadline(self) -> float | None:
        """When something is due next; monotonic seconds."""

    @abstractmethod
    def check_commit(self, commit: Commit) -> None:
        """May these offsets be committed by this member? A commit to a classic group is a sign of life.

        Raises:
            GroupError: no, or not now.
        """

    def check_fetch(self, member_id: str | None, epoch: int) -> None:  # noqa: B027 most groups let everybody read
        """May this member be told the group's offsets?

        Raises:
            GroupError: it is not a member (any more).
        """

    @abstractmethod
    def expires_offsets_from(self, topic: str, committed_ms: int) -> int | None:
        """From when on (wall clock) the retention of an offset of `topic` counts; None: it does not expire."""

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool:
        """Offsets of a topic that the group reads may not be deleted."""

    @abstractmethod
    def check_may_delete_offsets(self) -> None:
        """Raise GroupNotEmpty, UnknownGroup unless offsets of single topics may go."""

    @abstractmethod
    def check_empty(self) -> None:
        """Raise GroupNotEmpty if it has members."""

    @abstractmethod
    def delete(self) -> None:
        """The group is gone.

        Raises:
            GroupNotEmpty: it has members.
        """

    @abstractmethod
    def keys(self) -> Iterable[Key]:
        """Of every record of its membership: with tombstones for all of them it is forgotten."""

    def tombstones(self) -> list[Entry]:
        """What makes a start forget the membership."""
        return [(key, None) for key in self.keys()]
