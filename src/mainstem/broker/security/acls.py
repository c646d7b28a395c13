"""Access control lists with Kafka's semantics (KIP-11, KIP-290): the entries, and the one place that decides.

Who asks is a principal (`User:alice`) at a host; what for is an operation on a resource. Decided is, in this order:
super users may; who an entry denies may not; who an entry allows may; where no entry names the resource,
`allow_everyone_if_no_acl_found` says; nobody else may.

An entry is of a resource's name, of a prefix of names, or of `*`, all names; of one principal or `User:*`, and of one
host or `*`. A host is an IP address, an IPv6 one in any spelling (Kafka knows Java's alone). Read, write, delete and
alter allow to describe as well, and alter configs to describe configs; a denial means its operation alone, or all.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from mainstem.broker.facts import Facts
from mainstem.broker.security.hosts import host_of
from mainstem.core import LONGEST_TOPIC_NAME
from mainstem.wire.errors import Code, RequestError

# Kafka's numbers
ANY: Final = 1
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = 2, 3, 4, 5, 6, 7
"""Kinds of resources."""

MATCH, LITERAL, PREFIXED = 2, 3, 4
"""How the name of an entry, or of a filter, is meant."""

ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 2, 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 9, 10, 11, 12
"""Operations."""

DENY, ALLOW = 2, 3

THE_CLUSTER: Final = "kafka-cluster"
"""The name of the one cluster."""

EVERYBODY: Final = "User:*"
_ALL_NAMES = _ALL_HOSTS = "*"
_MOST_OPERATION: Final = 15
_IMPLIED: Final = {DESCRIBE: (READ, WRITE, DELETE, ALTER), DESCRIBE_CONFIGS: (ALTER_CONFIGS,)}
_MOST_DECISIONS: Final = 10_000

OPERATIONS: Final = {
    TOPIC: (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER: (CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE),
}
"""What one can do to a resource, as clients are told it."""

CODES: Final = {
    TOPIC: Code.topic_authorization_failed,
    GROUP: Code.group_authorization_failed,
    CLUSTER: Code.cluster_authorization_failed,
    TRANSACTIONAL_ID: Code.transactional_id_authorization_failed,
}
"""What who may not is told, by the kind of the resource."""


class Acl(NamedTuple):
    """One entry."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """Which entries are meant; None, or ANY, means all."""

    kind: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def check(self) -> "AclFilter":
        """Raise RequestError unless every number is one of Kafka's."""
        if not (
            ANY <= self.kind <= USER
            and ANY <= self.pattern <= PREFIXED
            and ANY <= self.operation <= _MOST_OPERATION
            and ANY <= self.permission <= ALLOW
        ):
            raise RequestError(Code.invalid_request, f"The filter has an unknown element: {tuple(self)}")
        return self

    def means(self, acl: Acl) -> bool:
        """True if `acl` is one of those."""
        return (
            self.kind in (ANY, acl.kind)
            and self._means_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
        )

    def _means_name(self, acl: Acl) -> bool:
        if self.pattern not in (ANY, MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern != MATCH:
            return False
        return acl.name == _ALL_NAMES if acl.pattern == LITERAL else self.name.startswith(acl.name)


def check_acl(acl: Acl) -> None:
    """Whether such an entry may be made.

    Raises:
        RequestError: the message is Kafka's.
    """
    reason = ""
    if acl.kind == CLUSTER and acl.name != THE_CLUSTER:
        reason = f"The only valid name for the CLUSTER resource is {THE_CLUSTER}"
    elif not acl.name:
        reason = "Invalid empty resource name"
    elif not ANY < acl.kind <= USER:
        reason = f"Invalid resourceType {acl.kind}"
    elif acl.pattern not in (LITERAL, PREFIXED):
        reason = f"Invalid patternType {acl.pattern}"
    elif not ANY < acl.operation <= _MOST_OPERATION:
        reason = f"Invalid operation {acl.operation}"
    elif acl.permission not in (DENY, ALLOW):
        reason = f"Invalid permissionType {acl.permission}"
    elif ":" not in acl.principal:
        reason = f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type from the principal name)"
    if reason:
        raise RequestError(Code.invalid_request, reason)


