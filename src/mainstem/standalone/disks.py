"""An alarm before a disk is full: a project's topics are kept for ever, unless it says otherwise."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

GIB = 1 << 30
LOW_BYTES, LOW_SHARE = 5 * GIB, 0.1
"""Little is left below the first, or below this share of a disk that is small."""
ENOUGH_AGAIN = 1.2
"""Times what is little, so that a disk at the border is not told of again and again."""


class Disk(msgspec.Struct, frozen=True):
    """What is free of the disk that holds a directory, in bytes."""

    directory: str
    free_bytes: int
    bytes: int

    @property
    def is_low(self) -> bool:
        return self.free_bytes < self.little

    @property
    def little(self) -> float:
        return min(LOW_BYTES, LOW_SHARE * self.bytes)

    def __str__(self) -> str:
        return f"{self.free_bytes / GIB:.1f} GiB of {self.bytes / GIB:.1f} GiB are free at {self.directory}"


def disk_of(directory: Path) -> Disk:
    """The disk of a directory that need not be there yet."""
    while not directory.exists():
        directory = directory.parent
    found = shutil.disk_usage(directory)
    return Disk(str(directory), found.free, found.total)


class DiskAlarm:
    """Says once that a disk is nearly full, and once that there is room again."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories: dict[int, Path] = {}  # the first of each disk
        for directory in directories:
            self._directories.setdefault(_device(directory), directory)
        self._low: set[int] = set()

    def news(self) -> list[str]:
        """The lines that are new since the last call."""
        lines = []
        for device, directory in self._directories.items():
            disk = disk_of(directory)
            if disk.is_low and device not in self._low:
                self._low.add(device)
                lines.append(
                    f"disk: {disk}: when it is full, nothing is appended any more (free some, or give topics that need "
                    'not be kept for ever a retention: `[topics.NAME.config]` with "retention.ms")'
                )
            elif device in self._low and disk.free_bytes >= ENOUGH_AGAIN * disk.little:
                self._low.discard(device)
                lines.append(f"disk: {disk}: there is room again")
        return lines


def _device(directory: Path) -> int:
    while not directory.exists():
        directory = directory.parent
    return directory.stat().st_dev
