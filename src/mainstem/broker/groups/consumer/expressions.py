"""The expressions of consumer groups are resolved in threads, and a heartbeat waits for that for a moment alone.

Mostly that is enough, and a member is told at once what it has. Where it is not, the heartbeat is answered with what
was resolved before, so that nobody's session ends meanwhile. Once it is resolved the group's epoch goes up, and members
learn of it with their next heartbeats, as in Kafka. A group's expressions are resolved together, once at a time.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from mainstem.broker.groups.consumer.group import Resolved
from mainstem.broker.groups.modern.subscriptions import InvalidExpression
from mainstem.broker.patterns import BadPattern
from mainstem.core.logging import get_logger

if TYPE_CHECKING:
    from mainstem.broker.server import Broker

_PATIENCE_SECONDS: Final = 1.0
_SHOWN: Final = 100

log = get_logger()


class Expressions:
    """Those of all groups, at work."""

    def __init__(self, broker: "Broker", settle: Callable[[str, dict[str, Resolved]], None]) -> None:
        """`settle` is told what the expressions of a group match, as soon as that is known."""
        self._broker = broker
        self._settle = settle
        self._going_on: dict[str, asyncio.Future[dict[str, Resolved]]] = {}  # group

    async def check(self, expression: str) -> None:
        """Return if it is an expression of RE2.

        Raises:
            InvalidExpression: it is none.
        """
        try:
            await self._broker.topic_patterns.check(expression)
        except BadPattern as error:
            raise InvalidExpression(str(error)) from None

    async def resolved(
        self, group_id: str, unresolved: Callable[[], set[str]], sees: Callable[[str], bool]
    ) -> dict[str, Resolved]:
        """What a group's expressions match, of the topics that a member `sees`: those of which that is known soon."""
        until, found = self._broker.loop.time() + _PATIENCE_SECONDS, dict[str, Resolved]()
        while missing := unresolved() - found.keys():
            going_on = self._going_on.get(group_id) or self._resolve(group_id, missing, sees)
            await asyncio.wait([going_on], timeout=max(until - self._broker.loop.time(), 0))
            if not going_on.done() or going_on.cancelled():
                break
            found |= going_on.result()
        return found

    def _resolve(
        self, group_id: str, expressions: Iterable[str], sees: Callable[[str], bool]
    ) -> "asyncio.Future[dict[str, Resolved]]":
        going_on: asyncio.Future[dict[str, Resolved]] = self._broker.loop.create_future()
        self._going_on[group_id] = going_on
        version, names = self._broker.topics.version, [topic.name for topic in self._broker.topics if sees(topic.name)]

        async def run() -> None:
            try:
                found = {each: Resolved(await self._matching(each, names), version) for each in sorted(expressions)}
                self._settle(group_id, found)
                going_on.set_result(found)
            finally:
                del self._going_on[group_id]
                going_on.cancel()

        self._broker.spawn(run(), name="resolve expressions")
        return going_on

    async def _matching(self, expression: str, names: list[str]) -> frozenset[str] | None:
        try:
            return await self._broker.topic_patterns.matching(expression, names)
        except BadPattern as error:  # it was stored by a program that took it for one
            log.warning("expression_not_resolved", expression=expression[:_SHOWN], reason=str(error))
            return None
