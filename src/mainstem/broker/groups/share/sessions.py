"""Share sessions (KIP-932): a member of a share group names its partitions once, then only what changes.

    epoch 0      ShareFetch only: a new session, in the place of the member's old one; nothing can be acknowledged yet
    epoch n > 0  the n-th request of the session: partitions that are new, and those to forget
    epoch -1     the last request: what is acknowledged is done, what else the member has is released

ShareFetch and ShareAcknowledge count together. A session has no id: it is its member's. It ends with its connection,
and then all that the member has is released. Pure state; nothing is evicted: who has a connection has a place.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final
from uuid import UUID

import msgspec

from mainstem.wire.errors import Code, RequestError

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
PARTITIONS_PER_SESSION: Final = 200
"""On average. One session may have more, as long as all together do not."""
_INT32_MAX: Final = 2**31 - 1


MOST_OF_CONNECTION: Final = 64
"""A client has one: who opens all that there are on one connection would leave others none."""


class SessionKey(msgspec.Struct, frozen=True):
    """Whose session it is."""

    group_id: str
    member_id: str


class SessionPartition(msgspec.Struct, frozen=True):
    """A partition by its topic's id."""

    topic_id: UUID
    partition: int


class ShareSession:
    """The partitions that a member reads, in the order in which they are read: those that had records go to the end."""

    def __init__(self, key: SessionKey, connection_id: int, partitions: Iterable[SessionPartition]) -> None:
        self.key = key
        self.connection_id = connection_id
        self.epoch = 1
        """Of the next request."""
        self._owed: OrderedDict[SessionPartition, bool] = OrderedDict((each, True) for each in partitions)

    @property
    def partitions(self) -> list[SessionPartition]:
        """In the order in which they are to be read."""
        return list(self._owed)

    def __len__(self) -> int:
        """How many partitions it has."""
        return len(self._owed)

    def update(self, added: Iterable[SessionPartition], forgotten: Iterable[SessionPartition]) -> None:
        """What the next request says of them."""
        for each in added:
            self._owed.setdefault(each, True)
        for each in forgotten:
            self._owed.pop(each, None)

    def owes(self, partition: SessionPartition) -> bool:
        """True if the answer is to hold it though there is nothing new: it is new, or its last answer was an error."""
        return self._owed.get(partition, False)

    def answered(self, partition: SessionPartition, *, had_records: bool, failed: bool) -> None:
        """The answer holds this partition."""
        if partition in self._owed:
            self._owed[partition] = failed
            if had_records:
                self._owed.move_to_end(partition)


class ShareSessions:
    """All sessions of the broker."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_partitions = most * PARTITIONS_PER_SESSION
        self._partitions = 0  # of all sessions
        self._of_groups: Counter[str] = Counter()
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_connections: dict[int, set[SessionKey]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: SessionKey) -> ShareSession | None:
        """The member's session."""
        return self._sessions.get(key)

    def has_group(self, group_id: str) -> bool:
        """Whether any member of the group has a session."""
        return group_id in self._of_groups

    def open(self, key: SessionKey, connection_id: int, partitions: Iterable[SessionPartition]) -> ShareSession:
        """A new session, whatever the member had before.

        Raises:
            RequestError: SHARE_SESSION_LIMIT_REACHED: the member's old session is as it was.
        """
        old = self._sessions.get(key)
        if old is None and len(self._sessions) >= self._most:
            raise RequestError(
                Code.share_session_limit_reached, f"there are {self._most} share sessions: no more are allowed"
            )
        of_connection = self._of_connections.get(connection_id, ())
        if key not in of_connection and len(of_connection) >= MOST_OF_CONNECTION:
            raise RequestError(
                Code.share_session_limit_reached, f"there are {MOST_OF_CONNECTION} share sessions of this connection"
            )
        session = ShareSession(key, connection_id, partitions)
        self._check_room(len(session) - (0 if old is None else len(old)))
        self.close(key)
        self._sessions[key] = session
        self._partitions += len(session)
        self._of_groups[key.group_id] += 1
        self._of_connections.setdefault(connection_id, set()).add(key)
        return session

    def proceed(
        self,
        key: SessionKey,
        epoch: int,
        added: Iterable[SessionPartition] = (),
        forgotten: Iterable[SessionPartition] = (),
    ) -> ShareSession:
        """The session, with the changes of its request number `epoch`.

        Raises:
            RequestError: SHARE_SESSION_NOT_FOUND, or INVALID_SHARE_SESSION_EPOCH: not the epoch that comes next; or
                SHARE_SESSION_LIMIT_REACHED: there is no room for more partitions, the session is as it was.
        """
        session = self.known(key)
        if session.epoch != epoch:
            raise RequestError(
                Code.invalid_share_session_epoch,
                f"share session of {key.member_id}: expected epoch {session.epoch}, found {epoch}",
            )
        added = list(added)
        self._check_room(len(added))
        session.epoch = epoch % _INT32_MAX + 1
        before = len(session)
        session.update(added, forgotten)
        self._partitions += len(session) - before
        return session

    def finish(self, key: SessionKey) -> ShareSession:
        """The session, which is over: this is its last request.

        Raises:
            RequestError: SHARE_SESSION_NOT_FOUND.
        """
        session = self.known(key)
        self.close(key)
        return session

    def close(self, key: SessionKey) -> None:
        """Forget the member's session, if it has one."""
        session = self._sessions.pop(key, None)
        if session is None:
            return
        self._partitions -= len(session)
        self._of_groups[key.group_id] -= 1
        if not self._of_groups[key.group_id]:
            del self._of_groups[key.group_id]
        keys = self._of_connections[session.connection_id]
        keys.discard(key)
        if not keys:
            del self._of_connections[session.connection_id]

    def disconnected(self, connection_id: int) -> list[ShareSession]:
        """The sessions of a connection, which are over: what their members have is to be released."""
        found = [self._sessions[key] for key in sorted_keys(self._of_connections.get(connection_id, ()))]
        for session in found:
            self.close(session.key)
        return found

    def _check_room(self, partitions: int) -> None:
        if self._partitions + partitions > self._most_partitions:
            raise RequestError(
                Code.share_session_limit_reached, f"share sessions have room for {self._most_partitions} partitions"
            )

    def known(self, key: SessionKey) -> ShareSession:
        """The member's session.

        Raises:
            RequestError: SHARE_SESSION_NOT_FOUND.
        """
        session = self._sessions.get(key)
        if session is None:
            raise RequestError(Code.share_session_not_found, f"{key.member_id} has no share session")
        return session


def sorted_keys(keys: Iterable[SessionKey]) -> list[SessionKey]:
    """In an order that does not depend on hashes."""
    return sorted(keys, key=lambda key: (key.group_id, key.member_id))