class Authorizer:
    """All entries, and the decisions. Changes are durable on return."""

    def __init__(self, facts: Facts, super_users: Iterable[str], *, allow_everyone_if_no_acl_found: bool) -> None:
        self._facts = facts
        self._super_users = frozenset(super_users)
        self._without_entry = allow_everyone_if_no_acl_found
        self._acls: dict[Acl, None] = {}
        self._by_name: dict[tuple[int, int, str], list[Acl]] = {}  # kind, pattern, name
        self._prefixes: dict[int, set[int]] = {}  # lengths of the prefixes by kind
        self._decisions: dict[tuple[str, str, int, int, str], bool] = {}
        for key, _ in facts.below("acl:"):
            self._acls[Acl(*msgspec.json.decode(key))] = None
        self._changed()

    def __iter__(self) -> Iterator[Acl]:
        return iter(sorted(self._acls))

    def allows(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        """Whether `principal` at `host` (as `host_of` writes it) may do `operation` to the resource `name`."""
        if len(name) > LONGEST_TOPIC_NAME:  # nobody is to fill memory by asking for them
            return self._decide(principal, host, operation, kind, name)
        asked = (principal, host, operation, kind, name)
        decided = self._decisions.get(asked)
        if decided is None:
            if len(self._decisions) >= _MOST_DECISIONS:
                self._decisions.clear()
            decided = self._decisions[asked] = self._decide(*asked)
        return decided

    def _decide(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        if principal in self._super_users:
            return True
        named = allowed = False
        for acl in self._naming(kind, name):
            named = True
            if acl.principal not in (principal, EVERYBODY) or host_of(acl.host) not in (host, _ALL_HOSTS):
                continue
            if acl.permission == DENY:
                if acl.operation in (operation, ALL):
                    return False
            elif acl.operation in (operation, ALL) or acl.operation in _IMPLIED.get(operation, ()):
                allowed = True
        return allowed if named else self._without_entry

    def _naming(self, kind: int, name: str) -> Iterator[Acl]:
        yield from self._by_name.get((kind, LITERAL, name), ())
        if name != _ALL_NAMES:
            yield from self._by_name.get((kind, LITERAL, _ALL_NAMES), ())
        for length in self._prefixes.get(kind, ()):
            if length <= len(name):
                yield from self._by_name.get((kind, PREFIXED, name[:length]), ())

    def allows_some(self, principal: str, host: str, operation: int, kind: int) -> bool:
        """Whether there is any resource of that kind, of whatever name, to which `principal` may do it (KIP-679)."""
        if self.allows(principal, host, operation, kind, "hardcode"):  # Kafka's: super users
            return True
        allowed: list[Acl] = []
        denied: list[Acl] = []
        for acl in self._acls:
            if (
                acl.kind == kind
                and acl.principal in (principal, EVERYBODY)
                and host_of(acl.host) in (host, _ALL_HOSTS)
                and acl.operation in (operation, ALL)
            ):
                (allowed if acl.permission == ALLOW else denied).append(acl)
        return any(not any(_covers(each, acl) for each in denied) for acl in allowed)

    # --- what the admin APIs do --------------------------------------------------------------------------------------

    async def add(self, acls: Iterable[Acl]) -> None:
        """Add entries, all or none.

        Raises:
            StorageError: the disk refused.
        """
        new = [acl for acl in dict.fromkeys(acls) if acl not in self._acls]
        await self._facts.put({_key(acl): True for acl in new})
        self._acls.update(dict.fromkeys(new))
        self._changed()

    async def remove(self, acls: Iterable[Acl]) -> None:
        """Remove entries, all or none.

        Raises:
            StorageError: the disk refused.
        """
        gone = [acl for acl in dict.fromkeys(acls) if acl in self._acls]
        await self._facts.put({_key(acl): None for acl in gone})
        for acl in gone:
            self._acls.pop(acl, None)
        self._changed()

    def _changed(self) -> None:
        self._decisions = {}
        self._by_name, self._prefixes = {}, {}
        for acl in self._acls:
            self._by_name.setdefault((acl.kind, acl.pattern, acl.name), []).append(acl)
            if acl.pattern == PREFIXED:
                self._prefixes.setdefault(acl.kind, set()).add(len(acl.name))


def _covers(denied: Acl, allowed: Acl) -> bool:
    """True if whatever `allowed` names is denied."""
    if denied.pattern == LITERAL:
        return denied.name == _ALL_NAMES or (allowed.pattern == LITERAL and allowed.name == denied.name)
    return allowed.name != _ALL_NAMES and allowed.name.startswith(denied.name)


def _key(acl: Acl) -> str:
    return f"acl:{msgspec.json.encode(acl).decode()}"


def described(acl: Acl) -> dict[str, Any]:
    """An entry as the APIs tell it."""
    return {
        "resource_type": acl.kind,
        "resource_name": acl.name,
        "pattern_type": acl.pattern,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def filter_of(asked: Any) -> AclFilter:
    """The filter in a request."""
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )
