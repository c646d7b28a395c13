"""Tells the audit what the indexes of a node have applied: those records that are in their commits, and no others."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.progress import Read
from mainstem.client.reports import Report, write_reports
from mainstem.serve.worker import Worker

EVERY_SECONDS = 1.0

Books = Mapping[str, Mapping[int, Read]]
"""Topic -> partition -> from where to where it was read, and what there was."""


class Reports:
    """`wake` when an index has gone on, from any thread; `close` tells the last. In a thread of its own: a log that
    does not answer holds up no view.

    Args:
        connection: the log.
        books: of each reader, as they are now.
    """

    def __init__(self, connection: Connection, books: Callable[[], Iterable[tuple[str, Books]]]) -> None:
        self._connection, self._books = connection, books
        self._told: dict[tuple[str, str, int], Read] = {}
        self._worker = Worker("reports", self._tell, pause_seconds=EVERY_SECONDS)
        self.wake, self.close = self._worker.wake, self._worker.close

    def _tell(self) -> None:
        news = {
            (reader, topic, partition): read
            for reader, books in self._books()
            for topic, reads in books.items()
            for partition, read in reads.items()
            if read.end and self._told.get((reader, topic, partition)) != read
        }
        write_reports(
            self._connection,
            [
                Report(reader=reader, topic=topic, partition=partition, **msgspec.structs.asdict(read))
                for (reader, topic, partition), read in news.items()
            ],
        )
        self._told |= news
