"""What groups change is stored before anybody is told."""

import asyncio
from typing import TYPE_CHECKING, Any

from mainstem.broker.groups.membership import Entry

if TYPE_CHECKING:
    from mainstem.broker.groups.coordinator import GroupCoordinator


class Storing:
    """The records of all groups of one protocol, on their way to the log.

    Memory changes when records are queued. An answer waits until they are durable, and one that needs no record for
    those that were queued before it: a member never hears of an epoch that a crash could take back.
    """

    def __init__(self, coordinator: "GroupCoordinator") -> None:
        self._coordinator = coordinator
        self._last: dict[str, asyncio.Future[int]] = {}  # group: its last records, until they are durable

    async def settled(self, group_id: str) -> None:
        """Return when all that the group has in memory is durable.

        Raises:
            CoordinatorUnavailable: it never will be.
        """
        last = self._last.get(group_id)
        if last is not None:
            await asyncio.shield(last)

    def store(self, group_id: str, entries: list[Entry]) -> "asyncio.Future[int]":
        """Queue records of a group; done when they, and what was queued before, are durable."""
        last = self._last.get(group_id)
        if not entries:
            if last is not None:
                return last
            nothing: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            nothing.set_result(-1)
            return nothing
        stored = self._coordinator.storage.store(group_id, entries)
        if is_refused(stored):
            return stored
        self._last[group_id] = stored

        def durable(finished: "asyncio.Future[int]") -> None:
            # After a failure the directory is offline: what the group has in memory is never promised.
            failed = finished.cancelled() or finished.exception() is not None
            if not failed and self._last.get(group_id) is finished:
                del self._last[group_id]

        stored.add_done_callback(durable)
        return stored


def is_refused(stored: "asyncio.Future[Any]") -> bool:
    """True if nothing was queued at all."""
    return stored.done() and (stored.cancelled() or stored.exception() is not None)
