"""A disk of which nothing is in the page cache, as the log sees it: it reads around it."""

import os
from pathlib import Path

from mainstem.log import SystemDisk
from mainstem.log.disk import SystemFile


class ColdDisk(SystemDisk):
    """`reads` are those around the page cache, `direct` of them those that the file system let around it."""

    kind: "type[ColdFile]"

    def __init__(self, *, has_direct: bool = True) -> None:
        self.reads: list[int] = []
        self.direct = 0
        self.has_direct = has_direct
        self.fails, self.share = False, 0.0

    def open(self, path: Path, *, create: bool = False) -> "ColdFile":
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        return self.kind(path, descriptor, self)


class ColdFile(SystemFile):
    __slots__ = ("disk",)

    def __init__(self, path: Path, descriptor: int, disk: ColdDisk) -> None:
        super().__init__(path, descriptor)
        self.disk = disk

    def cached_share(self, size: int, position: int) -> float:
        return self.disk.share

    def read_cached(self, buffer: memoryview, position: int) -> int:
        return super().read_cached(buffer, position) if self.disk.share == 1 else -1

    def read_around_cache(self, buffer: memoryview, position: int, block: int) -> int:
        if self.disk.fails:
            raise OSError(5, "no")
        self.disk.reads.append(position)
        return super().read_around_cache(buffer, position, block)

    def _read_directly(self, buffer: memoryview, position: int, block: int) -> int:
        found = super()._read_directly(buffer, position, block) if self.disk.has_direct else 0
        self.disk.direct += found > 0
        return found


ColdDisk.kind = ColdFile
