"""A part of a segment that is on its way to a client without passing through this process's memory.

It keeps the file open: a descriptor that was closed could be another file's by the time it is sent. That may take long:
so it is looked at again whether the bytes are still known to be right, else they are checked.
"""

from collections.abc import Callable

import msgspec

from mainstem.core import Clock, CorruptData
from mainstem.log.disk import File
from mainstem.log.errors import CorruptSegment
from mainstem.log.trust import Trust


class FileSlice(msgspec.Struct, frozen=True):
    """Whole batches, all of which were in the page cache when they were found."""

    file: File
    position: int
    size: int
    trust: Trust
    """Of the segment: what was trusted may be so no longer."""
    clock: Clock
    check: Callable[[bytes], None]
    """Raises CorruptBatch where the bytes are not what they must be."""

    def __len__(self) -> int:
        return self.size

    @property
    def _is_cached(self) -> bool:
        return self.file.cached_share(self.size, self.position) == 1

    def send(self, descriptor: int) -> int:
        """Give it to a socket that does not block; how many bytes the socket has taken: none that are not known to be
        right.
        """
        sent = 0
        trust_begins = self.trust.begins(self.trust.size, self.clock.monotonic())
        if self.position < trust_begins or not self._is_cached:
            return sent
        while sent < self.size:
            count = self.file.send(descriptor, self.size - sent, self.position + sent)
            if count <= 0:
                break
            sent += count
        return sent

    def read(self, skipped: int = 0) -> bytes:
        """What comes behind the first `skipped` bytes; all of it is checked. What has left the page cache is
        waited for: a megabyte, where the client would else ask for all of its answer again, and perhaps again.

        Raises:
            OSError: of the file.
            CorruptData: the file was cut, or is damaged.
        """
        if not self._is_cached:
            self.trust.end(self.trust.size)  # the system may read more from the disk than is checked
        data = self.file.read(self.size, self.position)
        try:
            if len(data) < self.size:
                raise CorruptSegment(f"{self.file.path}: it ends before position {self.position + self.size}")
            self.check(data)
        except CorruptData:
            self.trust.end(self.trust.size)  # who asks again is told
            raise
        return data[skipped:]
