"""What a member of a group is told when its request does not fit the group."""

from mainstem.log import BatchTooLarge
from mainstem.wire.errors import Code, RequestError


class GroupError(RequestError):
    """A request is refused; the group is as it was."""

    def __init__(self, code: Code, group_id: str, message: str) -> None:
        super().__init__(code, f"group {group_id}: {message}")
        self.group_id = group_id


class UnknownMember(GroupError):
    """The member was removed (its session expired, it left) or never was in the group: it joins anew."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.unknown_member_id, group_id, message)


class FencedInstance(GroupError):
    """Another process has joined with the same `group.instance.id`: this one must stop."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.fenced_instance_id, group_id, message)


class IllegalGeneration(GroupError):
    """The request speaks of a generation that is over."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.illegal_generation, group_id, message)


class RebalanceInProgress(GroupError):
    """The group is forming its next generation: the member joins again."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.rebalance_in_progress, group_id, message)


class InconsistentProtocol(GroupError):
    """The member's protocol type, or all of its protocols, do not fit the group's."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.inconsistent_group_protocol, group_id, message)


class GroupNotEmpty(GroupError):
    """The group has members, so it cannot be deleted."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.non_empty_group, group_id, message)


class UnknownGroup(GroupError):
    """No such group."""

    def __init__(self, group_id: str, message: str = "not known") -> None:
        super().__init__(Code.group_id_not_found, group_id, message)


class FencedMemberEpoch(GroupError):
    """The member's epoch is not the one it was told: it abandons what it has and joins anew."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.fenced_member_epoch, group_id, message)


class StaleMemberEpoch(GroupError):
    """The member has an epoch that is over, or not there yet: it waits for its next heartbeat."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.stale_member_epoch, group_id, message)


class UnreleasedInstance(GroupError):
    """A member with this `group.instance.id` is there, and has not left."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.unreleased_instance_id, group_id, message)


class GroupFull(GroupError):
    """The group has as many members as it may."""

    def __init__(self, group_id: str, message: str) -> None:
        super().__init__(Code.group_max_size_reached, group_id, message)


class CoordinatorUnavailable(GroupError):
    """The coordinator could not store what it was about to answer, or does not know what it had: its log is offline."""

    def __init__(self, group_id: str, reason: BaseException | str) -> None:
        super().__init__(Code.coordinator_not_available, group_id, f"not stored: {reason}")


class RecordTooLarge(GroupError):
    """What was to be stored is more than `__consumer_offsets` takes at once."""

    def __init__(self, group_id: str, reason: BatchTooLarge) -> None:
        super().__init__(Code.message_too_large, group_id, str(reason))
