"""An alarm before a disk is full: a project's topics are kept for ever, unless it says otherwise."""

import shutil
from collections.abc import Callable
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
    return _device_and_disk(directory)[1]


class DiskAlarm:
    """Says once that a disk is nearly full, and once that there is room again. For one thread at a time, but for what
    `look` gives: a disk that does not answer, as over a network, must hold up nobody else.
    """

    def __init__(self) -> None:
        self._low: set[int] = set()

    def look(self, directory: Path) -> Callable[[], list[str]]:
        """Ask the disk of a directory, from any thread; what is given tells the lines that are new since the last look.

        Raises:
            OSError: it does not say.
        """
        device, disk = _device_and_disk(directory)
        return lambda: self._news(device, disk)

    def _news(self, device: int, disk: Disk) -> list[str]:
        """By the device, as several directories may lie on it."""
        if disk.is_low and device not in self._low:
            self._low.add(device)
            full = "when it is full, nothing is appended any more"
            mend = 'give topics that need not be kept for ever a retention: `[topics.NAME.config]` with "retention.ms"'
            return [f"disk: {disk}: {full} (free some, or {mend})"]
        if device in self._low and disk.free_bytes >= ENOUGH_AGAIN * disk.little:
            self._low.discard(device)
            return [f"disk: {disk}: there is room again"]
        return []


def _device_and_disk(directory: Path) -> tuple[int, Disk]:
    while not directory.exists():
        directory = directory.parent
    found = shutil.disk_usage(directory)
    return directory.stat().st_dev, Disk(str(directory), found.free, found.total)
