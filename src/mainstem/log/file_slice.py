"""A part of a segment that is on its way to a client without passing through this process's memory.

It keeps the file open: a descriptor that was closed could be another file's by the time it is sent.
"""

import msgspec

from mainstem.log.disk import File
from mainstem.log.errors import CorruptSegment


class FileSlice(msgspec.Struct, frozen=True):
    """Whole batches, all of which were in the page cache when they were found."""

    file: File
    position: int
    size: int

    def __len__(self) -> int:
        return self.size

    def send(self, descriptor: int) -> int:
        """Give it to a socket that does not block; how many bytes the socket has taken."""
        sent = 0
        while sent < self.size:
            count = self.file.send(descriptor, self.size - sent, self.position + sent)
            if count <= 0:
                break
            sent += count
        return sent

    def read(self, skipped: int = 0) -> bytes:
        """What comes behind the first `skipped` bytes.

        Raises:
            OSError: of the file.
            CorruptSegment: the file was cut.
        """
        data = self.file.read(self.size - skipped, self.position + skipped)
        if len(data) < self.size - skipped:
            raise CorruptSegment(f"{self.file.path}: it ends before position {self.position + self.size}")
        return data
