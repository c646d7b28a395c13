"""What the groups of the newer protocols have in common. No I/O; the clock is passed in.

The state is exactly what is stored: every change is a record, put by `_put`, and a start puts the same records again.
A call that raises leaves nothing behind; so does one whose records cannot be stored, by `Change.take_back`. Deadlines
are not stored: members get a whole session after a start.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from mainstem.broker.groups.deadlines import Deadlines
from mainstem.broker.groups.errors import GroupError, GroupNotEmpty, UnknownMember
from mainstem.broker.groups.membership import Commit, Entry, Group
from mainstem.broker.groups.modern.records import GroupRecordKey
from mainstem.broker.groups.modern.subscriptions import TopicsView
from mainstem.broker.groups.records import ModernKey, ModernValue
from mainstem.core import Clock, TopicPartition

T = TypeVar("T")
K = TypeVar("K", bound=ModernKey)
V = TypeVar("V", bound=ModernValue)
W = TypeVar("W", bound=msgspec.Struct)

SESSION, REBALANCE = "session", "rebalance"
"""What a member is given time for: the next heartbeat; to give up what it is to."""

Due: TypeAlias = tuple[str, str]  # (member id, what for)


class Change(msgspec.Struct, Generic[T]):
    """What a call has changed, for the caller to store, and the answer for when that is durable."""

    entries: list[Entry]
    answer: T
    take_back: Callable[[], None]
    """The records cannot be stored: the group is as it was."""


class _Done(msgspec.Struct, Generic[K, V]):
    """What a change has replaced, in order."""

    records: list[tuple[K, V | None]] = []
    deadlines: list[tuple[Due, float | None]] = []
    """But those of sessions: who was heard of was heard of."""


class ModernGroup(Group, Generic[K, V]):
    """A group and its members."""

    members: Mapping[str, msgspec.Struct]
    """By member id; changed by `put` alone."""

    def __init__(self, group_id: str, clock: Clock, topics: TopicsView) -> None:
        """A group without members."""
        self.group_id = group_id
        self.protocol_type = self.kind
        self.topics = topics
        self._clock = clock
        self._deadlines: Deadlines[Due] = Deadlines()
        self._open: _Done[K, V] | None = None

    # --- members ------------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if it has no members."""
        return not self.members

    def check_empty(self) -> None:
        """Raise GroupNotEmpty if it has members."""
        if self.members:
            raise GroupNotEmpty(self.group_id, f"it is {self.state_name} with {len(self.members)} members")

    def delete(self) -> None:
        """The group is gone.

        Raises:
            GroupNotEmpty: it has members.
        """
        self.check_empty()

    def check_known(self, member_id: str) -> None:
        """Raise UnknownMember if there is no such member."""
        if member_id not in self.members:
            raise UnknownMember(self.group_id, f"no member {member_id!r}")

    # --- the clock ----------------------------------------------------------------------------------------------------

    def set_deadline(self, member_id: str, what_for: str, milliseconds: int, *, if_absent: bool = False) -> None:
        """Give a member time for something."""
        if not (if_absent and (member_id, what_for) in self._deadlines):
            self._note_deadline(member_id, what_for)
            self._deadlines.set((member_id, what_for), self._clock.monotonic() + milliseconds / 1000)

    def drop_deadline(self, member_id: str, what_for: str) -> None:
        """The member has done it, or is gone."""
        self._note_deadline(member_id, what_for)
        self._deadlines.discard((member_id, what_for))

    def _note_deadline(self, member_id: str, what_for: str) -> None:
        if self._open is not None and what_for != SESSION:
            due = member_id, what_for
            self._open.deadlines.append((due, self._deadlines.get(due)))

    def next_deadline(self) -> float | None:
        """When `overdue` has something to tell; monotonic seconds."""
        return self._deadlines.next()

    def overdue(self) -> list[str]:
        """Members whose time is over: they are to be removed. Each is told once."""
        found: dict[str, None] = {}
        while (due := self._deadlines.take_due(self._clock.monotonic())) is not None:
            member_id, _ = due
            if member_id in self.members:
                found[member_id] = None
        return list(found)

    def start_sessions(self, *, only_missing: bool = False) -> None:
        """After a start: everybody has a session's time to be heard of."""
        for member_id in self.members:
            if not (only_missing and (member_id, SESSION) in self._deadlines):
                self._start_session(member_id)

    @abstractmethod
    def _start_session(self, member_id: str) -> None:
        """Give a member that has not been heard of since the start all its time."""

    def _is_just_made(self, made_ms: int, interval_ms: int) -> bool:
        """Whether the target assignment was made less than `interval_ms` ago; 0: there is none.

        The time is stored, so it is of the wall clock. One in the future was made before that was set back: nobody
        waits for it to come.
        """
        return made_ms > 0 and 0 <= self._clock.now_ms() - made_ms < interval_ms

    # --- offsets ------------------------------------------------------------------------------------------------------

    def _is_no_members(self, commit: Commit) -> bool:
        """Whether a commit is one of an admin, or of a consumer that assigns its partitions itself."""
        if commit.transactional and commit.generation == -1 and not commit.member_id and commit.instance_id is None:
            return True
        return commit.generation < 0 and not self.members

    def _check_commit_epoch(
        self,
        commit: Commit,
        epoch: int,
        since: Callable[[TopicPartition], int | None],
        wrong: Callable[[str, str], GroupError],
    ) -> None:
        """Raise `wrong` unless the member, which is in `epoch`, may commit. An epoch that is over is good enough for
        partitions that it has had `since` then (KIP-1251).
        """
        if commit.generation > epoch:
            raise wrong(self.group_id, f"member {commit.member_id} is in epoch {epoch}, found {commit.generation}")
        if commit.generation == epoch:
            return
        for partition in commit.partitions:
            had_since = since(partition)
            if had_since is None or commit.generation < had_since:
                raise wrong(
                    self.group_id,
                    f"member {commit.member_id} has not had {partition} since epoch {commit.generation}",
                )

    def check_may_delete_offsets(self) -> None:
        """Offsets of single topics may go at any time."""

    # --- as it is stored ----------------------------------------------------------------------------------------------

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Take over one record, as a start reads it. What others are about comes before them."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The record as it is now."""

    @abstractmethod
    def keys(self) -> list[K]:
        """Of every record of the group; what others are about comes last, so that they are never without it."""

    @abstractmethod
    def catch_up(self) -> None:
        """After a start: if the group's own record could not be read, no epoch may come twice all the same."""

    def entries(self) -> list[tuple[K, V]]:
        """The whole state; what others are about comes first."""
        found = ((key, self.get(key)) for key in reversed(self.keys()))
        return [(key, value) for key, value in found if value is not None]

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A call that changes the group: it leaves nothing behind if it raises, and ends with `change`."""
        assert self._open is None, f"group {self.group_id}: one change at a time"
        done = self._open = _Done()
        try:
            yield
        except BaseException:
            self._undo(done)
            raise
        finally:
            self._open = None

    def change(self, answer: T) -> Change[T]:
        """What has been put since `changing` began, with an answer."""
        assert self._open is not None
        done = self._open
        entries: list[Entry] = [(key, self.get(key)) for key in dict.fromkeys(key for key, _ in done.records)]
        return Change(entries, answer, lambda: self._undo(done))

    def _undo(self, done: _Done[K, V]) -> None:
        for key, before in reversed(done.records):
            self.put(key, before)
        for due, at in reversed(done.deadlines):
            if at is None:
                self._deadlines.discard(due)
            else:
                self._deadlines.set(due, at)
        if done.records:  # of one that changed nothing, what it has looked at is as it says
            self._forget_what_topics_were()
        self.start_sessions(only_missing=True)

    def _forget_what_topics_were(self) -> None:
        """They are looked at anew."""

    def _put(self, key: K, value: V | None) -> None:
        """Change the state by one record, and remember to store it."""
        assert self._open is not None
        before = self.get(key)
        if before != value:
            self._open.records.append((key, before))
            self.put(key, value)


class RecordGroup(ModernGroup[K, V]):
    """A group whose state is kept as its records are."""

    ORDER: ClassVar[tuple[type[GroupRecordKey], ...]]
    """Of kinds of keys: what others are about comes first."""

    def __init__(self, group_id: str, clock: Clock, topics: TopicsView) -> None:
        """A group without members."""
        super().__init__(group_id, clock, topics)
        self._values: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The record as it is now."""
        return self._values.get(key)

    def keys(self) -> list[K]:
        """Of every record of the group; what others are about comes last, so that they are never without it."""
        return sorted(self._values, key=lambda key: self.ORDER.index(type(key)), reverse=True)

    def put(self, key: K, value: V | None) -> None:
        """Take over one record, as a start reads it. What others are about comes before them."""
        before = self._values.get(key)
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value
        self._after_put(key, before, value)

    @abstractmethod
    def _after_put(self, key: K, before: V | None, value: V | None) -> None:
        """Keep what is worked out from the records in step with one that has changed."""

    def _value(self, key: K, default: W) -> W:
        """The record's value; `default` if there is none."""
        value = self._values.get(key)
        return value if isinstance(value, type(default)) else default
