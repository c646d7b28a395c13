"""A member of a group of the consumer protocol. It is never changed, only replaced: what is new is what is stored."""

import msgspec

from mainstem.broker.groups.consumer.records import ClassicProtocols, CurrentValue, MemberState, MemberValue
from mainstem.broker.groups.modern.partitions import Owned


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Who it is, what it is subscribed to, and what it has."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None
    """What it said when it joined by the classic protocol; None: it uses the consumer protocol."""

    epoch: int = 0
    previous_epoch: int = 0
    """A member that comes with it has not got the answer that raised it."""
    state: MemberState = MemberState.STABLE
    assigned: Owned = {}
    revoking: Owned = {}
    """Partitions that it was told to give up; they are its own until it says that it did."""

    def described(self) -> MemberValue:
        """The first half, as it is stored."""
        return MemberValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            topics=tuple(sorted(self.topics)),
            regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            assignor=self.assignor,
            classic=self.classic,
        )

    def current(self) -> CurrentValue:
        """The second half, as it is stored."""
        return CurrentValue(self.epoch, self.previous_epoch, self.state, self.assigned, self.revoking)

    def with_described(self, value: MemberValue) -> "Member":
        """The member with another first half."""
        return msgspec.structs.replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.topics),
            regex=value.regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.assignor,
            classic=value.classic,
        )

    def with_current(self, value: CurrentValue) -> "Member":
        """The member with another second half."""
        return msgspec.structs.replace(
            self,
            epoch=value.epoch,
            previous_epoch=value.previous_epoch,
            state=value.state,
            assigned=value.assigned,
            revoking=value.revoking,
        )

    def moved(self, epoch: int, state: MemberState, assigned: Owned, revoking: Owned) -> "Member":
        """The member one step on; the epoch until now is the previous one."""
        return msgspec.structs.replace(
            self, epoch=epoch, previous_epoch=self.epoch, state=state, assigned=assigned, revoking=revoking
        )

    def is_reconciled_to(self, epoch: int) -> bool:
        """True if it has what the target assignment of `epoch` gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch
