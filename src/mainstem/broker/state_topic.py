"""The topic in which a coordinator keeps what belongs to names: groups in one, transactional ids in another."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from mainstem.broker.placement import place_of
from mainstem.core import MainstemError, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import AppendResult, PartitionLog
from mainstem.log.errors import StorageError

T = TypeVar("T")

log = get_logger()


class StateTopic:
    """Its partitions; what belongs to a name is in one of them."""

    def __init__(
        self, logs: Sequence[PartitionLog], unavailable: Callable[[str, BaseException | str], MainstemError]
    ) -> None:
        """`unavailable` makes the error that whoever asks for a name is told, of the name and the reason."""
        self.logs = list(logs)
        self._unread: dict[int, StorageError] = {}
        """Why, by partition that the start found damaged: what belongs to its names is not known."""
        self._unavailable = unavailable
        self._loop = asyncio.get_running_loop()

    def number(self, name: str) -> int:
        """Of the partition that keeps what belongs to the name."""
        return place_of(name, len(self.logs))

    def partition_for(self, name: str) -> TopicPartition:
        """The partition that keeps what belongs to the name."""
        return self.logs[self.number(name)].topic_partition

    @property
    def knows_all(self) -> bool:
        """False where names may be missing: what belongs to some could not be read."""
        return not self._unread

    def is_read(self, name: str) -> bool:
        """False where what belongs to the name could not be read."""
        return not self._unread or self.number(name) not in self._unread

    def check_read(self, name: str) -> None:
        """Raise where what belongs to the name could not be read: that there is nothing would be a lie.

        Raises:
            MainstemError: `unavailable`; its partition is damaged. It waits for the repair, and the start after that;
                names of other partitions do not.
        """
        if not self.is_read(name):
            raise self._unavailable(name, self._unread[self.number(name)])

    async def read(self, read: Callable[[PartitionLog], Awaitable[T]], *, event: str) -> dict[int, T]:
        """What is found in each partition; one that is damaged is left out, noted, and said as `event`.

        Raises:
            StorageError: the machine is short of something.
        """
        found: dict[int, T] = {}
        for number, partition_log in enumerate(self.logs):
            try:
                found[number] = await read(partition_log)
            except StorageError as error:
                if partition_log.error is None:  # no damage
                    raise
                self._unread[number] = error.again()
                facts = {"partition": str(partition_log.topic_partition), "hint": error.hint}
                log.error(event, **facts, error=str(error))  # noqa: TRY400 - damage is told in one line
        return found

    def append(self, name: str, batch: bytes, *, number: int | None = None) -> "asyncio.Future[int]":
        """Queue a batch, in partition `number` where it is not the name's; done when it is durable, with its offset.

        The future fails with `unavailable`.

        Raises:
            MainstemError: `unavailable`: nothing is queued, its log is offline or full.
            InvalidProducerEpoch, BatchTooLarge: nothing is queued.
        """
        partition_log = self.logs[self.number(name) if number is None else number]
        try:
            appended = partition_log.append(batch)
        except StorageError as error:
            raise self._unavailable(name, error) from error
        done: asyncio.Future[int] = self._loop.create_future()

        def durable(future: "asyncio.Future[AppendResult]") -> None:
            if done.done():  # whoever waited is gone
                return
            if future.cancelled():
                done.cancel()
            elif (error := future.exception()) is not None:
                done.set_exception(self._unavailable(name, error))
                done.exception()  # not everybody waits; the log's own error was logged
            else:
                done.set_result(future.result().base_offset)

        appended.add_done_callback(durable)
        return done
