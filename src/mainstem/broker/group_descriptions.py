"""What descriptions of groups of the newer protocols have in common: who is told what, and what of a group that is not
there.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.modern.group import ModernGroup
from mainstem.broker.groups.modern.service import ModernGroups
from mainstem.broker.metadata import NOT_ASKED
from mainstem.broker.security.acls import DESCRIBE, GROUP, TOPIC
from mainstem.wire.errors import Code

if TYPE_CHECKING:
    from mainstem.broker.handlers import RequestContext

G = TypeVar("G", bound=ModernGroup[Any, Any])

HIDDEN: Final = "The group has described topic(s) that the client is not authorized to describe."


class Description(NamedTuple, Generic[G]):
    """How groups of one protocol are described."""

    of: Callable[[G], dict[str, Any]]
    """The fields that the protocol has of its own."""
    topics: Callable[[G], Iterable[str]]
    """Whoever may not see one of these is told nothing of the group."""
    nothing: dict[str, Any]
    """Its own fields that have no null, of a group of which nothing is told."""
    hidden: str = HIDDEN

    def missing(self, group_id: str, code: int, message: str | None) -> dict[str, Any]:
        """A group of which nothing is told but why."""
        return {
            "group_id": group_id,
            "error_code": code,
            "error_message": message,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "authorized_operations": NOT_ASKED,
            **self.nothing,
        }

    def all_missing(self, request: Any, code: int, message: str | None) -> dict[str, Any]:
        """The answer to a request that failed as a whole."""
        return {"groups": [self.missing(each, code, message) for each in request.group_ids]}

    async def answer(self, request: Any, ctx: "RequestContext", groups: ModernGroups[G, Any, Any]) -> dict[str, Any]:
        """Each group that is asked for, once."""
        asked = request.include_authorized_operations
        return {
            "groups": [await self._one(each, ctx, groups, asked=asked) for each in dict.fromkeys(request.group_ids)]
        }

    async def _one(
        self, group_id: str, ctx: "RequestContext", groups: ModernGroups[G, Any, Any], *, asked: bool
    ) -> dict[str, Any]:
        if not ctx.may(DESCRIBE, GROUP, group_id):
            return self.missing(group_id, Code.group_authorization_failed, None)
        if not group_id:
            return self.missing(group_id, Code.invalid_group_id, None)
        try:
            await groups.settled(group_id)
        except GroupError as error:
            return self.missing(group_id, error.code, str(error))
        group = groups.get(group_id)
        if group is None:
            reason = "not found" if group_id not in ctx.broker.groups.groups else f"is not a {groups.kind} group"
            return self.missing(group_id, Code.group_id_not_found, f"Group {group_id} {reason}.")
        if not all(ctx.may(DESCRIBE, TOPIC, name) for name in self.topics(group)):
            return self.missing(group_id, Code.topic_authorization_failed, self.hidden)
        return {
            "error_code": Code.none,
            "group_id": group_id,
            "group_state": group.state_name,
            "authorized_operations": ctx.operations(GROUP, group_id) if asked else NOT_ASKED,
            **self.of(group),
        }
