"""The members of one group of the classic protocol: who they are, who leads, and what all of them speak."""

from collections import Counter
from collections.abc import Iterator, Mapping, ValuesView

from mainstem.broker.fields import CorruptCoordinatorRecord
from mainstem.broker.groups.classic.messages import JoinReply, JoinRequest, SyncReply
from mainstem.broker.groups.embedded import read_topics
from mainstem.broker.groups.errors import FencedInstance, UnknownMember
from mainstem.broker.groups.membership import time_to_join
from mainstem.broker.groups.records import MemberValue


class Member:
    """One member, and where it is in the rebalance."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline",
        "instance_id",
        "is_new",
        "join_reply",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_reply",
    )

    def __init__(self, member_id: str, request: JoinRequest) -> None:
        self.member_id = member_id
        self.instance_id = request.instance_id
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.protocols = request.protocols
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms
        self.assignment = b""
        self.join_reply: JoinReply | None = None
        self.sync_reply: SyncReply | None = None
        self.is_new = False
        self.deadline: float | None = None
        """Monotonic seconds when the member is given up; None while it waits for an answer of ours."""

    def update(self, request: JoinRequest) -> None:
        """It joins again: what it speaks and its times may be others."""
        self.protocols = request.protocols
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms

    def metadata(self, protocol: str | None) -> bytes:
        """What the member says about itself in `protocol`."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def stored(self, protocol: str | None, assignment: bytes) -> MemberValue:
        """As it is in the group's record."""
        return MemberValue(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )


class Members(Mapping[str, Member]):
    """By member id, in the order in which they came. A static member's place is its instance id's: who takes it over
    has another member id.
    """

    def __init__(self, group_id: str) -> None:
        self.leader: str | None = None
        """The id of the member that assigns."""
        self._group_id = group_id
        self._by_id: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # member ids by instance id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def values(self) -> ValuesView[Member]:
        """A mapping's, without a look-up for each."""
        return self._by_id.values()

    def check(self, member_id: str, instance_id: str | None) -> Member:
        """The member of that id.

        Raises:
            UnknownMember: there is none.
            FencedInstance: its place has been taken over.
        """
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is None:
                raise UnknownMember(self._group_id, f"no member with instance id {instance_id}")
            if current != member_id:
                raise FencedInstance(self._group_id, f"instance id {instance_id} is {current} now, found {member_id}")
        member = self._by_id.get(member_id)
        if member is None:
            raise UnknownMember(self._group_id, f"no member {member_id!r}")
        return member

    def holder(self, instance_id: str) -> str | None:
        """The id of the member whose place that is."""
        return self._static.get(instance_id)

    # --- who comes and goes -------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """It comes; its instance id is its own from now on."""
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def take_over(self, member: Member) -> Member:
        """It takes the place of its instance id, and leads if that led; who had it until now."""
        assert member.instance_id is not None
        old = self._by_id.pop(self._static[member.instance_id])
        member.assignment = old.assignment
        self.add(member)
        if self.leader == old.member_id:
            self.leader = member.member_id
        return old

    def remove(self, member_id: str) -> None:
        """It is gone, if it was there; if it led, the one that came first leads."""
        member = self._by_id.pop(member_id, None)
        instance_id = member.instance_id if member is not None else None
        if instance_id is not None and self._static.get(instance_id) == member_id:  # it may be another member's by now
            del self._static[instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._by_id), None)

    def elect_leader(self) -> bool:
        """Let somebody lead who takes part in the next generation; False: nobody does."""
        leader = self._by_id.get(self.leader or "")
        if leader is None or not leader.join_reply:
            self.leader = next((m.member_id for m in self._by_id.values() if m.join_reply), self.leader)
            leader = self._by_id.get(self.leader or "")
        return leader is not None and leader.join_reply is not None

    # --- what they say of themselves ----------------------------------------------------------------------------------

    def common_protocols(self) -> set[str]:
        """Those that every member knows."""
        known = Counter(protocol.name for member in self._by_id.values() for protocol in member.protocols)
        return {name for name, count in known.items() if count == len(self._by_id)}

    def vote(self) -> str:
        """Every member votes for the first of its protocols that all know."""
        candidates = self.common_protocols()
        votes = Counter(
            next(protocol.name for protocol in member.protocols if protocol.name in candidates)
            for member in self._by_id.values()
        )
        return votes.most_common(1)[0][0]

    def subscriptions(self, protocol: str | None) -> frozenset[str] | None:
        """The topics that consumers name; None where somebody's cannot be read."""
        try:
            return frozenset(topic for m in self._by_id.values() for topic in read_topics(m.metadata(protocol)))
        except CorruptCoordinatorRecord:
            return None

    def rebalance_timeout_ms(self) -> int:
        """The longest of all."""
        timeouts = (time_to_join(m.rebalance_timeout_ms, m.session_timeout_ms) for m in self._by_id.values())
        return max(timeouts, default=0)
